#pragma once
// What computing costs in a simulation, as people write it: "off", "measured", "300M", "off:300M:1.2G".

#include <string_view>
#include <vector>

namespace thinwire::apps {

/// What a system's own computing costs its rank's clock.
struct CodecModel {
  /// Elements of the bucket per second, compressing and decompressing together: half of the time passes
  /// before the system begins, half when it is done. 0: computing is free.
  double elements_per_second = 0;
  /// Instead, the CPU time that the rank's thread spends inside the system on this machine; results then
  /// differ a little from run to run.
  bool measured = false;
};

/// One model, or one per system, in order: "off" or a rate in elements per second with K, M or G; "measured"
/// stands alone. Throws std::invalid_argument, also when there are several but not `systems` of them.
std::vector<CodecModel> parse_codec(std::string_view text, std::size_t systems);

}  // namespace thinwire::apps

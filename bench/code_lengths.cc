// What quantizers' codes take on recorded gradients: as they are sent, in codes of QSGD's kind, and at least.
//
//   bench_code_lengths SPEC,SPEC,... FILE...
//
// FILE: what `thinwire train --record` wrote, one for each of two workers. Their dense tensors are
// synchronized step by step, and the codes of every frame that is sent are counted; tables of rows are left
// out. Prints a JSON array with an object for each spec, in bits per element, without norms and frames'
// headers. Entropies are of each frame by itself.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/gradients/recorded.h"
#include "exchange/group_communicator.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/registry.h"
#include "thinwire/session.h"
#include "wire/elias.h"
#include "wire/payloads.h"

namespace thinwire {
namespace {

constexpr int kWorkers = 2;  // so that each frame is sent once

struct Lengths {
  double elements = 0;
  double fixed = 0;
  double gaps = 0;  // of systems with signed levels
  double each = 0;
  double entropy = 0;

  void operator+=(const Lengths& other) {
    elements += other.elements;
    fixed += other.fixed;
    gaps += other.gaps;
    each += other.each;
    entropy += other.entropy;
  }
};

/// Codes as they lie in a frame that is open.
std::vector<std::uint32_t> codes_of(const FrameHeader& header, Span<const std::byte> message) {
  Workspace workspace;
  const std::size_t bits = header.width;
  const std::size_t table = (header.payload_bytes - code_bytes(header.count, bits)) / sizeof(float);
  const CodedFrame frame(workspace, table, header.count, bits);
  std::memcpy(frame.message().data(), message.data(), message.size());
  frame.open();
  std::vector<std::uint32_t> codes(header.count);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    for (std::size_t k = 0; k < bits; ++k) {
      codes[i] |= static_cast<std::uint32_t>(frame.codes()[i / 64 * bits + k] >> (i % 64) & 1u) << k;
    }
  }
  return codes;
}

/// Plane 0 is the sign, the others are the level's number; level 0 has none.
Lengths signed_lengths(std::vector<std::uint32_t> codes, std::size_t bits) {
  std::vector<std::int32_t> levels(codes.size());
  std::vector<std::uint64_t> counts(std::size_t{1} << bits);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto magnitude = static_cast<std::int32_t>(codes[i] / 2);
    levels[i] = codes[i] % 2 == 1 ? -magnitude : magnitude;
    ++counts[magnitude == 0 ? 0 : codes[i]];
  }
  const EliasBits elias = elias_bits(levels);
  return {.gaps = static_cast<double>(elias.gaps),
          .each = static_cast<double>(elias.each),
          .entropy = entropy_bits(counts)};
}

/// Clusters have no sign: they are numbered from the most frequent one on.
Lengths cluster_lengths(const std::vector<std::uint32_t>& codes, std::size_t bits) {
  std::vector<std::uint64_t> counts(std::size_t{1} << bits);
  for (const std::uint32_t code : codes) ++counts[code];
  Lengths lengths{.entropy = entropy_bits(counts)};
  std::ranges::sort(counts, std::greater<>());
  for (std::size_t number = 0; number < counts.size(); ++number) {
    lengths.each += static_cast<double>(counts[number]) * elias_omega_bits(number + 1);
  }
  return lengths;
}

/// All ranks, and what this one sends.
class Watched final : public GroupCommunicator {
 public:
  Watched(Communicator& all, bool clusters, Lengths& lengths)
      : GroupCommunicator(all, {0, 1}, Lanes::at_once), clusters_(clusters), lengths_(lengths) {}

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override {
    if (bytes.size() > FrameHeader::kBytes) count(bytes);
    return GroupCommunicator::start_send(peer, tag, bytes);
  }

 private:
  void count(Span<const std::byte> message) {
    FrameHeader header;
    try {
      header = read_frame_header(message);
    } catch (const CorruptFrame&) {
      return;  // no frame: levels or clusters that ranks agree on
    }
    if (header.type != FrameType::codes) return;
    const auto codes = codes_of(header, message);
    Lengths lengths = clusters_ ? cluster_lengths(codes, header.width) : signed_lengths(codes, header.width);
    lengths.elements = static_cast<double>(header.count);
    lengths.fixed = static_cast<double>(header.count * header.width);
    lengths_ += lengths;
  }

  bool clusters_;
  Lengths& lengths_;
};

Lengths measure(const std::string& spec, const apps::RecordedSource& source) {
  const bool clusters = parse_spec(spec).back().name == "casq";
  std::array<Lengths, kWorkers> of_ranks;
  run_in_process(kWorkers, [&](Communicator& all) {
    Watched watched(all, clusters, of_ranks[static_cast<std::size_t>(all.rank())]);
    Session session(spec, watched, {.undoes_steps = false});
    std::vector<std::size_t> dense;
    for (std::size_t bucket = 0; bucket < source.buckets().size(); ++bucket) {
      const auto& shape = source.buckets()[bucket];
      if (shape.row_sparse) continue;
      session.add_bucket(shape.parameters);
      dense.push_back(bucket);
    }
    session.start();
    for (std::uint64_t step = 0; step < source.steps(); ++step) {
      for (BucketId id = 0; id < dense.size(); ++id) {
        std::vector<float> gradient(source.buckets()[dense[id]].rows);
        source.dense(all.rank(), step, dense[id], gradient);
        session.synchronize(id, gradient);
      }
      session.next_step();
    }
  });
  Lengths sum;
  for (const Lengths& one : of_ranks) sum += one;
  return sum;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1 + kWorkers) {
    std::fputs(
        "usage: bench_code_lengths SPEC,SPEC,... FILE FILE (of `thinwire train --workers 2 --record N`)\n",
        stderr);
    return 2;
  }
  const apps::RecordedSource source({arguments.begin() + 1, arguments.end()}, std::size_t{25'000'000});
  auto results = nlohmann::ordered_json::array();
  for (const std::string& spec : split_specs(arguments[0])) {
    const Lengths all = measure(spec, source);
    if (all.elements == 0) throw std::invalid_argument(spec + ": sends no codes");
    const bool has_gaps = all.gaps > 0;
    results.push_back({{"spec", spec},
                       {"steps", source.steps()},
                       {"elements", all.elements},
                       {"fixed", all.fixed / all.elements},
                       {"elias_gaps", has_gaps ? nlohmann::ordered_json(all.gaps / all.elements) : nullptr},
                       {"elias_each", all.each / all.elements},
                       {"entropy", all.entropy / all.elements}});
  }
  std::printf("%s\n", results.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace thinwire

int main(int argc, char** argv) {
  try {
    return thinwire::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_code_lengths: %s\n", error.what());
    return 1;
  }
}

#pragma once
// What DdpEngine's parts share: its lanes and the buckets on them.

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "torch/ddp_engine.h"

namespace thinwire {

/// Whether a system can take it: everything else is summed as it is.
inline bool is_compressible(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

/// What a bucket is, apart from its values.
struct DdpEngine::Layout {
  BucketLayout parameters;
  bool row_sparse = false;
  std::size_t rows = 0;
  std::size_t width = 1;
  bool compressible = true;
  std::optional<int> device;  // where a session can compress it; nullopt: on the host

  std::size_t elements() const {
    std::size_t total = 0;
    for (const Parameter& parameter : parameters) total += parameter.elements;
    return total;
  }
  bool operator==(const Layout& other) const {
    const auto same = [](const Parameter& a, const Parameter& b) {
      return a.name == b.name && a.elements == b.elements && a.rows == b.rows;
    };
    return std::equal(parameters.begin(), parameters.end(), other.parameters.begin(), other.parameters.end(),
                      same) &&
           row_sparse == other.row_sparse && rows == other.rows && width == other.width &&
           compressible == other.compressible && device == other.device;
  }
};

/// What a lane does next: a bucket, or (no `done`) the end of a step.
struct DdpEngine::Item {
  Bucket bucket;
  Done done;
};

struct DdpEngine::Lane {
  std::unique_ptr<C10dCommunicator> communicator;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Session> session;  // replaced only while the lane is idle
  std::optional<int> session_device;
  std::map<std::size_t, at::Tensor> staging;  // float32 of half-precision buckets
  /// Buckets of the last step whose residuals the session kept, and what parameters in owed_ owed before it.
  /// Only where steps may be skipped.
  std::vector<BucketId> kept;
  std::map<std::string, std::vector<float>> kept_owed;
  std::vector<std::uint32_t> row_indices;
  std::vector<float> row_values;
  DeviceStaging device;
  std::deque<Item> queue;
  bool busy = false;
  std::size_t bucket = 0;  // while busy
  std::thread thread;
};

}  // namespace thinwire

#pragma once
// DDP's buckets: as the hook hands them over, and what a bucket is apart from its values.

#include <ATen/ATen.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/state.h"
#include "torch/device_staging.h"

namespace thinwire {

/// A bucket as DDP's hook gets it.
struct DdpBucket {
  std::size_t index = 0;
  bool last = false;  ///< Of this step.
  /// Backward says when it has come to its end, by end_backward(). Otherwise the last bucket ends the step.
  bool awaits_end = false;
  BucketLayout parameters;
  /// Dense: [n], contiguous. Or sparse COO of one parameter, [rows, ...] with one sparse dimension. float32,
  /// float16 and bfloat16 go through the system; other types are summed as they are. In host memory, or on a
  /// device, which compresses it where this build has CUDA: then submit() is called while the stream that
  /// computes it is current, and the mean is complete for whatever waits for the stream that is current when
  /// `done` is called.
  at::Tensor gradient;
  Completion complete{};  ///< Set by submit().
};

/// Called once for a bucket, on a thread of the engine or inside submit(). mean: the dense gradient's own
/// tensor, which now holds the mean; for rows a new sparse tensor. Undefined when there is an error.
using DdpDone = std::function<void(at::Tensor mean, std::exception_ptr error)>;

/// A bucket on its way through the engine.
struct DdpItem {
  DdpBucket bucket;
  DdpDone done;
};

/// Whether a system can take values of this type: all others are summed as they are.
inline bool is_compressible(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

/// What a bucket is, apart from its values.
struct DdpLayout {
  BucketLayout parameters;
  bool row_sparse = false;
  std::size_t rows = 0;   // of the table, where row_sparse
  std::size_t width = 1;  // of a row
  bool compressible = true;
  std::optional<int> device;  // where a session can compress it; nullopt: on the host

  std::size_t elements() const;
  bool operator==(const DdpLayout&) const = default;
};

/// Of a bucket of rows: the values of one.
std::size_t row_width(const DdpBucket& bucket);

/// devices_compress: whether a gradient on a device may be compressed there. Throws std::invalid_argument for
/// a gradient that no session can take.
DdpLayout layout_of(const DdpBucket& bucket, bool devices_compress);

/// Writes which parameters are in which bucket, and in which order.
void save_layouts(const std::vector<DdpLayout>& layouts, StateWriter& writer);

/// Whether save_layouts wrote the entry.
bool is_layout_entry(const std::string& name);

/// The buckets in which a state was saved, made of the parameters in `now`. Empty where the state does not
/// tell, or tells of other parameters, or of buckets whose parameters do not go together.
std::vector<DdpLayout> saved_layouts(const StateReader& state, const std::vector<DdpLayout>& now);

}  // namespace thinwire

#include "torch/ddp_layout.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace thinwire {
namespace {

// Names in states.
const std::string kBucket = "ddp_bucket/";
const std::string kSlot = "ddp_place/";

[[noreturn]] void refuse_sparse(const DdpBucket& bucket) {
  const at::Tensor& gradient = bucket.gradient;
  throw std::invalid_argument(
      "bucket " + std::to_string(bucket.index) + " holds a sparse gradient of type " +
      c10::toString(gradient.scalar_type()) + " with " + std::to_string(gradient.sparse_dim()) +
      " sparse dimensions for " + std::to_string(bucket.parameters.size()) +
      " parameters: only rows of one parameter in float32, float16 or bfloat16 can be synchronized" +
      (gradient.sparse_dim() == 1 ? ""
                                  : ". Join hands over such zeros for sparse embeddings, which plain DDP "
                                    "cannot join either: take sparse=False, or leave out Join"));
}

/// Whether a parameter that is in a bucket of layout `own` now can be in `bucket`, at `slot`.
bool goes_into(const DdpLayout& own, const DdpLayout& bucket, std::size_t slot) {
  return bucket.compressible == own.compressible && bucket.device == own.device &&
         bucket.row_sparse == own.row_sparse && (!bucket.row_sparse || slot == 0);
}

}  // namespace

std::size_t DdpLayout::elements() const {
  std::size_t total = 0;
  for (const Parameter& parameter : parameters) total += parameter.elements;
  return total;
}

std::size_t row_width(const DdpBucket& bucket) {
  const auto rows = static_cast<std::size_t>(bucket.gradient.size(0));
  return rows == 0 ? 1 : std::max<std::size_t>(bucket.parameters[0].elements / rows, 1);
}

DdpLayout layout_of(const DdpBucket& bucket, bool devices_compress) {
  const at::Tensor& gradient = bucket.gradient;
  DdpLayout layout;
  layout.parameters = bucket.parameters;
  layout.compressible = is_compressible(gradient.scalar_type());
  layout.row_sparse = gradient.is_sparse();
  if (layout.row_sparse) {
    if (bucket.parameters.size() != 1 || gradient.sparse_dim() != 1 || !layout.compressible) {
      refuse_sparse(bucket);
    }
    layout.rows = static_cast<std::size_t>(gradient.size(0));
    layout.width = row_width(bucket);
    return layout;
  }
  if (layout.compressible && devices_compress) layout.device = session_device(gradient);
  if (!gradient.is_contiguous() || static_cast<std::size_t>(gradient.numel()) != layout.elements()) {
    throw std::invalid_argument("bucket " + std::to_string(bucket.index) + " has " +
                                std::to_string(gradient.numel()) + " elements, its parameters " +
                                std::to_string(layout.elements()) + ", or its elements are not contiguous");
  }
  return layout;
}

void save_layouts(const std::vector<DdpLayout>& layouts, StateWriter& writer) {
  for (std::size_t bucket = 0; bucket < layouts.size(); ++bucket) {
    for (std::size_t slot = 0; slot < layouts[bucket].parameters.size(); ++slot) {
      const std::string& name = layouts[bucket].parameters[slot].name;
      writer.put(kBucket + name, std::uint64_t{bucket});
      writer.put(kSlot + name, std::uint64_t{slot});
    }
  }
}

bool is_layout_entry(const std::string& name) {
  return name.starts_with(kBucket) || name.starts_with(kSlot);
}

std::vector<DdpLayout> saved_layouts(const StateReader& state, const std::vector<DdpLayout>& now) {
  struct Found {
    const DdpLayout* layout;
    const Parameter* parameter;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Found> in_order;  // by bucket and slot
  std::size_t parameters = 0;
  for (const DdpLayout& layout : now) {
    for (const Parameter& parameter : layout.parameters) {
      ++parameters;
      if (!state.contains(kBucket + parameter.name) || !state.contains(kSlot + parameter.name)) return {};
      in_order[{state.get_integer(kBucket + parameter.name), state.get_integer(kSlot + parameter.name)}] = {
          &layout, &parameter};
    }
  }
  if (in_order.size() != parameters || parameters != state.names(kBucket).size()) return {};
  std::vector<DdpLayout> layouts;
  for (const auto& [at, found] : in_order) {
    const auto& [bucket, slot] = at;
    if (slot == 0 && bucket == layouts.size()) {
      layouts.push_back(*found.layout);
      layouts.back().parameters.clear();
    }
    if (bucket + 1 != layouts.size() || slot != layouts.back().parameters.size()) return {};
    if (!goes_into(*found.layout, layouts.back(), slot)) return {};
    layouts.back().parameters.push_back(*found.parameter);
  }
  return layouts;
}

}  // namespace thinwire

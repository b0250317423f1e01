#include "state/residuals.h"

#include <stdexcept>

namespace thinwire {
namespace {

constexpr std::string_view kKind = "residual";

}  // namespace

Span<float> Residuals::open(std::uint32_t bucket, std::size_t elements) {
  auto [entry, created] = buckets_.try_emplace(bucket, elements, 0.0f);
  if (entry->second.size() != elements) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) + " has a residual of " +
                                std::to_string(entry->second.size()) + " elements, asked for " +
                                std::to_string(elements));
  }
  return Span<float>(entry->second);
}

Span<const float> Residuals::find(std::uint32_t bucket) const {
  const auto entry = buckets_.find(bucket);
  return entry == buckets_.end() ? Span<const float>() : Span<const float>(entry->second);
}

void Residuals::save(BucketWriter& writer) const {
  for (const auto& [bucket, values] : buckets_) writer.elements(kKind, bucket, Span<const float>(values));
}

}  // namespace thinwire

#include <algorithm>

#include "thinwire/state.h"

namespace thinwire {
namespace {

std::string entry_name(const StateKind& kind, const Parameter& parameter) {
  return std::string(kind.name) + "/" + parameter.name;
}

}  // namespace

void BucketWriter::put(const StateKind& kind, const Parameter& parameter, Span<const float> values) {
  writer_.declare(kind);
  writer_.put(entry_name(kind, parameter), values);
}

void BucketWriter::elements(const StateKind& kind, std::uint32_t bucket, Span<const float> values) {
  if (values.empty()) return;
  std::size_t offset = 0;
  for (const auto& parameter : buckets_.at(bucket)) {
    put(kind, parameter, values.subspan(offset, parameter.elements));
    offset += parameter.elements;
  }
}

void BucketWriter::values(const StateKind& kind, std::uint32_t bucket, Span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) put(kind, buckets_.at(bucket)[i], values.subspan(i, 1));
}

void BucketWriter::array(const StateKind& kind, std::uint32_t bucket, std::size_t parameter,
                         Span<const float> values) {
  put(kind, buckets_.at(bucket).at(parameter), values);
}

std::size_t BucketReader::bucket_elements(std::uint32_t bucket) const {
  std::size_t total = 0;
  for (const auto& parameter : buckets_.at(bucket)) total += parameter.elements;
  return total;
}

bool BucketReader::elements(const StateKind& kind, std::uint32_t bucket, Span<float> values,
                            Absent absent) const {
  if (present(kind, bucket) == 0) return false;
  std::size_t offset = 0;
  for (const auto& parameter : buckets_.at(bucket)) {
    const auto part = values.subspan(offset, parameter.elements);
    const std::string name = entry_name(kind, parameter);
    if (absent == Absent::zeros && !reader_.contains(name)) {
      std::ranges::fill(part, 0.0f);
    } else if (!part.empty()) {
      reader_.get(name, part);
    }
    offset += parameter.elements;
  }
  return true;
}

bool BucketReader::values(const StateKind& kind, std::uint32_t bucket, Span<float> values) const {
  const auto& layout = buckets_.at(bucket);
  if (layout.empty() || present(kind, bucket) != layout.size()) return false;
  for (std::size_t i = 0; i < layout.size(); ++i)
    reader_.get(entry_name(kind, layout[i]), values.subspan(i, 1));
  return true;
}

bool BucketReader::array(const StateKind& kind, std::uint32_t bucket, std::size_t parameter,
                         Span<float> values) const {
  const std::string name = entry_name(kind, this->parameter(bucket, parameter));
  if (!visible(kind, bucket) || !reader_.contains(name)) return false;
  reader_.get(name, values);
  return true;
}

/// How many parameters of the bucket have an entry of this kind.
std::size_t BucketReader::present(const StateKind& kind, std::uint32_t bucket) const {
  std::size_t count = 0;
  if (!visible(kind, bucket)) return count;
  for (const auto& parameter : buckets_.at(bucket)) {
    count += reader_.contains(entry_name(kind, parameter)) ? 1 : 0;
  }
  return count;
}

}  // namespace thinwire

#include <stdexcept>

#include "thinwire/state.h"

namespace thinwire {
namespace {

std::string entry_name(std::string_view kind, const Parameter& parameter) {
  return std::string(kind) + "/" + parameter.name;
}

}  // namespace

void BucketWriter::elements(std::string_view kind, std::uint32_t bucket, Span<const float> values) {
  if (values.empty()) return;
  std::size_t offset = 0;
  for (const auto& parameter : buckets_.at(bucket)) {
    writer_.put(entry_name(kind, parameter), values.subspan(offset, parameter.elements));
    offset += parameter.elements;
  }
}

void BucketWriter::value(std::string_view kind, std::uint32_t bucket, double value) {
  const auto& layout = buckets_.at(bucket);
  if (!layout.empty()) writer_.put(entry_name(kind, layout.front()), value);
}

std::size_t BucketReader::bucket_elements(std::uint32_t bucket) const {
  std::size_t total = 0;
  for (const auto& parameter : buckets_.at(bucket)) total += parameter.elements;
  return total;
}

bool BucketReader::elements(std::string_view kind, std::uint32_t bucket, Span<float> values) const {
  const auto& layout = buckets_.at(bucket);
  std::size_t present = 0;
  for (const auto& parameter : layout) present += reader_.contains(entry_name(kind, parameter)) ? 1 : 0;
  if (present == 0) return false;
  std::size_t offset = 0;
  for (const auto& parameter : layout) {
    const auto part = values.subspan(offset, parameter.elements);
    reader_.get(entry_name(kind, parameter), part);
    offset += parameter.elements;
  }
  return true;
}

std::optional<double> BucketReader::value(std::string_view kind, std::uint32_t bucket) const {
  const auto& layout = buckets_.at(bucket);
  if (layout.empty() || !reader_.contains(entry_name(kind, layout.front()))) return std::nullopt;
  return reader_.get_real(entry_name(kind, layout.front()));
}

}  // namespace thinwire

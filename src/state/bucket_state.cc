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

void BucketWriter::values(std::string_view kind, std::uint32_t bucket, Span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    writer_.put(entry_name(kind, buckets_.at(bucket)[i]), values.subspan(i, 1));
  }
}

void BucketWriter::array(std::string_view kind, std::uint32_t bucket, std::size_t parameter,
                         Span<const float> values) {
  writer_.put(entry_name(kind, buckets_.at(bucket).at(parameter)), values);
}

std::size_t BucketReader::bucket_elements(std::uint32_t bucket) const {
  std::size_t total = 0;
  for (const auto& parameter : buckets_.at(bucket)) total += parameter.elements;
  return total;
}

bool BucketReader::elements(std::string_view kind, std::uint32_t bucket, Span<float> values) const {
  return read(kind, bucket, false, values);
}

bool BucketReader::values(std::string_view kind, std::uint32_t bucket, Span<float> values) const {
  return read(kind, bucket, true, values);
}

bool BucketReader::array(std::string_view kind, std::uint32_t bucket, std::size_t parameter,
                         Span<float> values) const {
  const std::string name = entry_name(kind, this->parameter(bucket, parameter));
  if (!visible(bucket) || !reader_.contains(name)) return false;
  reader_.get(name, values);
  return true;
}

bool BucketReader::read(std::string_view kind, std::uint32_t bucket, bool per_parameter,
                        Span<float> values) const {
  const auto& layout = buckets_.at(bucket);
  if (!visible(bucket)) return false;
  std::size_t present = 0;
  for (const auto& parameter : layout) present += reader_.contains(entry_name(kind, parameter)) ? 1 : 0;
  if (present == 0) return false;
  std::size_t offset = 0;
  for (const auto& parameter : layout) {
    const std::size_t count = per_parameter ? 1 : parameter.elements;
    if (count != 0) reader_.get(entry_name(kind, parameter), values.subspan(offset, count));
    offset += count;
  }
  return true;
}

}  // namespace thinwire

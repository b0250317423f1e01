#include "core/bucket_vectors.h"

#include <stdexcept>

namespace thinwire {

Span<float> BucketVectors::open(Executor& executor, std::uint32_t bucket, std::size_t elements) {
  auto found = vectors_.find(bucket);
  if (found == vectors_.end()) {
    std::vector<float> values(elements);
    if (const auto loaded = loaded_.find(bucket); loaded != loaded_.end()) {
      // The layout that it was loaded for is the caller's.
      values = std::move(loaded->second);
      loaded_.erase(loaded);
      values.resize(elements);
    }
    Vector vector;
    vector.executor = &executor;
    vector.memory = {static_cast<std::byte*>(executor.allocator().allocate(elements * sizeof(float))),
                     detail::Release{&executor.allocator()}};
    vector.size = elements;
    copy(executor, Span<const float>(values), vector.span());
    found = vectors_.emplace(bucket, std::move(vector)).first;
  }
  const Vector& vector = found->second;
  if (vector.size != elements) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) + " had " + std::to_string(vector.size) +
                                " elements in earlier steps, now " + std::to_string(elements));
  }
  return vector.span();
}

void BucketVectors::erase(std::uint32_t bucket) {
  vectors_.erase(bucket);
  loaded_.erase(bucket);
}

Span<const float> BucketVectors::find(std::uint32_t bucket) const {
  const auto found = vectors_.find(bucket);
  return found == vectors_.end() ? Span<float>() : found->second.span();
}

void BucketVectors::save(BucketWriter& writer) const {
  for (const auto& [bucket, vector] : vectors_) {
    if (vector.executor->memory() == Memory::host) {
      writer.elements(kind_, bucket, vector.span());
      continue;
    }
    std::vector<float> values(vector.size);
    copy(*vector.executor, Span<const float>(vector.span()), Span<float>(values));
    writer.elements(kind_, bucket, Span<const float>(values));
  }
  for (const auto& [bucket, values] : loaded_) writer.elements(kind_, bucket, Span<const float>(values));
}

void BucketVectors::load(const BucketReader& reader) {
  std::map<std::uint32_t, std::vector<float>> loaded;
  for (std::uint32_t bucket = 0; bucket < reader.buckets(); ++bucket) {
    std::vector<float> values(reader.bucket_elements(bucket));
    if (reader.elements(kind_, bucket, Span<float>(values), BucketReader::Absent::zeros))
      loaded[bucket] = std::move(values);
  }
  vectors_.clear();
  loaded_ = std::move(loaded);
}

}  // namespace thinwire

#include "core/bucket_vectors.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace thinwire {

BucketVectors::Vector BucketVectors::make(Executor& executor, std::size_t elements) {
  Vector vector;
  vector.executor = &executor;
  vector.memory = {static_cast<std::byte*>(executor.allocator().allocate(elements * sizeof(float))),
                   detail::Release{&executor.allocator()}};
  vector.size = elements;
  return vector;
}

Span<float> BucketVectors::open(Executor& executor, std::uint32_t bucket, std::size_t elements) {
  auto found = vectors_.find(bucket);
  if (found == vectors_.end()) {
    const auto loaded = loaded_.find(bucket);
    // The layout that it was loaded for is the caller's.
    std::vector<float> values = loaded != loaded_.end() ? loaded->second.values : std::vector<float>();
    values.resize(elements);
    Vector vector = make(executor, elements);
    copy(executor, Span<const float>(values), vector.span());
    found = vectors_.emplace(bucket, std::move(vector)).first;
    if (loaded != loaded_.end()) {
      if (loaded->second.kept) keep(bucket);
      loaded_.erase(loaded);
    }
  }
  const Vector& vector = found->second;
  if (vector.size != elements) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) + " had " + std::to_string(vector.size) +
                                " elements in earlier steps, now " + std::to_string(elements));
  }
  return vector.span();
}

bool BucketVectors::is_kept(std::uint32_t bucket) const {
  const auto found = vectors_.find(bucket);
  return found != vectors_.end() && found->second.is_kept;
}

void BucketVectors::part(std::uint32_t bucket) {
  if (!is_kept(bucket)) return;
  kept_[bucket] = std::move(vectors_.at(bucket));
  kept_[bucket].is_kept = false;
}

void BucketVectors::part_loaded() {
  for (auto& [bucket, loaded] : loaded_) {
    if (loaded.kept) kept_as_loaded_[bucket] = std::move(loaded.values);
  }
  loaded_.clear();
}

void BucketVectors::erase(std::uint32_t bucket) {
  part(bucket);
  vectors_.erase(bucket);
  const auto loaded = loaded_.find(bucket);
  if (loaded == loaded_.end()) return;
  if (loaded->second.kept) kept_as_loaded_[bucket] = std::move(loaded->second.values);
  loaded_.erase(loaded);
}

Span<const float> BucketVectors::find(std::uint32_t bucket) const {
  const auto found = vectors_.find(bucket);
  return found == vectors_.end() ? Span<float>() : found->second.span();
}

void BucketVectors::keep_in_turn(std::uint32_t bucket) {
  const auto found = vectors_.find(bucket);
  if (found == vectors_.end()) return keep(bucket);
  kept_as_loaded_.erase(bucket);
  found->second.is_kept = true;
}

Span<float> BucketVectors::next(std::uint32_t bucket) {
  if (!is_kept(bucket)) return {};
  const Vector& now = vectors_.at(bucket);
  auto kept = kept_.find(bucket);
  if (kept == kept_.end()) kept = kept_.emplace(bucket, make(*now.executor, now.size)).first;
  return kept->second.span();
}

void BucketVectors::turn(std::uint32_t bucket) {
  Vector& now = vectors_.at(bucket);
  now.is_kept = false;
  std::swap(now, kept_.at(bucket));
}

Span<float> BucketVectors::replace(Executor& executor, std::uint32_t bucket, std::size_t elements) {
  const Span<float> now = open(executor, bucket, elements);
  if (!is_kept(bucket)) return now;
  const Span<float> other = next(bucket);
  turn(bucket);
  return other;
}

void BucketVectors::keep(std::uint32_t bucket) {
  kept_as_loaded_.erase(bucket);
  const auto found = vectors_.find(bucket);
  if (found == vectors_.end()) {
    kept_.erase(bucket);
    if (const auto loaded = loaded_.find(bucket); loaded != loaded_.end()) loaded->second.kept = true;
    return;
  }
  found->second.is_kept = false;
  const Vector& now = found->second;
  auto kept = kept_.find(bucket);
  if (kept == kept_.end()) kept = kept_.emplace(bucket, make(*now.executor, now.size)).first;
  copy(*now.executor, Span<const float>(now.span()), kept->second.span());
}

void BucketVectors::undo(std::uint32_t bucket) {
  if (const auto kept = kept_as_loaded_.find(bucket); kept != kept_as_loaded_.end()) {
    vectors_.erase(bucket);
    loaded_[bucket] = {.values = std::move(kept->second), .kept = true};
    kept_as_loaded_.erase(kept);
    return;
  }
  if (const auto loaded = loaded_.find(bucket); loaded != loaded_.end()) {
    if (loaded->second.kept) return;
    loaded_.erase(loaded);
  }
  if (is_kept(bucket)) return;
  const auto kept = kept_.find(bucket);
  if (kept == kept_.end()) {
    vectors_.erase(bucket);
    return;
  }
  const Vector& before = kept->second;
  copy(*before.executor, Span<const float>(before.span()), open(*before.executor, bucket, before.size));
}

void BucketVectors::undo(std::uint32_t bucket, std::size_t begin, std::size_t count) {
  const auto loaded = loaded_.find(bucket);
  if (is_kept(bucket) || (loaded != loaded_.end() && loaded->second.kept)) return;
  const std::vector<float> zeros(count);
  Span<const float> before(zeros);
  Executor* executor = nullptr;
  if (const auto kept = kept_as_loaded_.find(bucket); kept != kept_as_loaded_.end()) {
    before = Span<const float>(kept->second).subspan(begin, count);
  } else if (const auto vector = kept_.find(bucket); vector != kept_.end()) {
    before = Span<const float>(vector->second.span()).subspan(begin, count);
    executor = vector->second.executor;
    if (loaded == loaded_.end()) open(*executor, bucket, vector->second.size);
  }
  if (const auto now = vectors_.find(bucket); now != vectors_.end()) {
    copy(*now->second.executor, before, now->second.span().subspan(begin, count));
  } else if (loaded != loaded_.end()) {
    const Span<float> values = Span<float>(loaded->second.values).subspan(begin, count);
    if (executor != nullptr) {
      copy(*executor, before, values);
    } else {
      std::ranges::copy(before, values.begin());
    }
  }
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
  for (const auto& [bucket, loaded] : loaded_) {
    writer.elements(kind_, bucket, Span<const float>(loaded.values));
  }
}

void BucketVectors::load(const BucketReader& reader) {
  std::map<std::uint32_t, Loaded> loaded;
  for (std::uint32_t bucket = 0; bucket < reader.buckets(); ++bucket) {
    std::vector<float> values(reader.bucket_elements(bucket));
    if (reader.elements(kind_, bucket, Span<float>(values), BucketReader::Absent::zeros))
      loaded[bucket] = {std::move(values)};
  }
  for (const auto& entry : vectors_) part(entry.first);
  vectors_.clear();
  part_loaded();
  loaded_ = std::move(loaded);
}

}  // namespace thinwire

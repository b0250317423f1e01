#include "core/bucket_vectors.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <vector>

#include "thinwire/executor.h"

namespace thinwire::bucket_vectors_test {
namespace {

constexpr StateKind kKind = {.name = "vector"};
constexpr std::uint32_t kBuckets = 3;
constexpr std::size_t kElements = 7;

std::vector<BucketLayout> layouts() {
  std::vector<BucketLayout> all;
  for (const char* name : {"a", "b", "c"}) all.push_back({{name, kElements}});
  return all;
}

/// What the vectors are by definition: a value of now and one that undo() returns to.
class Copies {
 public:
  using Vector = std::optional<std::vector<float>>;

  Vector& now(std::uint32_t bucket) { return now_[bucket]; }
  const Vector& kept(std::uint32_t bucket) { return kept_[bucket]; }
  std::vector<float>& open(std::uint32_t bucket) {
    if (!now_[bucket]) now_[bucket].emplace(kElements);
    return *now_[bucket];
  }
  void keep(std::uint32_t bucket) { kept_[bucket] = now_[bucket]; }
  void undo(std::uint32_t bucket) { now_[bucket] = kept_[bucket]; }
  void undo(std::uint32_t bucket, std::size_t begin, std::size_t count) {
    if (!now_[bucket]) return;
    for (std::size_t i = begin; i < begin + count; ++i)
      (*now_[bucket])[i] = kept_[bucket] ? (*kept_[bucket])[i] : 0;
  }

 private:
  std::map<std::uint32_t, Vector> now_, kept_;
};

class RandomCalls {
 public:
  explicit RandomCalls(unsigned seed) : random_(seed) {}

  void one() {
    const std::uint32_t bucket = below(kBuckets);
    switch (below(8)) {
      case 0:
        return write(bucket);
      case 1: {
        const std::vector<float> values = any();
        copy(*executor_, Span<const float>(values), vectors_.replace(*executor_, bucket, kElements));
        copies_.open(bucket) = values;
        return;
      }
      case 2:
        vectors_.keep(bucket);
        return copies_.keep(bucket);
      case 3:
        vectors_.keep_in_turn(bucket);
        return copies_.keep(bucket);
      case 4:
        vectors_.erase(bucket);
        copies_.now(bucket).reset();
        return;
      case 5:
        return load();
      case 6:
        vectors_.undo(bucket);
        return copies_.undo(bucket);
      default: {
        // Of a vector that was erased nobody asks for a part.
        if (!copies_.now(bucket)) return;
        const std::size_t begin = below(kElements),
                          count = below(static_cast<std::uint32_t>(kElements - begin) + 1);
        vectors_.undo(bucket, begin, count);
        return copies_.undo(bucket, begin, count);
      }
    }
  }

  void expect_same() {
    StateWriter writer;
    BucketWriter buckets(writer, layouts_);
    vectors_.save(buckets);
    const StateReader state(std::move(writer));
    for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      std::vector<float> values(kElements);
      const bool has = BucketReader(state, layouts_).elements(kKind, bucket, Span<float>(values));
      ASSERT_EQ(has, copies_.now(bucket).has_value()) << bucket;
      if (!has) continue;
      ASSERT_EQ(values, *copies_.now(bucket)) << bucket;
    }
  }

 private:
  std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }
  std::vector<float> any() {
    std::vector<float> values(kElements);
    for (float& value : values) value = static_cast<float>(below(1000)) + 1;
    return values;
  }

  /// As a system does: to the next vector where there is one, else in place.
  void write(std::uint32_t bucket) {
    const std::vector<float> values = any();
    const Span<float> now = vectors_.open(*executor_, bucket, kElements);
    const Span<float> next = vectors_.next(bucket);
    copy(*executor_, Span<const float>(values), next.empty() ? now : next);
    if (!next.empty()) vectors_.turn(bucket);
    copies_.open(bucket) = values;
  }

  void load() {
    StateWriter writer;
    BucketWriter buckets(writer, layouts_);
    for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      copies_.now(bucket).reset();
      if (below(3) == 0) continue;
      copies_.now(bucket) = any();
      buckets.elements(kKind, bucket, Span<const float>(*copies_.now(bucket)));
    }
    const StateReader state(std::move(writer));
    vectors_.load(BucketReader(state, layouts_));
  }

  std::mt19937 random_;
  const std::vector<BucketLayout> layouts_ = layouts();
  std::unique_ptr<Executor> executor_ = make_cpu_executor(1);
  BucketVectors vectors_{kKind};
  Copies copies_;
};

TEST(BucketVectors, AreWhatCopiesOfEverythingWouldBe) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomCalls calls(seed);
    for (int call = 0; call < 60; ++call) {
      calls.one();
      calls.expect_same();
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace thinwire::bucket_vectors_test

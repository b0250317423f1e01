#pragma once
// A stage with one system behind it: whatever is not its affair is that system's.

#include <memory>
#include <utility>

#include "core/bucket_vectors.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

class Forwarding : public Synchronizer {
 public:
  explicit Forwarding(std::unique_ptr<Synchronizer> inner) : inner_(std::move(inner)) {}

  void require_world(int world_size) const override { inner_->require_world(world_size); }
  bool freezes_variance(std::uint64_t step) const override { return inner_->freezes_variance(step); }
  std::uint64_t payload_bytes(const Workload& workload) const override {
    return inner_->payload_bytes(workload);
  }
  std::vector<Change> changes() const override { return inner_->changes(); }
  std::vector<Change> explanation() const override { return inner_->explanation(); }
  std::vector<float> decision() const override { return inner_->decision(); }
  void follow(Span<const float> decision) override { inner_->follow(decision); }
  void others_changed() override { inner_->others_changed(); }
  double step_squares() const override { return inner_->step_squares(); }
  void take_squares(double whole) override { inner_->take_squares(whole); }
  void save(BucketWriter& writer) const override { inner_->save(writer); }
  void load(const BucketReader& reader) override { inner_->load(reader); }
  void keep_step(BucketId bucket) override { inner_->keep_step(bucket); }
  bool keeps_little(BucketId bucket) const override { return inner_->keeps_little(bucket); }
  void undo_step(BucketId bucket) override { inner_->undo_step(bucket); }
  void undo_step(BucketId bucket, std::size_t begin, std::size_t count) override {
    inner_->undo_step(bucket, begin, count);
  }

 protected:
  Synchronizer& inner() const { return *inner_; }

 private:
  std::unique_ptr<Synchronizer> inner_;
};

/// One whose only state is a vector as long as the bucket.
class ForwardingWithVector : public Forwarding {
 public:
  ForwardingWithVector(const StateKind& kind, std::unique_ptr<Synchronizer> inner)
      : Forwarding(std::move(inner)), vectors_(kind) {}

  void save(BucketWriter& writer) const final {
    vectors_.save(writer);
    Forwarding::save(writer);
  }
  void load(const BucketReader& reader) final {
    vectors_.load(reader);
    Forwarding::load(reader);
  }
  void keep_step(BucketId bucket) final {
    vectors_.keep(bucket);
    Forwarding::keep_step(bucket);
  }
  bool keeps_little(BucketId) const final { return false; }
  void undo_step(BucketId bucket) final {
    vectors_.undo(bucket);
    Forwarding::undo_step(bucket);
  }
  void undo_step(BucketId bucket, std::size_t begin, std::size_t count) final {
    vectors_.undo(bucket, begin, count);
    Forwarding::undo_step(bucket, begin, count);
  }

 protected:
  BucketVectors vectors_;
};

}  // namespace thinwire

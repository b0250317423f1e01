#pragma once
// A stage with one system behind it that has no state of its own: whatever is not its affair is that system's.

#include <memory>
#include <utility>

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
  void save(BucketWriter& writer) const final { inner_->save(writer); }
  void load(const BucketReader& reader) final { inner_->load(reader); }
  void keep_step(BucketId bucket) final { inner_->keep_step(bucket); }
  void undo_step(BucketId bucket) final { inner_->undo_step(bucket); }
  void undo_step(BucketId bucket, std::size_t begin, std::size_t count) final {
    inner_->undo_step(bucket, begin, count);
  }

 protected:
  Synchronizer& inner() const { return *inner_; }

 private:
  std::unique_ptr<Synchronizer> inner_;
};

}  // namespace thinwire

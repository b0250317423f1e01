#include "state/momentum_correction.h"

#include <cstring>
#include <map>
#include <stdexcept>
#include <vector>

#include "thinwire/state.h"

namespace thinwire {
namespace {

constexpr std::string_view kKind = "velocity";

class MomentumCorrection final : public Synchronizer {
 public:
  MomentumCorrection(float momentum, std::unique_ptr<Synchronizer> inner)
      : momentum_(momentum), inner_(std::move(inner)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    auto [entry, created] = velocities_.try_emplace(bucket, gradient.size(), 0.0f);
    std::vector<float>& velocity = entry->second;
    if (velocity.size() != gradient.size()) {
      throw std::invalid_argument("bucket " + std::to_string(bucket) + " had " +
                                  std::to_string(velocity.size()) + " elements in earlier steps, now " +
                                  std::to_string(gradient.size()));
    }
    // The corrected gradient is overwritten with the mean, and whether the step counts is known only
    // afterwards.
    const Span<float> corrected = step.workspace.take<float>(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      corrected[i] = momentum_ * velocity[i] + gradient[i];
      gradient[i] = corrected[i];
    }
    inner_->synchronize(bucket, gradient, residual, step);
    if (!step.report.finite) return;
    std::copy(corrected.begin(), corrected.end(), velocity.begin());
    clear_delivered(step.delivered, velocity);
  }

  void require_world(int world_size) const override { inner_->require_world(world_size); }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return inner_->payload_bytes(workload);
  }

  void save(BucketWriter& writer) const override {
    for (const auto& [bucket, values] : velocities_)
      writer.elements(kKind, bucket, Span<const float>(values));
    inner_->save(writer);
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, std::vector<float>> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      std::vector<float> values(reader.bucket_elements(bucket));
      if (reader.elements(kKind, bucket, Span<float>(values), BucketReader::Absent::zeros))
        loaded[bucket] = std::move(values);
    }
    velocities_ = std::move(loaded);
    inner_->load(reader);
  }

 private:
  static void clear_delivered(const Delivered& delivered, std::vector<float>& velocity) {
    switch (delivered.kind) {
      case Delivered::Kind::all:
        std::fill(velocity.begin(), velocity.end(), 0.0f);
        break;
      case Delivered::Kind::bitset:
        for (std::size_t i = 0; i < velocity.size(); ++i) {
          if (((delivered.bits[i / 64] >> (i % 64)) & 1) != 0) velocity[i] = 0;
        }
        break;
      case Delivered::Kind::indices:
        for (const std::uint32_t i : delivered.indices) velocity[i] = 0;
        break;
    }
  }

  float momentum_;
  std::unique_ptr<Synchronizer> inner_;
  std::map<BucketId, std::vector<float>> velocities_;
};

}  // namespace

std::unique_ptr<Synchronizer> correct_momentum(float momentum, std::unique_ptr<Synchronizer> inner) {
  return std::make_unique<MomentumCorrection>(momentum, std::move(inner));
}

SystemInfo momentum_correction_info() {
  SystemInfo info;
  info.name = "mc";
  info.summary = "momentum before compression, cleared where elements were delivered";
  info.paper = "Lin et al., Deep Gradient Compression, ICLR 2018, section 3.2";
  info.formula = "that of the system behind it";
  info.stage = true;
  info.corrects_momentum = true;
  info.options = {{"momentum", "0.9", "decay of the velocity per step, 0 to 1"}};
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    return correct_momentum(static_cast<float>(options.real("momentum", 0, 1)),
                            std::move(inner.synchronizer));
  };
  return info;
}

}  // namespace thinwire

// Global top-k: the k largest elements of the sum of all ranks' p, whatever they cost to find.
//
// Source: what N. Ivkin et al., "Communication-efficient distributed SGD with sketching", NeurIPS 2019,
// section 7, measure Sketched-SGD against: an upper bound of what a sketch can find.
//
//   p = gradient + residual --all-reduce--> sums --k largest--> mean; residual = p, 0 where delivered
//
// Every rank delivers the same elements. Nothing is saved on the wire: R * 4 d bytes, R = 2(W-1)/W.

#include "baselines/baselines.h"
#include "systems/sketched_sgd/contenders.h"

namespace thinwire {
namespace {

class GlobalTopK final : public Synchronizer {
 public:
  explicit GlobalTopK(const GlobalTopKSettings& settings) : settings_(settings) {}

  void synchronize(BucketId, Span<float> gradient, Span<float> residual, Step& step) override {
    const Contenders contenders(gradient.size(), step.parameter_ends, settings_.dense_below);
    synchronize_global_top_k(contenders, settings_.wanted(contenders.contending()), gradient, residual, step);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return workload.ring_sent_bytes(workload.elements, sizeof(float));
  }

 private:
  GlobalTopKSettings settings_;
};

}  // namespace

SystemInfo global_top_k_info() {
  SystemInfo info;
  info.name = "global_top_k";
  info.summary = "the largest elements of the sum over ranks, found by a dense all-reduce";
  info.paper = "Ivkin et al., Sketched-SGD, NeurIPS 2019, section 7";
  info.formula = "2(W-1)/W * 4 d";
  info.feedback_default = true;
  info.delivers_all = false;
  info.corrects_momentum = true;
  info.incomparable = units_of_global_top_k;
  info.rate_inside = has_rate_inside;
  info.momentum_option = "momentum";
  info.options = global_top_k_options();
  info.make = [](const Options& options, Inner) {
    return with_momentum_and_rate(options, std::make_unique<GlobalTopK>(read_global_top_k(options)));
  };
  return info;
}

}  // namespace thinwire

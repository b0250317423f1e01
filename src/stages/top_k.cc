// Local top-k: each rank delivers the elements of its p that are largest in magnitude, exactly k of them
// (fewer where fewer are not 0), ties by index.
//
// Source: A. F. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; the
// sparsifier of most baselines that the five papers compare with.

#include "kernels/selection/select.h"
#include "stages/sparsifier.h"
#include "stages/stages.h"

namespace thinwire {
namespace {

class TopK final : public Sparsifier {
 public:
  /// k: 0 takes ratio.
  TopK(Inner inner, double ratio, std::size_t k, Ramp ramp)
      : Sparsifier(std::move(inner), 1), ratio_(ratio), k_(k), ramp_(ramp) {}

 protected:
  std::size_t wanted(std::size_t units, std::uint64_t step) const override {
    return ramp_.units_at(step, k_ != 0 ? std::min(k_, units) : share_of(ratio_, units), units);
  }

  RowSparse select(BucketId, Span<const float> gradient, Span<const float> residual, std::size_t wanted,
                   Step& step) override {
    const Selection largest = select_largest(step.executor, step.workspace, gradient, residual, wanted);
    return {largest.indices, largest.values, gradient.size(), 1};
  }

 private:
  double ratio_;
  std::size_t k_;
  Ramp ramp_;
};

}  // namespace

SystemInfo top_k_info() {
  SystemInfo info = sparsifier_info();
  info.name = "top_k";
  info.summary = "the largest elements of each rank; the rest waits in the residual";
  info.paper = "Aji and Heafield, EMNLP 2017";
  info.options = {{"ratio", "0.01", "share of a bucket's elements to deliver, above 0, up to 1"},
                  {"k", "0", "elements per bucket, at most all of it; 0: by ratio"}};
  info.reduce_scatters = true;
  for (auto& option : Ramp::options()) info.options.push_back(std::move(option));
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    const double ratio = options.real("ratio", Sparsifier::kSmallestRatio, 1);
    return std::make_unique<TopK>(std::move(inner), ratio,
                                  static_cast<std::size_t>(options.integer("k", 0, 0xffffffff)),
                                  Ramp(options));
  };
  return info;
}

}  // namespace thinwire

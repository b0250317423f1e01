// Block top-k: a bucket is cut into blocks, and each rank delivers the blocks of its p with the largest l2
// norms. What S2 Reducer makes dense models sparse with.
//
// Source: S2 Reducer, section 2.2 (ratio 1/32 of blocks of 256 by default); T. Vogels et al., "PowerSGD",
// NeurIPS 2019.

#include "kernels/rows/row_access.h"
#include "kernels/selection/block_norms.h"
#include "kernels/selection/select.h"
#include "stages/sparsifier.h"
#include "stages/stages.h"

namespace thinwire {
namespace {

class BlockTopK final : public Sparsifier {
 public:
  BlockTopK(Inner inner, double ratio, std::size_t block, Ramp ramp)
      : Sparsifier(std::move(inner), block), ratio_(ratio), ramp_(ramp) {}

 protected:
  std::size_t wanted(std::size_t units, std::uint64_t step) const override {
    return ramp_.units_at(step, share_of(ratio_, units), units);
  }

  /// Norms decide which blocks; a block whose squares all vanish in float (|p| below 1e-22) waits.
  RowSparse select(BucketId, Span<const float> gradient, Span<const float> residual, std::size_t wanted,
                   Step& step) override {
    const std::size_t units = block_count(gradient.size(), width());
    const auto norms = step.scratch.take<float>(units);
    block_norms(step.executor, gradient, residual, width(), norms);
    const auto blocks = select_largest(step.executor, step.workspace, norms, {}, wanted).indices;
    const auto values = step.workspace.take<float>(blocks.size() * width());
    gather_rows(step.executor, gradient, residual, blocks, width(), values);
    return {blocks, values, units, width()};
  }

 private:
  double ratio_;
  Ramp ramp_;
};

}  // namespace

SystemInfo block_top_k_info() {
  SystemInfo info = sparsifier_info();
  info.name = "block_top_k";
  info.summary = "the blocks with the largest norms of each rank; the rest waits in the residual";
  info.paper = "S2 Reducer section 2.2; Vogels et al., NeurIPS 2019";
  info.options = {{"ratio", "0.03125", "share of a bucket's blocks to deliver, above 0, up to 1"},
                  {"block", "256", "elements per block"}};
  for (auto& option : Ramp::options()) info.options.push_back(std::move(option));
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    const double ratio = options.real("ratio", Sparsifier::kSmallestRatio, 1);
    return std::make_unique<BlockTopK>(std::move(inner), ratio,
                                       static_cast<std::size_t>(options.integer("block", 1, 1 << 20)),
                                       Ramp(options));
  };
  return info;
}

}  // namespace thinwire

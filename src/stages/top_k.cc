// Local top-k: each rank delivers the elements of its p that are largest in magnitude, exactly k of them
// (fewer where fewer are not 0), ties by index.
//
// Source: A. F. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; the
// sparsifier of most baselines that the five papers compare with.
//
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

/// Takes `k` units, or where that is 0 the share `ratio` of them; more at the start, by the ramp.
class ByShare : public Sparsifier {
 public:
  ByShare(Inner inner, const Options& options, std::size_t width, std::size_t k = 0)
      : Sparsifier(std::move(inner), width),
        ratio_(options.real("ratio", kSmallestRatio, 1)),
        k_(k),
        ramp_(options) {}

 protected:
  std::size_t wanted(std::size_t units, std::uint64_t step) const override {
    return ramp_.units_at(step, k_ != 0 ? std::min(k_, units) : share_of(ratio_, units), units);
  }

 private:
  double ratio_;
  std::size_t k_;
  Ramp ramp_;
};

class TopK final : public ByShare {
 public:
  using ByShare::ByShare;

 protected:
  RowSparse select(BucketId, Span<const float> gradient, Span<const float> residual, std::size_t wanted,
                   Step& step) override {
    const Selection largest = select_largest(step.executor, step.workspace, gradient, residual, wanted);
    return {largest.indices, largest.values, gradient.size(), 1};
  }
};

class BlockTopK final : public ByShare {
 public:
  using ByShare::ByShare;

 protected:
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
    const auto k = static_cast<std::size_t>(options.integer("k", 0, 0xffffffff));
    return std::make_unique<TopK>(std::move(inner), options, 1, k);
  };
  return info;
}

SystemInfo block_top_k_info() {
  SystemInfo info = sparsifier_info();
  info.name = "block_top_k";
  info.summary = "the blocks with the largest norms of each rank; the rest waits in the residual";
  info.paper = "S2 Reducer section 2.2; Vogels et al., NeurIPS 2019";
  info.options = {{"ratio", "0.03125", "share of a bucket's blocks to deliver, above 0, up to 1"},
                  {"block", "256", "elements per block"}};
  for (auto& option : Ramp::options()) info.options.push_back(std::move(option));
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    const auto block = static_cast<std::size_t>(options.integer("block", 1, 1 << 20));
    return std::make_unique<BlockTopK>(std::move(inner), options, block);
  };
  return info;
}

}  // namespace thinwire

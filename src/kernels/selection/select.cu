// Selections on a CUDA device. A pass over all elements lists, tile by tile, where those lie that reach a
// threshold (two bytes each); a sum over the tiles tells how many there are and where each goes. The choice
// among them and the output, which may lie in host memory, concern those alone.

#include "kernels/selection/select.h"

#include <algorithm>
#include <optional>

#include "kernels/device/device.h"
#include "kernels/device/device_algorithms.h"
#include "kernels/selection/radix_cut.h"

namespace thinwire {
using namespace cuda;
namespace {

/// Lists of every tile the offsets of elements that reach max(least, state's bits), and counts them. counts:
/// [tiles + 1], of which the last becomes 0.
THINWIRE_KERNEL void list_kernel(SelectInput input, std::uint32_t least, const RadixState* state,
                                 std::size_t tiles, Writes<std::uint16_t> offsets,
                                 Writes<std::uint32_t> counts) {
  if (state != nullptr) least = least > state->bits ? least : state->bits;
  const bool aligned = aligned_for_four(input.gradient) && aligned_for_four(input.residual);
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::size_t first = first_element(tile);
    unsigned flags[kGroups];
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      float p[4];
      load_four(input, aligned, first + g * 4 * kWarp, p);
      flags[g] = 0;
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) flags[g] |= (magnitude_at(p[c]) >= least ? 1u : 0u) << c;
    }
    const TileRanks ranks(flags);
    if (threadIdx.x == 0) counts[tile] = ranks.total;
    if (ranks.total == 0) continue;
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      std::size_t at = tile * kTile + ranks.groups[g];
      const std::size_t offset = first + g * 4 * kWarp - tile * kTile;
      for (unsigned c = 0; c < 4; ++c) {
        if ((flags[g] >> c & 1) != 0) offsets[at++] = static_cast<std::uint16_t>(offset + c);
      }
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) counts[tiles] = 0;
}

/// Thread k finds the tile of the k-th listed element and looks it up.
THINWIRE_KERNEL void gather_kernel(SelectInput input, Reads<std::uint16_t> offsets,
                                   Reads<std::uint32_t> before, std::size_t tiles, std::size_t count,
                                   Writes<std::uint32_t> indices, Writes<float> values) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    // before[low] <= k < before[high].
    std::size_t low = 0;
    std::size_t high = tiles;
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      (before[middle] <= k ? low : high) = middle;
    }
    const std::size_t i = low * kTile + offsets[low * kTile + (k - before[low])];
    indices[k] = static_cast<std::uint32_t>(i);
    values[k] = sum_at(input.gradient, input.residual, i);
  }
}

// ---------------------------------------------------------------------------------------------------------

/// Room for a selection, of just its size.
class Output {
 public:
  Output(CudaExecutor& executor, Workspace& workspace, std::size_t count)
      : executor_(executor),
        selection_{workspace.take<std::uint32_t>(count), workspace.take<float>(count)},
        indices(executor, selection_.indices),
        values(executor, selection_.values) {}

  /// Waits.
  Selection finish() {
    indices.write_back();
    values.write_back();
    executor_.wait();
    return selection_;
  }

 private:
  CudaExecutor& executor_;
  Selection selection_;

 public:
  Operand<std::uint32_t> indices;
  Operand<float> values;
};

/// The elements that reach a threshold.
class Candidates {
 public:
  /// Those of at least max(least, state's bits); state may be null. Waits.
  Candidates(CudaExecutor& executor, const SelectInput& input, std::uint32_t least, const RadixState* state)
      : executor_(executor),
        input_(input),
        tiles_(tiles_of(input.count)),
        offsets_(executor, input.count),
        before_(executor, tiles_ + 1) {
    {
      const Scratch<std::uint32_t> counts(executor, tiles_ + 1);
      launch(executor.stream(), grid_of_tiles(tiles_), list_kernel, input, std::max(least, 1u), state, tiles_,
             offsets_.data(), counts.data());
      exclusive_sum(executor, counts.data(), before_.data(), tiles_ + 1);
    }
    auto* results = static_cast<std::uint32_t*>(executor.results(2 * sizeof(std::uint32_t)));
    results[1] = 0;
    submit_copy(executor, before_.data() + tiles_, results, 1, "a result could not be copied");
    if (state != nullptr) {
      submit_copy(executor, &state->bits, results + 1, 1, "a result could not be copied");
    }
    executor.wait();
    size_ = results[0];
    least_ = std::max({least, results[1], 1u});
  }

  std::size_t size() const { return size_; }
  /// What they were chosen by, 1 at least.
  std::uint32_t least() const { return least_; }

  /// All of them. Waits.
  Selection all(Workspace& workspace) const {
    Output out(executor_, workspace, size_);
    gather(out.indices.data(), out.values.data());
    return out.finish();
  }

  /// The k largest; state: the cut that keeps them, or null to find it. Waits.
  Selection largest(Workspace& workspace, std::size_t k, const RadixState* state) const {
    if (k >= size_) return all(workspace);
    const Scratch<std::uint32_t> indices(executor_, size_);
    const Scratch<float> values(executor_, size_);
    gather(indices.data(), values.data());
    std::optional<RadixCut> cut;
    if (state == nullptr) {
      cut.emplace(executor_, SelectInput{values.data(), nullptr, size_}, k);
      state = cut->state();
    }
    Output out(executor_, workspace, k);
    keep_largest(executor_, indices.data(), values.data(), size_, state, out.indices.data(),
                 out.values.data());
    return out.finish();
  }

 private:
  void gather(std::uint32_t* indices, float* values) const {
    launch(executor_.stream(), grid_for(size_), gather_kernel, input_, offsets_.data(), before_.data(),
           tiles_, size_, indices, values);
  }

  CudaExecutor& executor_;
  SelectInput input_;
  std::size_t tiles_;
  Scratch<std::uint16_t> offsets_;
  Scratch<std::uint32_t> before_;
  std::size_t size_ = 0;
  std::uint32_t least_ = 1;
};

THINWIRE_KERNEL void sample_kernel(SelectInput input, std::uint32_t seed, double stride, std::size_t sample,
                                   Writes<float> values) {
  for (std::size_t s = thread_of_grid(); s < sample; s += threads_of_grid()) {
    values[s] = sum_at(input.gradient, input.residual, sample_position(s, seed, stride, input.count));
  }
}

/// The cut of the `rank` largest of a sample, 0 < rank < sample.
RadixCut sampled_cut(CudaExecutor& executor, const SelectInput& input, std::size_t sample, std::size_t rank,
                     std::uint32_t seed) {
  const Scratch<float> values(executor, sample);
  const double stride = static_cast<double>(input.count) / static_cast<double>(sample);
  launch(executor.stream(), grid_for(sample), sample_kernel, input, seed, stride, sample, values.data());
  return RadixCut(executor, {values.data(), nullptr, sample}, rank);
}

Selection select_at_least(CudaExecutor& executor, Workspace& workspace, const SelectInput& input,
                          std::uint32_t least_bits) {
  return Candidates(executor, input, least_bits, nullptr).all(workspace);
}

Selection select_largest(CudaExecutor& executor, Workspace& workspace, const SelectInput& input,
                         std::size_t k) {
  if (k == 0) return {};
  if (k >= input.count) return select_at_least(executor, workspace, input, 1);
  if (input.count > kSelectSmall) {
    const std::size_t sample = sample_size(input.count, k);
    const std::size_t rank = sample_rank(input.count, k, sample, kSelectSafety);
    if (rank == 0 || rank == sample) {
      return Candidates(executor, input, 1, nullptr).largest(workspace, k, nullptr);
    }
    const RadixCut threshold = sampled_cut(executor, input, sample, rank, 0);
    const Candidates candidates(executor, input, 1, threshold.state());
    if (candidates.size() >= k || candidates.least() == 1) return candidates.largest(workspace, k, nullptr);
  }
  const RadixCut cut(executor, input, k);
  return Candidates(executor, input, 1, cut.state()).largest(workspace, k, cut.state());
}

/// Operands in the device's own memory, which several passes read.
struct ResidentInput {
  Resident<const float> gradient;
  Resident<const float> residual;

  ResidentInput(CudaExecutor& executor, Span<const float> g, Span<const float> r)
      : gradient(executor, g), residual(executor, r), count(g.size()) {}
  operator SelectInput() const { return {gradient.data(), residual.data(), count}; }

  std::size_t count;
};

}  // namespace

MagnitudeCut cut_of_largest_on_cuda(Executor& executor, Span<const float> gradient,
                                    Span<const float> residual, std::size_t k) {
  if (k == 0) return {.bits = 0x7fffffffu, .ties = 0};
  if (k >= gradient.size()) return {};
  CudaExecutor& own = executor_on_device(executor);
  return RadixCut(own, ResidentInput(own, gradient, residual), k).read();
}

Selection select_at_least_on_cuda(Executor& executor, Workspace& workspace, Span<const float> gradient,
                                  Span<const float> residual, std::uint32_t least_bits) {
  CudaExecutor& own = executor_on_device(executor);
  return select_at_least(own, workspace, ResidentInput(own, gradient, residual), least_bits);
}

std::uint32_t sampled_threshold_on_cuda(Executor& executor, Workspace&, Span<const float> gradient,
                                        Span<const float> residual, std::size_t k, std::size_t sample,
                                        double safety, std::uint32_t seed) {
  const std::size_t rank = sample_rank(gradient.size(), k, sample, safety);
  if (rank == 0 || rank == sample) return 0;
  CudaExecutor& own = executor_on_device(executor);
  return sampled_cut(own, ResidentInput(own, gradient, residual), sample, rank, seed).read().bits;
}

Selection select_largest_on_cuda(Executor& executor, Workspace& workspace, Span<const float> gradient,
                                 Span<const float> residual, std::size_t k) {
  CudaExecutor& own = executor_on_device(executor);
  return select_largest(own, workspace, ResidentInput(own, gradient, residual), k);
}

}  // namespace thinwire

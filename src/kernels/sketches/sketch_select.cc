#include "kernels/sketches/sketch_select.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/device/on_device.h"
#include "kernels/rows/bitmap.h"
#include "kernels/selection/select_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sketches/sketch_select.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/sketches/count_sketch-inl.h"

#ifndef THINWIRE_KERNELS_SKETCH_SELECT_ONCE
#define THINWIRE_KERNELS_SKETCH_SELECT_ONCE
namespace thinwire {

/// Of 64 neighbouring cells of a row, bit i of the i-th: whether its magnitude reaches the threshold, and
/// whether it is negative. The bits of a row go on into its beginning, as runs do.
struct CellBits {
  std::uint64_t large;
  std::uint64_t negative;
};

struct SelectTask {
  const CountSketch* sketch;
  const float* table;
  const CellBits* bits;
  std::size_t bits_per_row;  // CellBits
  std::uint32_t least;
  const MedianNetwork* network;
};

}  // namespace thinwire
#endif

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// words[w]: cells [64 w, 64 w + 64) of a row of `columns`, modulo columns.
void MarkCells(Reads<float> cells, std::size_t columns, std::uint32_t least, Writes<CellBits> words,
               std::size_t count) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(di, 0x7fffffff);
  const auto below = hn::Set(di, static_cast<std::int32_t>(least) - 1);
  for (std::size_t w = 0; w < count; ++w) {
    const std::size_t begin = w * 64;
    CellBits word{0, 0};
    if (begin + 64 <= columns) {
      for (std::size_t i = 0; i < 64; i += lanes) {
        const auto bits = hn::BitCast(di, hn::LoadU(d, cells + begin + i));
        word.large |= mask_to_word(di, hn::Gt(hn::And(bits, magnitude), below), i);
        word.negative |= mask_to_word(di, hn::Lt(bits, hn::Zero(di)), i);
      }
    } else {
      for (std::size_t i = 0; i < 64; ++i) {
        const float cell = cells[(begin + i) % columns];
        word.large |= std::uint64_t{magnitude_bits(cell) >= least ? 1u : 0u} << i;
        word.negative |= std::uint64_t{std::signbit(cell) ? 1u : 0u} << i;
      }
    }
    words[w] = word;
  }
}

/// 64 consecutive bits from bit `shift` of the first word on.
HWY_INLINE std::uint64_t Bits(std::uint64_t first, std::uint64_t second, std::size_t shift) {
  return first >> shift | (second << 1) << (63 - shift);
}

/// How often bits were set, per bit of 64 and per run, up to `needed`, for positive and negative estimates.
/// Counters are 4 bits in 4 words; they start so that the needed-th bit makes them overflow.
template <class D, class V = hn::Vec<D>>
struct Votes {
  V bit0, bit1, bit2, bit3, reached;

  HWY_INLINE Votes(D d, std::size_t needed) {
    const std::size_t start = 16 - needed;
    auto bit = [&](std::size_t i) HWY_ATTR { return hn::Set(d, std::uint64_t{0} - ((start >> i) & 1)); };
    bit0 = bit(0);
    bit1 = bit(1);
    bit2 = bit(2);
    bit3 = bit(3);
    reached = hn::Zero(d);
  }

  HWY_INLINE void Add(V votes) {
    auto carry = hn::And(bit0, votes);
    bit0 = hn::Xor(bit0, votes);
    const auto carry1 = hn::And(bit1, carry);
    bit1 = hn::Xor(bit1, carry);
    const auto carry2 = hn::And(bit2, carry1);
    bit2 = hn::Xor(bit2, carry1);
    reached = hn::Or(reached, hn::And(bit3, carry2));
    bit3 = hn::Xor(bit3, carry2);
  }
};

/// What the rows say of the elements of kBatch runs: bit t of word k of element t of run k.
struct SelectBatch {
  RunHashes hashes[kMostSketchRows];
  HWY_ALIGN std::uint64_t positive[kMostSketchRows][kBatch];
  HWY_ALIGN std::uint64_t negative[kMostSketchRows][kBatch];
  HWY_ALIGN std::uint64_t reached[kBatch];  // those whose median may reach the threshold
};

/// Looks up the marks of `size` runs from `first_run` on: which rows say that an element reaches the
/// threshold, above 0 or below.
HWY_INLINE void LookUpMarks(const SelectTask& task, std::size_t first_run, std::size_t size,
                            SelectBatch& batch) {
  HWY_ALIGN std::uint32_t runs[kBatch] = {};
  for (std::size_t k = 0; k < size; ++k) runs[k] = static_cast<std::uint32_t>(first_run + k);
  for (std::size_t row = 0; row < task.sketch->rows; ++row) {
    HashRuns(*task.sketch, row, runs, size, batch.hashes[row]);
    Reads<CellBits> bits = task.bits + row * task.bits_per_row;
    for (std::size_t k = 0; k < size; ++k) {
      const std::uint32_t start = batch.hashes[row].starts[k];
      Reads<CellBits> word = bits + start / 64;
      const std::uint64_t large = Bits(word[0].large, word[1].large, start % 64);
      const std::uint64_t flipped =
          Bits(word[0].negative, word[1].negative, start % 64) ^ batch.hashes[row].signs[k];
      batch.positive[row][k] = large & ~flipped;
      batch.negative[row][k] = large & flipped;
    }
  }
}

/// Finds the elements that enough rows speak for. The runs hold `elements`.
HWY_INLINE void CountVotes(const CountSketch& sketch, std::size_t size, std::size_t elements,
                           SelectBatch& batch) {
  // The median reaches the threshold only if that many rows do: with an even number, the upper middle must.
  const std::size_t needed = (sketch.rows + 1) / 2;
  const HWY_CAPPED(std::uint64_t, kBatch) du;
  for (std::size_t k = 0; k < size; k += hn::Lanes(du)) {
    Votes above(du, needed);
    Votes under(du, needed);
    for (std::size_t row = 0; row < sketch.rows; ++row) {
      above.Add(hn::Load(du, batch.positive[row] + k));
      under.Add(hn::Load(du, batch.negative[row] + k));
    }
    hn::Store(hn::Or(above.reached, under.reached), du, batch.reached + k);
  }
  const std::size_t length = sketch.run_length;
  batch.reached[size - 1] &= ~std::uint64_t{0} >> (64 - std::min(length, elements - (size - 1) * length));
  if (length < 64) {
    for (std::size_t k = 0; k < size; ++k) batch.reached[k] &= (std::uint64_t{1} << length) - 1;
  }
}

/// Elements that many rows speak for wait here until there are enough for vectors of medians.
class Candidates {
 public:
  HWY_INLINE Candidates(const SelectTask& task, Writes<std::uint32_t> indices, Writes<float> values)
      : task_(task), indices_(indices), values_(values) {}

  /// Takes those of the batch as long as there is room, and forgets them there; from run `k` on, which moves.
  /// first: the batch's first element. Returns whether there is no room left.
  HWY_INLINE bool Take(SelectBatch& batch, std::size_t first, std::size_t size, std::size_t& k) {
    const CountSketch& sketch = *task_.sketch;
    std::uint8_t of_run[kLongestRun];
    std::uint8_t in_run[kLongestRun];
    std::size_t count = 0;
    for (; k < size; ++k) {
      std::uint64_t& reached = batch.reached[k];
      for (; reached != 0 && waits_ + count < kLongestRun; reached &= reached - 1) {
        const int bit = std::countr_zero(reached);
        of_run[count] = static_cast<std::uint8_t>(k);
        in_run[count] = static_cast<std::uint8_t>(bit);
        waiting_[waits_ + count] =
            static_cast<std::uint32_t>(first + k * sketch.run_length) + static_cast<std::uint32_t>(bit);
        ++count;
      }
      if (reached != 0) break;
    }
    for (std::size_t row = 0; row < sketch.rows; ++row) {
      const RunHashes& hashes = batch.hashes[row];
      Reads<float> cells = task_.table + row * sketch.columns;
      Writes<float> out = estimates_ + row * kLongestRun + waits_;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t column = std::size_t{hashes.starts[of_run[i]]} + in_run[i];
        const std::uint64_t sign = hashes.signs[of_run[i]] >> in_run[i] << 63 >> 32;
        const float cell = cells[column < sketch.columns ? column : column - sketch.columns];
        out[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(cell) ^ static_cast<std::uint32_t>(sign));
      }
    }
    waits_ += count;
    return waits_ == kLongestRun;
  }

  /// Keeps those whose medians reach the threshold.
  HWY_INLINE void Flush() {
    Medians(*task_.network, task_.sketch->rows, estimates_, waits_, medians_);
    for (std::size_t i = 0; i < waits_; ++i) {
      indices_[chosen_] = waiting_[i];
      values_[chosen_] = medians_[i];
      chosen_ += magnitude_bits(medians_[i]) >= task_.least ? 1 : 0;
    }
    waits_ = 0;
  }

  std::size_t chosen() const { return chosen_; }

 private:
  const SelectTask& task_;
  Writes<std::uint32_t> indices_;
  Writes<float> values_;
  HWY_ALIGN float estimates_[kMostSketchRows * kLongestRun] = {};
  HWY_ALIGN float medians_[kLongestRun];
  std::uint32_t waiting_[kLongestRun];
  std::size_t waits_ = 0;
  std::size_t chosen_ = 0;
};

/// Elements of at least task.least among [begin, end); begin is the start of a run. Returns how many.
std::size_t SelectPart(const SelectTask& task, std::size_t begin, std::size_t end,
                       Writes<std::uint32_t> indices, Writes<float> values) {
  const std::size_t length = task.sketch->run_length;
  SelectBatch batch;
  Candidates candidates(task, indices, values);
  for (std::size_t first = begin; first < end; first += kBatch * length) {
    const std::size_t size = std::min(kBatch, (end - first + length - 1) / length);
    LookUpMarks(task, first / length, size, batch);
    CountVotes(*task.sketch, size, end - first, batch);
    for (std::size_t k = 0; candidates.Take(batch, first, size, k);) candidates.Flush();
  }
  candidates.Flush();
  return candidates.chosen();
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(MarkCells);
HWY_EXPORT(SelectPart);

namespace {

/// Halves of numbers below may be rounded, so that the mean of two that miss the threshold reaches it.
constexpr std::uint32_t kLeastToCount = std::bit_cast<std::uint32_t>(0x1p-100f);

/// Estimates of some elements, spread over the bucket in groups of neighbours (which share their hashes).
Span<const float> sample_estimates(Executor& executor, Workspace& workspace, const CountSketch& sketch,
                                   std::size_t elements, Span<const float> table, std::size_t sample) {
  constexpr std::size_t kGroup = 16;
  const std::size_t groups = elements / kGroup;
  const auto blocks = workspace.take<std::uint32_t>(std::min(groups, sample / kGroup));
  const double stride = static_cast<double>(groups) / static_cast<double>(blocks.size());
  // Multiples of the golden ratio have no period that could fall in with that of rows or channels.
  std::uint32_t phase = 0;
  for (std::size_t s = 0; s < blocks.size(); ++s, phase += kPhiloxWeyl0) {
    const double at = (static_cast<double>(s) + static_cast<double>(phase) * 0x1p-32) * stride;
    blocks[s] = static_cast<std::uint32_t>(std::min(groups - 1, static_cast<std::size_t>(at)));
  }
  const BlockList list{blocks, kGroup, elements};
  const auto estimates = workspace.take<float>(list.listed());
  query_blocks(executor, sketch, list, BlockLayout::packed, table, estimates);
  return estimates;
}

Selection by_estimating_all(Executor& executor, Workspace& workspace, const CountSketch& sketch,
                            std::size_t elements, Span<const float> table, std::size_t k) {
  const auto estimates = workspace.take<float>(elements);
  query(executor, sketch, table, estimates);
  return select_largest(executor, workspace, estimates, {}, k);
}

}  // namespace

Selection select_estimates_at_least(Executor& executor, Workspace& workspace, const CountSketch& sketch,
                                    std::size_t elements, Span<const float> table, std::uint32_t least_bits) {
  THINWIRE_ON_DEVICE(select_estimates_at_least, executor, workspace, sketch, elements, table, least_bits);
  if (least_bits < kLeastToCount) {
    const auto estimates = workspace.take<float>(elements);
    query(executor, sketch, table, estimates);
    return select_at_least(executor, workspace, estimates, {}, least_bits);
  }
  // A run may begin at the last column.
  const std::size_t bits_per_row = bitmap_words(sketch.columns + kLongestRun) + 1;
  const auto bits = workspace.take<CellBits>(sketch.rows * bits_per_row);
  executor.parallel_for(sketch.rows, 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      HWY_DYNAMIC_DISPATCH(MarkCells)
      (table.data() + row * sketch.columns, sketch.columns, least_bits, bits.data() + row * bits_per_row,
       bits_per_row);
    }
  });
  const MedianNetwork network = sketch.rows > 1 ? median_network(sketch.rows) : MedianNetwork{};
  const SelectTask task{&sketch, table.data(), bits.data(), bits_per_row, least_bits, &network};
  static_assert(kBlockElements % kLongestRun == 0, "blocks begin with a run");
  return select_by_blocks(executor, elements, room_for(workspace, elements),
                          [&](std::size_t begin, std::size_t end, std::uint32_t* indices, float* values) {
                            return HWY_DYNAMIC_DISPATCH(SelectPart)(task, begin, end, indices, values);
                          });
}

Selection select_largest_estimates(Executor& executor, Workspace& workspace, const CountSketch& sketch,
                                   std::size_t elements, Span<const float> table, std::size_t k) {
  THINWIRE_ON_DEVICE(select_largest_estimates, executor, workspace, sketch, elements, table, k);
  constexpr std::size_t kSmall = std::size_t{1} << 14;
  constexpr double kPassingSamples = 2048;  // how many there are is known to a few per cent
  constexpr double kSafety = 6;
  if (k == 0) return {};
  if (elements <= kSmall || k > elements / 8) {
    return by_estimating_all(executor, workspace, sketch, elements, table, k);
  }
  const double share = static_cast<double>(k) / static_cast<double>(elements);
  const auto sample =
      sample_estimates(executor, workspace, sketch, elements, table,
                       std::min(elements / 32, static_cast<std::size_t>(kPassingSamples / share)));
  const double passing = share * static_cast<double>(sample.size());
  const auto rank = static_cast<std::size_t>(passing + kSafety * (std::sqrt(passing) + 1));
  const MagnitudeCut likely = cut_of_largest(executor, sample, {}, rank);
  const Selection candidates =
      select_estimates_at_least(executor, workspace, sketch, elements, table, likely.bits);
  // Below 1 every estimate that is not 0 passes.
  if (candidates.size() < k && likely.bits > 1) {
    return by_estimating_all(executor, workspace, sketch, elements, table, k);
  }
  return apply_cut(candidates, cut_of_largest(executor, candidates.values, {}, k));
}

}  // namespace thinwire
#endif

#include "kernels/sketches/count_sketch.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sketches/count_sketch.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/sketches/count_sketch-inl.h"

#ifndef THINWIRE_KERNELS_COUNT_SKETCH_CC_ONCE
#define THINWIRE_KERNELS_COUNT_SKETCH_CC_ONCE
namespace thinwire {

/// What a kernel call works on.
struct SketchTask {
  const CountSketch* sketch;
  const BlockList* list;
  BlockLayout layout;
  const MedianNetwork* network;  // query with more than one row
};

}  // namespace thinwire
#endif

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// Cuts the listed elements [begin, end), counted along the list, into batches.
template <class Body>
HWY_INLINE void ForEachBatch(const SketchTask& task, std::size_t begin, std::size_t end, Body body) {
  const BlockList& list = *task.list;
  const auto shift = static_cast<unsigned>(std::countr_zero(task.sketch->run_length));
  const std::size_t run_mask = task.sketch->run_length - 1;
  Batch batch;
  std::fill_n(batch.runs, kBatch, 0u);
  std::size_t k = list.width == 0 ? 0 : begin / list.width;
  std::size_t inside = begin - k * list.width;
  for (std::size_t at = begin; at < end; ++k, inside = 0) {
    const std::size_t block_end = std::min(end, (k + 1) * list.width);
    std::size_t element = list.blocks[k] * list.width + inside;
    // Packed values lie where the list counts them, others at their element.
    const std::size_t displacement = task.layout == BlockLayout::packed ? at - element : std::size_t{0};
    while (at < block_end) {
      const std::size_t offset = element & run_mask;
      const std::size_t length = std::min(run_mask + 1 - offset, block_end - at);
      const std::size_t slot = batch.size++;
      batch.runs[slot] = static_cast<std::uint32_t>(element >> shift);
      batch.offsets[slot] = static_cast<std::uint32_t>(offset);
      batch.lengths[slot] = static_cast<std::uint32_t>(length);
      batch.firsts[slot] = element + displacement;
      element += length;
      at += length;
      if (batch.size == kBatch) {
        body(batch);
        batch.size = 0;
      }
    }
  }
  if (batch.size != 0) body(batch);
}

HWY_INLINE void PrefetchRun(const float* cells, std::size_t length) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  for (std::size_t i = 0; i < length; i += kLine) hwy::Prefetch(cells + i);
  hwy::Prefetch(cells + length - 1);
}

template <class D, class V>
HWY_INLINE V FlipSigns(D d, V values, std::uint64_t signs, std::size_t shift) {
  return hn::IfThenElse(word_to_mask(d, signs, shift), hn::Neg(values), values);
}

/// The end of a run that is not worth a masked vector.
constexpr std::size_t kFewElements = 3;

/// cells[i] += sign * (values[i] + residual[i]).
HWY_INLINE void AddRun(Writes<float> cells, Reads<float> values, Reads<float> residual, std::uint64_t signs,
                       std::size_t length) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= length; i += lanes) {
    const auto p = load_sum(d, values, residual, i);
    hn::StoreU(hn::Add(hn::LoadU(d, cells + i), FlipSigns(d, p, signs, i)), d, cells + i);
  }
  if (length - i > kFewElements) {
    const auto valid = hn::FirstN(d, length - i);
    auto p = hn::MaskedLoad(valid, d, values + i);
    if (residual != nullptr) p = hn::Add(p, hn::MaskedLoad(valid, d, residual + i));
    const auto sum = hn::Add(hn::MaskedLoad(valid, d, cells + i), FlipSigns(d, p, signs, i));
    hn::BlendedStore(sum, valid, d, cells + i);
    return;
  }
  for (; i < length; ++i) {
    const float p = sum_at(values, residual, i);
    cells[i] += ((signs >> i) & 1) != 0 ? -p : p;
  }
}

/// out[i] = sign * cells[i].
HWY_INLINE void FlipRun(Reads<float> cells, std::uint64_t signs, std::size_t length, Writes<float> out) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= length; i += lanes) {
    hn::StoreU(FlipSigns(d, hn::LoadU(d, cells + i), signs, i), d, out + i);
  }
  if (length - i > kFewElements) {
    const auto valid = hn::FirstN(d, length - i);
    hn::BlendedStore(FlipSigns(d, hn::MaskedLoad(valid, d, cells + i), signs, i), valid, d, out + i);
    return;
  }
  for (; i < length; ++i) out[i] = ((signs >> i) & 1) != 0 ? -cells[i] : cells[i];
}

/// Rows [first_row, last_row) and columns [first_column, last_column) of the table, for all listed elements.
void InsertPart(const SketchTask& task, Reads<float> values, Reads<float> residual, Writes<float> table,
                std::size_t first_row, std::size_t last_row, std::size_t first_column,
                std::size_t last_column) {
  const CountSketch& sketch = *task.sketch;
  ForEachBatch(task, 0, task.list->listed(), [&](const Batch& batch) HWY_ATTR {
    for (std::size_t row = first_row; row < last_row; ++row) {
      Writes<float> cells = table + row * sketch.columns;
      Hashes hashes;
      HashBatch(sketch, row, batch, hashes);
      for (std::size_t k = 0; k < batch.size; ++k) {
        const std::size_t column = hashes.columns[k];
        if (column + batch.lengths[k] <= first_column || column >= last_column) continue;
        PrefetchRun(cells + column, std::min<std::size_t>(batch.lengths[k], sketch.columns - column));
      }
      // Elements [from, to) of the run go to consecutive columns; adds those that fall into this part.
      auto add = [&](std::size_t k, std::size_t from, std::size_t to, std::size_t column) HWY_ATTR {
        const std::size_t begin = std::max(column, first_column);
        const std::size_t end = std::min(column + (to - from), last_column);
        if (begin >= end) return;
        const std::size_t skip = from + (begin - column);
        const std::size_t first = batch.firsts[k] + skip;
        AddRun(cells + begin, values + first, residual == nullptr ? nullptr : residual + first,
               hashes.signs[k] >> skip, end - begin);
      };
      for (std::size_t k = 0; k < batch.size; ++k) {
        const std::size_t length = batch.lengths[k];
        const std::size_t until_end = std::min(length, sketch.columns - hashes.columns[k]);
        add(k, 0, until_end, hashes.columns[k]);
        if (until_end < length) add(k, until_end, length, 0);
      }
    }
  });
}

/// Listed elements [begin, end), counted along the list.
void QueryPart(const SketchTask& task, Reads<float> table, Writes<float> values, std::size_t begin,
               std::size_t end) {
  const CountSketch& sketch = *task.sketch;
  auto flip = [&](const float* cells, std::size_t column, std::uint64_t signs, std::size_t length, float* out)
                  HWY_ATTR {
                    const std::size_t until_end = std::min(length, sketch.columns - column);
                    FlipRun(cells + column, signs, until_end, out);
                    if (until_end < length)
                      FlipRun(cells, signs >> until_end, length - until_end, out + until_end);
                  };
  if (sketch.rows == 1) {
    ForEachBatch(task, begin, end, [&](const Batch& batch) HWY_ATTR {
      Hashes hashes;
      HashBatch(sketch, 0, batch, hashes);
      for (std::size_t k = 0; k < batch.size; ++k) {
        PrefetchRun(table + hashes.columns[k],
                    std::min<std::size_t>(batch.lengths[k], sketch.columns - hashes.columns[k]));
      }
      for (std::size_t k = 0; k < batch.size; ++k) {
        flip(table, hashes.columns[k], hashes.signs[k], batch.lengths[k], values + batch.firsts[k]);
      }
    });
    return;
  }
  HWY_ALIGN float estimates[kMostSketchRows * kLongestRun] = {};
  Hashes hashes[kMostSketchRows];
  ForEachBatch(task, begin, end, [&](const Batch& batch) HWY_ATTR {
    for (std::size_t row = 0; row < sketch.rows; ++row) {
      HashBatch(sketch, row, batch, hashes[row]);
    }
    for (std::size_t k = 0; k < batch.size; ++k) {
      for (std::size_t row = 0; row < sketch.rows; ++row) {
        if (k + 1 < batch.size) {
          const std::size_t column = hashes[row].columns[k + 1];
          PrefetchRun(table + row * sketch.columns + column,
                      std::min<std::size_t>(batch.lengths[k + 1], sketch.columns - column));
        }
        flip(table + row * sketch.columns, hashes[row].columns[k], hashes[row].signs[k], batch.lengths[k],
             estimates + row * kLongestRun);
      }
      Medians(*task.network, sketch.rows, estimates, batch.lengths[k], values + batch.firsts[k]);
    }
  });
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(InsertPart);
HWY_EXPORT(QueryPart);

namespace {

constexpr std::uint32_t kOnlyBlock[] = {0};

BlockList whole_bucket(std::size_t elements) {
  return {Span<const std::uint32_t>(kOnlyBlock, elements == 0 ? 0 : 1), elements, elements};
}

void require_countable(const CountSketch& sketch, const BlockList& list) {
  if (list.elements / sketch.run_length > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("a bucket of " + std::to_string(list.elements) + " elements has more than " +
                                "2^32 runs of " + std::to_string(sketch.run_length) +
                                ": split it or take longer runs");
  }
}

}  // namespace

static bool on_device(const BlockList& list) {
  return on_device(list.blocks);
}

std::size_t BlockList::listed() const {
  if (blocks.empty()) return 0;
  // Only the bucket's last block may be shorter, and it can only be the last of the list.
  const std::size_t last = blocks[blocks.size() - 1] * width;
  return (blocks.size() - 1) * width + std::min(width, elements - last);
}

CountSketch make_count_sketch(const RandomStream& stream, std::size_t rows, std::size_t columns,
                              std::size_t longest_run) {
  auto refuse = [](const char* what, std::size_t value, const std::string& wanted) {
    throw std::invalid_argument("a count sketch with " + std::to_string(value) + " " + what + ": it takes " +
                                wanted);
  };
  if (rows < 1 || rows > kMostSketchRows) refuse("rows", rows, "1 to " + std::to_string(kMostSketchRows));
  if (columns < 1 || columns > std::numeric_limits<std::uint32_t>::max()) {
    refuse("columns", columns, "1 to 2^32 - 1");
  }
  if (longest_run < 1 || longest_run > kLongestRun || !std::has_single_bit(longest_run)) {
    refuse("elements per run", longest_run, "a power of two up to " + std::to_string(kLongestRun));
  }
  return {.stream = stream,
          .rows = rows,
          .columns = columns,
          .run_length = std::min(longest_run, std::bit_floor(columns))};
}

void insert_blocks(Executor& executor, const CountSketch& sketch, const BlockList& list, BlockLayout layout,
                   Span<const float> values, Span<const float> residual, Span<float> table) {
  require_countable(sketch, list);
  if (list.blocks.empty()) return;
  THINWIRE_ON_DEVICE(insert_blocks, executor, sketch, list, layout, values, residual, table);
  const SketchTask task{&sketch, &list, layout, nullptr};
  // A range is some rows and some columns of the table: no two threads add to one cell, and hashing every run
  // once per range costs a tenth of adding its elements.
  const auto threads = static_cast<std::size_t>(executor.concurrency());
  const std::size_t parts = threads == 1 ? 1 : (2 * threads + sketch.rows - 1) / sketch.rows;
  const std::size_t rows_at_once = threads == 1 ? sketch.rows : 1;
  executor.parallel_for(sketch.rows / rows_at_once * parts, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t range = begin; range < end; ++range) {
      const std::size_t row = range / parts * rows_at_once;
      const std::size_t part = range % parts;
      HWY_DYNAMIC_DISPATCH(InsertPart)
      (task, values.data(), data_at(residual), table.data(), row, row + rows_at_once,
       sketch.columns * part / parts, sketch.columns * (part + 1) / parts);
    }
  });
}

void query_blocks(Executor& executor, const CountSketch& sketch, const BlockList& list, BlockLayout layout,
                  Span<const float> table, Span<float> values) {
  require_countable(sketch, list);
  if (list.blocks.empty()) return;
  THINWIRE_ON_DEVICE(query_blocks, executor, sketch, list, layout, table, values);
  constexpr std::size_t kElementsPerRange = std::size_t{1} << 14;
  const MedianNetwork network = sketch.rows > 1 ? median_network(sketch.rows) : MedianNetwork{};
  const SketchTask task{&sketch, &list, layout, &network};
  executor.parallel_for(list.listed(), kElementsPerRange, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(QueryPart)(task, table.data(), values.data(), begin, end);
  });
}

void insert(Executor& executor, const CountSketch& sketch, Span<const float> values,
            Span<const float> residual, Span<float> table) {
  insert_blocks(executor, sketch, whole_bucket(values.size()), BlockLayout::in_bucket, values, residual,
                table);
}

void query(Executor& executor, const CountSketch& sketch, Span<const float> table, Span<float> values) {
  query_blocks(executor, sketch, whole_bucket(values.size()), BlockLayout::in_bucket, table, values);
}

}  // namespace thinwire
#endif

#pragma once
// Count sketches: a long vector folded into a short table by random signs and random columns. Tables of the
// same hashes add up, so a plain all-reduce of tables sums vectors.
//
// Source: M. Charikar, K. Chen, M. Farach-Colton, "Finding frequent items in data streams", ICALP 2002. Here
// elements are hashed in runs, so that memory is touched by lines and not by floats.

#include "core/philox.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

inline constexpr std::size_t kMostSketchRows = 31;
inline constexpr std::size_t kLongestRun = 64;

/// The hashes of a sketch. Element e belongs to run r = e / run_length and is number t = e % run_length of
/// it. With w = stream.block(r, j), row j holds it at column (start + t) mod columns, where start =
/// floor(x * columns / 2^64) and x = w[0] + 2^32 w[1]; its sign there is -1 where bit t of w[2] + 2^32 w[3]
/// is set.
///
/// Starts are uniform over all columns, so two elements of different runs share a column with probability
/// 1/columns, as if each were hashed by itself; two of the same run never do.
struct CountSketch {
  RandomStream stream{};
  std::size_t rows = 1;         ///< 1 to kMostSketchRows.
  std::size_t columns = 1;      ///< 1 to 2^32 - 1.
  std::size_t run_length = 64;  ///< A power of two, at most kLongestRun and at most columns.

  constexpr std::size_t cells() const { return rows * columns; }
};

/// Where a run begins in a row, and the signs of its elements, bit t that of element t.
struct SketchRun {
  std::uint32_t start;
  std::uint64_t signs;
};

constexpr SketchRun hash_run(const CountSketch& sketch, std::uint32_t run, std::uint32_t row) {
  const PhiloxCounter w = sketch.stream.block(run, row);
  // The high 32 bits of (w[0] + 2^32 w[1]) * columns, which has 96.
  const std::uint64_t low = std::uint64_t{w[0]} * sketch.columns;
  const std::uint64_t high = std::uint64_t{w[1]} * sketch.columns + (low >> 32);
  return {static_cast<std::uint32_t>(high >> 32), w[2] | std::uint64_t{w[3]} << 32};
}

/// The sketch of at most this run length whose runs fit into its columns. Throws std::invalid_argument for
/// rows, columns or run lengths out of range.
CountSketch make_count_sketch(const RandomStream& stream, std::size_t rows, std::size_t columns,
                              std::size_t longest_run);

/// Some blocks of a bucket of `elements`: block b covers [b * width, min((b + 1) * width, elements)).
struct BlockList {
  Span<const std::uint32_t> blocks{};  ///< Ascending and distinct, none beyond the bucket.
  std::size_t width = 1;
  std::size_t elements = 0;

  /// Number of elements of the listed blocks; those before block k of the list are k * width.
  std::size_t listed() const;
};

/// Where the values of listed blocks lie.
enum class BlockLayout : std::uint8_t {
  packed,    ///< One listed block after the other: [list.listed()].
  in_bucket  ///< At their place in the whole bucket: [list.elements].
};

/// table[j * columns + column] += sign * p for every listed element and row j, with p = values + residual;
/// residual may be empty. table: [cells()]. The same bits for any number of threads and on CUDA devices: each
/// column adds its elements in ascending order. Throws std::invalid_argument for buckets of 2^32 or more
/// runs.
void insert_blocks(Executor& executor, const CountSketch& sketch, const BlockList& list, BlockLayout layout,
                   Span<const float> values, Span<const float> residual, Span<float> table);

/// values = estimate of every listed element: the median over rows j of sign * table[j * columns + column],
/// with an even number of rows the mean of the two middle ones. values of other blocks are left alone.
/// Throws as insert_blocks does.
void query_blocks(Executor& executor, const CountSketch& sketch, const BlockList& list, BlockLayout layout,
                  Span<const float> table, Span<float> values);

/// insert_blocks and query_blocks for all elements of a bucket.
void insert(Executor& executor, const CountSketch& sketch, Span<const float> values,
            Span<const float> residual, Span<float> table);
void query(Executor& executor, const CountSketch& sketch, Span<const float> table, Span<float> values);

}  // namespace thinwire

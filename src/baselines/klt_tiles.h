#pragma once
// How klt cuts a bucket into tiles, whose rows have directions of their own, and what it has learned of
// these.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/codes/rounded_levels.h"
#include "kernels/dense/multiply_rows.h"
#include "thinwire/state.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

/// The same rows, to read.
inline RowsOf<const float> read(const RowsOf<float>& rows) {
  return {rows.values, rows.stride};
}

/// Of tiles and of groups of rows.
inline constexpr std::size_t kMostTileWidth = 128;
/// A matrix with more rows than so many times its columns is a table. Few of its rows have large gradients at
/// the same time, so they have no directions among each other.
inline constexpr std::size_t kMostRowsPerColumn = 6;

/// A number of steps that float still counts to. Behind it counting goes on from the half.
inline constexpr float kMostStepsCounted = 1 << 23;

/// Rows of a tile that share a step. What is learned of them: where they have directions among each other,
/// these, one to a row [rows * rows], and what coefficients along them have in common [rows * rows]; then
/// each row's length [rows].
struct RowGroup {
  std::size_t begin = 0;  ///< Its first row.
  std::size_t rows = 0;   ///< A power of two.
  bool turned = false;    ///< Whether they have directions among each other.
  std::size_t learned = 0;

  std::size_t squared() const { return turned ? rows * rows : 0; }
  std::size_t lengths() const { return learned + 2 * squared(); }  ///< Where they begin.
};

/// A part of a parameter whose rows have directions of their own. What is learned of it: these, one to a row
/// [width * width]; what rows have in common along them [width * width]; then of each of its groups; and from
/// how many steps.
struct Tile {
  std::size_t parameter = 0;
  std::size_t begin = 0;    ///< Of its first element in the bucket.
  std::size_t stride = 0;   ///< From one of the parameter's rows to the next.
  bool transposed = false;  ///< Its rows are the parameter's columns.
  std::size_t rows = 1;
  std::size_t width = 0;
  bool turned = false;           ///< Without: one row, and no directions.
  bool table = false;            ///< Its rows have no directions among each other.
  std::size_t coefficients = 0;  ///< Where they begin: at a whole block.
  std::size_t learned = 0;       ///< Where it begins.

  std::size_t elements() const { return rows * width; }
  std::size_t squared() const { return turned ? width * width : 0; }

  /// body(group), from the first rows on. Each is whole blocks of coefficients. Rows that are left over
  /// belong to none. Returns where what is learned of them ends.
  template <class Body>
  std::size_t for_groups(Body&& body) const {
    std::size_t next = learned + 2 * squared();
    for (std::size_t row = 0; turned && row < rows;) {
      const std::size_t size = std::min(kMostTileWidth, std::bit_floor(rows - row));
      if (size < 2 || size * width < kSteppedBlock) break;
      const RowGroup group{row, size, !table, next};
      body(group);
      next = group.lengths() + size;
      row += size;
    }
    return next;
  }
  /// Where the number of steps is.
  std::size_t steps() const {
    return for_groups([](const RowGroup&) {});
  }
  std::size_t learned_end() const { return turned ? steps() + 1 : learned; }
};

/// How a bucket is cut into tiles. Parameters: a Step or a Workload.
template <class Parameters>
class TileCut {
 public:
  TileCut(const Parameters& parameters, std::size_t elements) : parameters_(parameters), elements_(elements) {
    for_each([&](const Tile& tile) {
      coefficients_ = after(tile);
      largest_ = std::max(largest_, tile.turned ? tile.elements() : 0);
      learned_ = tile.learned_end();
    });
  }

  /// body(tile) in the same order on all ranks.
  template <class Body>
  void for_each(Body&& body) const {
    Tile next;
    const auto add = [&](Tile tile) {
      tile.coefficients = next.coefficients;
      tile.learned = next.learned;
      body(static_cast<const Tile&>(tile));
      next.coefficients = after(tile);
      next.learned = tile.learned_end();
    };
    const auto ends = parameters_.parameter_ends;
    const auto rows = parameters_.parameter_rows;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < (ends.empty() ? 1 : ends.size()); ++i) {
      const std::size_t size = (ends.empty() ? elements_ : ends[i]) - begin;
      add_parameter(i, begin, size, rows.empty() ? 0 : rows[i], add);
      begin += size;
    }
  }

  std::size_t coefficients() const { return coefficients_; }  ///< With what fills up blocks.
  std::size_t learned() const { return learned_; }            ///< Floats of it.
  std::size_t largest() const { return largest_; }  ///< Elements of the largest tile with directions.

 private:
  static std::size_t after(const Tile& tile) {
    return tile.coefficients + stepped_blocks(tile.elements()) * kSteppedBlock;
  }

  template <class Add>
  static void add_parameter(std::size_t parameter, std::size_t begin, std::size_t size, std::size_t rows,
                            Add& add) {
    const std::size_t columns = rows == 0 ? 0 : size / rows;
    if (rows < 2 || columns < 2 || rows * columns != size) {
      if (size != 0) add({.parameter = parameter, .begin = begin, .stride = size, .width = size});
      return;
    }
    const bool transposed = rows < columns;
    const std::size_t shorter = std::min(rows, columns);
    for (std::size_t first = 0; first < shorter;) {
      const std::size_t width = std::min(kMostTileWidth, std::bit_floor(shorter - first));
      add({.parameter = parameter,
           .begin = begin + (transposed ? first * columns : first),
           .stride = columns,
           .transposed = transposed,
           .rows = std::max(rows, columns),
           .width = width,
           .turned = true,
           .table = std::max(rows, columns) > kMostRowsPerColumn * shorter});
      first += width;
    }
  }

  const Parameters& parameters_;
  std::size_t elements_;
  std::size_t coefficients_ = 0;
  std::size_t learned_ = 0;
  std::size_t largest_ = 0;
};

/// Where what is learned of each parameter ends, by its position; others have none.
template <class Parameters>
std::map<std::size_t, std::size_t> ends_of(const TileCut<Parameters>& cut) {
  std::map<std::size_t, std::size_t> ends;
  cut.for_each([&](const Tile& tile) {
    if (tile.turned) ends[tile.parameter] = tile.learned_end();
  });
  return ends;
}

/// body(n, directions) for each set of n directions: where it begins.
template <class Parameters, class Body>
void for_directions(const TileCut<Parameters>& cut, Body&& body) {
  cut.for_each([&](const Tile& tile) {
    if (!tile.turned) return;
    body(tile, tile.width, tile.learned);
    tile.for_groups([&](const RowGroup& group) {
      if (group.turned) body(tile, group.rows, group.learned);
    });
  });
}

/// What a bucket begins with: the axes, and nothing in common.
template <class Parameters>
std::vector<float> nothing_learned(const TileCut<Parameters>& cut) {
  std::vector<float> learned(cut.learned(), 0.0f);
  for_directions(cut, [&](const Tile&, std::size_t n, std::size_t begin) {
    for (std::size_t k = 0; k < n; ++k) learned[begin + k * (n + 1)] = 1;
  });
  return learned;
}

/// What cannot have been learned: a direction whose length is not near 1, a number of steps that is none, or
/// a value that is not finite; empty: nothing.
template <class Parameters>
std::string wrong_in(const TileCut<Parameters>& cut, const std::vector<float>& learned) {
  std::string wrong;
  for_directions(cut, [&](const Tile& tile, std::size_t n, std::size_t begin) {
    for (std::size_t k = 0; k < n; ++k) {
      const auto one = Span<const float>(learned).subspan(begin + k * n, n);
      double squares = 0;
      for (const float value : one) squares += static_cast<double>(value) * static_cast<double>(value);
      if (squares > 0.9 && squares < 1.1) continue;
      wrong = "number " + std::to_string(k) + " of parameter " + std::to_string(tile.parameter) +
              " has the squared length " + std::to_string(squares) + ", expected 1";
    }
  });
  cut.for_each([&](const Tile& tile) {
    if (!wrong.empty() || !tile.turned) return;
    const float steps = learned[tile.steps()];
    if (steps >= 0 && steps <= kMostStepsCounted && steps == std::floor(steps)) return;
    wrong = "the steps of parameter " + std::to_string(tile.parameter) + " are " + std::to_string(steps) +
            ", expected a whole number up to " + std::to_string(kMostStepsCounted);
  });
  if (wrong.empty() && std::ranges::any_of(learned, [](float value) { return !std::isfinite(value); })) {
    wrong = "a value is not finite";
  }
  return wrong;
}

/// A saved bucket's parameters as a Step has them.
struct SavedParameters {
  SavedParameters(const BucketReader& reader, BucketId bucket) {
    std::size_t end = 0;
    for (std::size_t i = 0; i < reader.parameters(bucket); ++i) {
      parameter_ends.push_back(end += reader.parameter(bucket, i).elements);
      parameter_rows.push_back(reader.parameter(bucket, i).rows);
    }
  }
  std::vector<std::size_t> parameter_ends;
  std::vector<std::size_t> parameter_rows;
};

}  // namespace thinwire

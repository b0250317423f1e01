#pragma once
// How klt cuts a bucket into tiles, whose rows have directions of their own, and what it has of these.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/codes/rounded_levels.h"
#include "thinwire/state.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

inline constexpr std::size_t kMostTileWidth = 128;
/// Directions travel as 16-bit floats in words.
inline constexpr std::uint64_t kBytesOfWord = sizeof(std::uint64_t);
inline constexpr std::size_t kHalvesOfWord = kBytesOfWord / sizeof(std::uint16_t);

/// A part of a parameter whose rows have directions of their own.
struct Tile {
  std::size_t parameter = 0;
  std::size_t begin = 0;    ///< Of its first element in the bucket.
  std::size_t stride = 0;   ///< From one of the parameter's rows to the next.
  bool transposed = false;  ///< Its rows are the parameter's columns.
  std::size_t rows = 1;
  std::size_t width = 0;
  bool turned = false;           ///< Without: one row, and no directions.
  std::size_t coefficients = 0;  ///< Where they begin: at a whole block.
  std::size_t directions = 0;    ///< Where they begin.

  std::size_t elements() const { return rows * width; }
  std::size_t squared() const { return turned ? width * width : 0; }
};

/// How a bucket is cut into tiles. Parameters: a Step or a Workload.
template <class Parameters>
class TileCut {
 public:
  TileCut(const Parameters& parameters, std::size_t elements) : parameters_(parameters), elements_(elements) {
    for_each([&](const Tile& tile) {
      coefficients_ = after(tile);
      largest_ = std::max(largest_, tile.turned ? tile.elements() : 0);
      directions_ = tile.directions + tile.squared();
    });
  }

  /// body(tile) in the same order on all ranks.
  template <class Body>
  void for_each(Body&& body) const {
    Tile next;
    const auto add = [&](Tile tile) {
      tile.coefficients = next.coefficients;
      tile.directions = next.directions;
      body(static_cast<const Tile&>(tile));
      next.coefficients = after(tile);
      next.directions += tile.squared();
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
  std::size_t directions() const { return directions_; }      ///< Floats of them.
  std::size_t largest() const { return largest_; }  ///< Elements of the largest tile with directions.
  std::size_t words() const { return (directions_ + kHalvesOfWord - 1) / kHalvesOfWord; }

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
           .turned = true});
      first += width;
    }
  }

  const Parameters& parameters_;
  std::size_t elements_;
  std::size_t coefficients_ = 0;
  std::size_t directions_ = 0;
  std::size_t largest_ = 0;
};

/// Where the directions of each parameter end, by its position; others have none.
template <class Parameters>
std::map<std::size_t, std::size_t> ends_of(const TileCut<Parameters>& cut) {
  std::map<std::size_t, std::size_t> ends;
  cut.for_each([&](const Tile& tile) {
    if (tile.turned) ends[tile.parameter] = tile.directions + tile.squared();
  });
  return ends;
}

/// What a bucket begins with.
template <class Parameters>
std::vector<float> axes_of(const TileCut<Parameters>& cut) {
  std::vector<float> axes(cut.directions(), 0.0f);
  cut.for_each([&](const Tile& tile) {
    for (std::size_t k = 0; tile.turned && k < tile.width; ++k)
      axes[tile.directions + k * (tile.width + 1)] = 1;
  });
  return axes;
}

/// Which direction's length is not near 1; empty: none's.
template <class Parameters>
std::string wrong_length(const TileCut<Parameters>& cut, const std::vector<float>& directions) {
  std::string wrong;
  cut.for_each([&](const Tile& tile) {
    for (std::size_t k = 0; tile.turned && k < tile.width; ++k) {
      const auto one = Span<const float>(directions).subspan(tile.directions + k * tile.width, tile.width);
      double squares = 0;
      for (const float value : one) squares += static_cast<double>(value) * static_cast<double>(value);
      if (squares > 0.9 && squares < 1.1) continue;
      wrong = "number " + std::to_string(k) + " of parameter " + std::to_string(tile.parameter) +
              " has the squared length " + std::to_string(squares) + ", expected 1";
    }
  });
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

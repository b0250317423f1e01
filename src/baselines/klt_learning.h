#pragma once
// How klt learns its directions from the means: the running products of what lies along two of them, and
// rotations until these are small.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "baselines/klt_tiles.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/multiply_rows.h"
#include "kernels/dense/orthonormalise.h"
#include "kernels/dense/symmetric_eigen.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

/// What a step's products leave of those before it.
inline constexpr float kDecayOfProducts = 0.95f;
/// What coefficients along two directions may still have in common, relative to what they have along both.
/// Less brings nothing: -log2(1 - kTurnTolerance^2) / 2 bits.
inline constexpr double kTurnTolerance = 0.05;
/// Sweeps at a time. What one leaves the next time's goes on with.
inline constexpr int kTurnSweeps = 1;
/// Turned often, directions drift from being orthonormal by rounding. They are made so by a turn that falls
/// on a multiple of so many steps.
inline constexpr std::uint64_t kStepsOfDrift = 256;

/// Below this nothing is known. Products begin near 1.
inline constexpr double kLeastProduct = 1e-30;

/// Learns what a bucket knows of its tiles, in place, from one step's mean.
class DirectionLearner {
 public:
  /// `known`: what the bucket has learned (klt_tiles.h), changed by learn().
  /// Directions are turned after the tile's steps 1, 2, 4, ... and after every `every`th.
  DirectionLearner(Step& step, std::uint64_t every, Span<float> known)
      : step_(step), every_(every), known_(known) {}

  /// Every rank calls it with the same bits in `mean`, and has the same bits in `known` then.
  /// mean: the mean's coefficients. scaled: room for as many. columns: room for the largest tile.
  void learn(const TileCut<Step>& cut, Span<const float> mean, Span<float> scaled, Span<float> columns) {
    cut.for_each([&](const Tile& tile) {
      if (!tile.turned) return;
      count_step(known_[tile.steps()]);
      const RowsOf<float> rows{scaled.subspan(tile.coefficients, tile.elements()), tile.width};
      scale_rows(tile, mean.subspan(tile.coefficients, tile.elements()), rows.values);
      const RowsOf<float> turned{columns.first(tile.elements()), tile.rows};
      transpose_rows(step_.executor, tile.rows, tile.width, read(rows), turned);
      add_products(tile.width, tile.rows, read(turned), read(rows), tile.learned);
      if (turns_) turn_directions(tile.width, tile.learned);
      tile.for_groups([&](const RowGroup& group) {
        if (!group.turned) return;
        const std::size_t begin = group.begin * tile.width;
        const RowsOf<const float> own{rows.values.subspan(begin, group.rows * tile.width), tile.width};
        const RowsOf<const float> across{
            turned.values.subspan(group.begin, turned.values.size() - group.begin), tile.rows};
        add_products(group.rows, tile.width, own, across, group.learned);
        if (turns_) turn_directions(group.rows, group.learned);
      });
    });
  }

 private:
  /// And whether directions turn after it.
  void count_step(float& steps) {
    steps = steps < kMostStepsCounted ? steps + 1 : kMostStepsCounted / 2 + 1;
    steps_ = static_cast<std::uint64_t>(steps);
    turns_ = turns_after(steps_, every_);
  }

  static bool turns_after(std::uint64_t steps, std::uint64_t every) {
    return steps < every ? std::has_single_bit(steps) : steps % every == 0;
  }

  /// Each row as if it had length 1, and those of a group together.
  static void scale_rows(const Tile& tile, Span<const float> mean, Span<float> scaled) {
    std::size_t next = 0;
    const auto scale = [&](std::size_t count) {
      const auto values = mean.subspan(next * tile.width, count * tile.width);
      double squares = 0;
      for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
      const double factor = squares > 0 ? std::sqrt(static_cast<double>(count) / squares) : 0;
      const auto target = scaled.subspan(next * tile.width, count * tile.width);
      for (std::size_t i = 0; i < values.size(); ++i) {
        target[i] = static_cast<float>(static_cast<double>(values[i]) * factor);
      }
      next += count;
    };
    tile.for_groups([&](const RowGroup& group) {
      if (group.turned) scale(group.rows);
    });
    while (next < tile.rows) scale(1);
  }

  /// Adds a [n x inner] by b [inner x n] to the products behind the n directions that begin there.
  void add_products(std::size_t n, std::size_t inner, RowsOf<const float> a, RowsOf<const float> b,
                    std::size_t begin) {
    const auto products = known_.subspan(begin + n * n, n * n);
    scale(step_.executor, products, kDecayOfProducts);
    multiply_rows(step_.executor, n, inner, n, a, b, {Span<const float>(products), n}, {products, n},
                  Rounding::same_bits);
  }

  /// Turns n directions so that their products are those of eigenvectors, by falling size.
  void turn_directions(std::size_t n, std::size_t begin) {
    const auto directions = known_.subspan(begin, n * n);
    const auto products = known_.subspan(begin + n * n, n * n);
    const auto matrix = matrix_.first(n * n);
    const auto vectors = vectors_.first(n * n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < n; ++k) {
        const double product =
            (static_cast<double>(products[i * n + k]) + static_cast<double>(products[k * n + i])) / 2;
        // Without gradients products decay down to where rounding keeps them from falling further.
        matrix[i * n + k] = std::abs(product) < kLeastProduct ? 0 : product;
      }
    }
    symmetric_eigenvectors(n, matrix, vectors, kTurnTolerance, kTurnSweeps);
    const RowsOf<float> turns{room_.first(n * n), n};
    for (std::size_t i = 0; i < n * n; ++i) {
      turns.values[i] = static_cast<float>(vectors[i]);
      products[i] = static_cast<float>(matrix[i]);
    }
    const RowsOf<float> turned{room_.subspan(n * n, n * n), n};
    multiply_rows(step_.executor, n, n, n, read(turns), {Span<const float>(directions), n}, {}, turned,
                  Rounding::same_bits);
    if (steps_ % kStepsOfDrift == 0) orthonormalise(n, n, turned.values);
    std::ranges::copy(turned.values, directions.begin());
  }

  Step& step_;
  std::uint64_t every_;
  std::uint64_t steps_ = 0;  // of the tile at hand, with this one
  bool turns_ = false;
  Span<float> known_;
  Span<double> matrix_ = step_.workspace.take<double>(kMostTileWidth * kMostTileWidth);
  Span<double> vectors_ = step_.workspace.take<double>(kMostTileWidth * kMostTileWidth);
  Span<float> room_ = step_.workspace.take<float>(2 * kMostTileWidth * kMostTileWidth);
};

}  // namespace thinwire

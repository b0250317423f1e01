#pragma once
// One step of klt (klt.cc): there, the exchange of levels, and back.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "baselines/klt_learning.h"
#include "baselines/klt_tiles.h"
#include "exchange/collectives.h"
#include "exchange/level_average.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/multiply_rows.h"
#include "thinwire/errors.h"
#include "thinwire/synchronizer.h"
#include "wire/crc32c.h"

namespace thinwire {

/// No coefficient of values up to here, and no sum on the way to it or back, leaves the range of float.
inline constexpr float kLargest = 1e26f;
inline constexpr float kLargestCoefficient = 1e33f;
/// Of a row, in units of its group's root mean square.
inline constexpr double kLeastLength = 1e-4;
/// What a step leaves of the squared lengths before it: most, since rows that are divided by other lengths
/// lie along other directions. In the first steps all count alike.
inline constexpr double kDecayOfLengths = 0.99;
/// A row's squared length of one step counts as at most so many times its running one, or its group's if that
/// is more. Otherwise one gradient far larger than the others makes a row coarse for hundreds of steps.
inline constexpr double kMostGrowth = 256;

struct KltRules {
  LevelRules levels;
  std::uint64_t every = 8;  ///< Steps from one turn of the directions to the next.
};

/// Places of a group's coefficients, by how large they are likely to be.
inline Span<const std::uint16_t> order_of(std::size_t rows, std::size_t width) {
  struct Order {
    std::once_flag made;
    std::vector<std::uint16_t> places;
  };
  static std::array<std::array<Order, 8>, 8> orders;  // both are powers of two up to 128
  Order& order = orders[static_cast<std::size_t>(std::countr_zero(rows))]
                       [static_cast<std::size_t>(std::countr_zero(width))];
  std::call_once(order.made, [&] {
    order.places.resize(rows * width);
    for (std::size_t i = 0; i < order.places.size(); ++i) order.places[i] = static_cast<std::uint16_t>(i);
    std::ranges::stable_sort(order.places, {},
                             [&](std::uint16_t place) { return (place / width + 1) * (place % width + 1); });
  });
  return Span<const std::uint16_t>(order.places);
}

using SharedFloats = std::shared_ptr<std::vector<float>>;

/// What a bucket has from step to step. Copies share what they point to.
struct KltState {
  /// Of the tiles, one behind the other (klt_tiles.h). Null before the first step.
  SharedFloats learned{};
  /// Room for it: what no copy of this state has as its own is free.
  std::shared_ptr<std::vector<SharedFloats>> room{};
  /// Where that of each parameter ends, by its position; others have none.
  std::shared_ptr<const std::map<std::size_t, std::size_t>> ends{};
};

/// One step, in host memory: a device's gradient and residual come here and go back.
class KltStep {
 public:
  KltStep(const KltRules& rules, BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
          KltState& state)
      : rules_(rules),
        bucket_(bucket),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        cut_(step, gradient.size()),
        state_(state) {}

  void run() {
    learned_ = state_.learned ? state_.learned : std::make_shared<std::vector<float>>(nothing_learned(cut_));
    if (learned_->size() != cut_.learned()) {
      throw std::invalid_argument("bucket " + std::to_string(bucket_) + " had parameters of other sizes in " +
                                  "earlier steps: a bucket keeps its parameters");
    }
    step_.communicator.commit_exchange();
    turn_there();
    copy(step_.executor, Span<const float>(own_), mean_);
    fill(step_.executor, left_, 0.0f);
    average_levels(bucket_, mean_, left_, step_, levels());
    if (!step_.report.finite) return;
    require_within();
    // What this rank has said, and of the mean what it keeps for all, with the other sign.
    step_.executor.parallel_for(left_.size(), kRange, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) left_[i] -= own_[i];
    });
    // Whatever can fail comes before the residual is written.
    const SharedFloats next = unused_room();
    std::ranges::copy(*learned_, next->begin());
    step_.clock.enter(Phase::decompress);
    next_ = Span<float>(*next);
    // The coefficients of what was said are in left_ and mean_: own_ is free.
    DirectionLearner(step_, rules_.every, next_).learn(cut_, Span<const float>(mean_), own_, turned_);
    if (!state_.room) begin();
    turn_back();
    state_.learned = next;
  }

 private:
  Span<float> in_host_memory(Span<float> values) const {
    if (step_.executor.memory() == Memory::host || values.empty()) return values;
    const auto host = step_.workspace.take<float>(values.size());
    copy(step_.executor, Span<const float>(values), host);
    return host;
  }
  Span<float> coefficients() const { return step_.workspace.take<float>(cut_.coefficients()); }

  void begin() {
    state_.room = std::make_shared<std::vector<SharedFloats>>();
    state_.ends = std::make_shared<std::map<std::size_t, std::size_t>>(ends_of(cut_));
  }
  /// Throws CorruptFrame where the mean's coefficients are larger than any that values within kLargest have.
  void require_within() {
    if (add_within(step_.executor, mean_, {}, kLargestCoefficient)) return;
    throw CorruptFrame("frame refused: the mean of bucket " + std::to_string(bucket_) + " in step " +
                       std::to_string(step_.index) + " is larger than what ranks may send");
  }
  LevelRules levels() const {
    std::size_t groups = 0;
    cut_.for_each([&](const Tile& tile) { tile.for_groups([&](const RowGroup&) { ++groups; }); });
    const auto squares = step_.workspace.take<LevelSquare>(groups);
    std::size_t next = 0;
    cut_.for_each([&](const Tile& tile) {
      tile.for_groups([&](const RowGroup& group) {
        // Before lengths are known each block has a step of its own.
        if (!has_lengths(group)) return;
        squares[next++] = {
            .first = (tile.coefficients + group.begin * tile.width) / kSteppedBlock,
            .blocks = group.rows * tile.width / kSteppedBlock,
            .columns = tile.width,
            .order = group.turned ? order_of(group.rows, tile.width) : Span<const std::uint16_t>()};
      });
    });
    LevelRules rules = rules_.levels;
    rules.squares = squares.first(next);
    rules.digest = crc32c(Span<const std::byte>(reinterpret_cast<const std::byte*>(learned_->data()),
                                                learned_->size() * sizeof(float)));
    return rules;
  }
  Span<const float> learned(std::size_t begin, std::size_t count) const {
    return Span<const float>(*learned_).subspan(begin, count);
  }
  RowsOf<const float> directions(const Tile& tile) const {
    return {learned(tile.learned, tile.squared()), tile.width};
  }
  RowsOf<const float> directions(const RowGroup& group) const {
    return {learned(group.learned, group.squared()), group.rows};
  }
  /// A group's part of a vector as long as the coefficients.
  static RowsOf<float> rows(Span<float> all, const Tile& tile, const RowGroup& group) {
    return {all.subspan(tile.coefficients + group.begin * tile.width, group.rows * tile.width), tile.width};
  }
  bool has_lengths(const RowGroup& group) const {
    const auto lengths = learned(group.lengths(), group.rows);
    return std::ranges::any_of(lengths, [](float length) { return length > 0; });
  }
  /// The mean squared length of a group's rows that have one.
  double mean_square(const RowGroup& group) const {
    double squares = 0;
    std::size_t known = 0;
    for (const float length : learned(group.lengths(), group.rows)) {
      squares += static_cast<double>(length) * static_cast<double>(length);
      known += length > 0 ? 1 : 0;
    }
    return squares / static_cast<double>(std::max<std::size_t>(known, 1));
  }
  /// The lengths of a group's rows in units of their root mean square. A row that has none yet counts as one
  /// of that length: as a short one it would make the group's step coarse for all others.
  Span<const float> relative_lengths(const RowGroup& group) {
    const auto lengths = learned(group.lengths(), group.rows);
    const double unit = std::sqrt(mean_square(group));
    const auto relative = relative_.first(group.rows);
    for (std::size_t i = 0; i < group.rows; ++i) {
      relative[i] = unit > 0 && lengths[i] > 0
                        ? static_cast<float>(std::max(static_cast<double>(lengths[i]) / unit, kLeastLength))
                        : 1.0f;
    }
    return relative;
  }
  /// The tile's part of a vector as long as the coefficients.
  static RowsOf<float> rows(Span<float> all, const Tile& tile) {
    return {all.subspan(tile.coefficients, tile.elements()), tile.width};
  }
  /// Its elements in a vector as long as the bucket, row by row of the parameter.
  static RowsOf<float> elements(Span<float> all, const Tile& tile) {
    return {all.subspan(tile.begin, all.size() - tile.begin), tile.stride};
  }

  /// p takes the gradient's place, and its coefficients are own_.
  void turn_there() {
    const bool within = add_within(step_.executor, p_, old_, kLargest);
    fill(step_.executor, own_, 0.0f);
    cut_.for_each([&](const Tile& tile) {
      if (!tile.turned) {
        copy(step_.executor, Span<const float>(p_.subspan(tile.begin, tile.elements())),
             rows(own_, tile).values);
        return;
      }
      // A direction to a column.
      const RowsOf<float> columns{room_.first(tile.squared()), tile.width};
      transpose_rows(step_.executor, tile.width, tile.width, directions(tile), columns);
      multiply_rows(step_.executor, tile.rows, tile.width, tile.width, rows_of(p_, tile), read(columns), {},
                    rows(own_, tile), Rounding::fused);
      tile.for_groups([&](const RowGroup& group) { turn_group(group, rows(own_, tile, group), tile.width); });
    });
    // With the levels every rank hears of it.
    if (!within) mark_not_finite(step_.executor, own_);
  }

  /// The tile's rows in a vector as long as the bucket: where they are, or transposed.
  RowsOf<const float> rows_of(Span<float> all, const Tile& tile) {
    const auto from = elements(all, tile);
    if (!tile.transposed) return read(from);
    const RowsOf<float> turned{turned_.first(tile.elements()), tile.width};
    transpose_rows(step_.executor, tile.width, tile.rows, read(from), turned);
    return read(turned);
  }

  /// Rows over their lengths, along the group's directions.
  void turn_group(const RowGroup& group, RowsOf<float> here, std::size_t width) {
    const auto lengths = relative_lengths(group);
    const RowsOf<float> place{room_.first(here.values.size()), width};
    for (std::size_t i = 0; i < group.rows; ++i) {
      const float factor = 1.0f / lengths[i];
      for (std::size_t k = 0; k < width; ++k) place.row(i)[k] = here.row(i)[k] * factor;
    }
    if (group.turned) {
      multiply_rows(step_.executor, group.rows, group.rows, width, directions(group), read(place), {}, here,
                    Rounding::fused);
    } else {
      std::ranges::copy(place.values, here.values.begin());
    }
  }
  /// And back.
  void turn_group_back(const RowGroup& group, RowsOf<float> here, std::size_t width, bool is_mean) {
    const auto lengths = relative_lengths(group);
    RowsOf<const float> place = read(here);
    if (group.turned) {
      const RowsOf<float> columns{room_.first(group.squared()), group.rows};
      transpose_rows(step_.executor, group.rows, group.rows, directions(group), columns);
      const RowsOf<float> turned{room_.subspan(group.squared(), here.values.size()), width};
      multiply_rows(step_.executor, group.rows, group.rows, width, read(columns), read(here), {}, turned,
                    is_mean ? Rounding::same_bits : Rounding::fused);
      place = read(turned);
    }
    for (std::size_t i = 0; i < group.rows; ++i) {
      for (std::size_t k = 0; k < width; ++k) here.row(i)[k] = place.row(i)[k] * lengths[i];
    }
  }

  /// Of a group's rows of the mean, which are back from its directions. steps: of the tile, with this one.
  void learn_lengths(const RowGroup& group, RowsOf<const float> rows, std::size_t width, double steps) {
    const double keeps = std::min(kDecayOfLengths, 1 - 1 / steps);
    const double usual = mean_square(group);
    for (std::size_t i = 0; i < group.rows; ++i) {
      double squares = 0;
      for (std::size_t k = 0; k < width; ++k) {
        squares += static_cast<double>(rows.row(i)[k]) * static_cast<double>(rows.row(i)[k]);
      }
      double now = squares / static_cast<double>(width);
      float& length = next_[group.lengths() + i];
      const double before = static_cast<double>(length) * static_cast<double>(length);
      if (usual > 0) now = std::min(now, kMostGrowth * std::max(before, usual));
      length = static_cast<float>(std::sqrt(before > 0 ? keeps * before + (1 - keeps) * now : now));
    }
  }

  /// residual = p - what was said, gradient = mean, both from coefficients.
  void turn_back() {
    const ResidualSpan left = step_.turn.write(residual_);
    const bool here = residual_.memory() == Memory::host;
    const Span<float> rest = here ? left.after : old_;
    cut_.for_each([&](const Tile& tile) {
      tile.for_groups([&](const RowGroup& group) {
        if (!rest.empty()) turn_group_back(group, rows(left_, tile, group), tile.width, false);
        turn_group_back(group, rows(mean_, tile, group), tile.width, true);
        learn_lengths(group, read(rows(mean_, tile, group)), tile.width,
                      static_cast<double>(next_[tile.steps()]));
      });
      if (!rest.empty()) put(tile, left_, p_, rest, Rounding::fused);
      put(tile, mean_, {}, p_, Rounding::same_bits);
    });
    if (!rest.empty()) {
      step_.report.residual_norm = std::sqrt(sum_of_squares(step_.executor, rest, {}));
      if (!here) copy(step_.executor, Span<const float>(rest), left.after);
    }
    if (p_.data() != gradient_.data()) copy(step_.executor, Span<const float>(p_), gradient_);
  }

  /// to = base + coefficients along their directions.
  void put(const Tile& tile, Span<float> coefficients, Span<float> base, Span<float> to, Rounding rounding) {
    const auto from = read(rows(coefficients, tile));
    if (!tile.turned) {
      const auto target = to.subspan(tile.begin, tile.elements());
      if (!base.empty()) {
        add_residual(step_.executor, from.values, base.subspan(tile.begin, tile.elements()), target);
      } else {
        copy(step_.executor, from.values, target);
      }
      return;
    }
    const auto target = elements(to, tile);
    const auto base_rows = base.empty() ? RowsOf<const float>() : rows_of(base, tile);
    const RowsOf<float> place =
        tile.transposed ? RowsOf<float>{turned_.first(tile.elements()), tile.width} : target;
    multiply_rows(step_.executor, tile.rows, tile.width, tile.width, from, directions(tile), base_rows, place,
                  rounding);
    if (tile.transposed) transpose_rows(step_.executor, tile.rows, tile.width, read(place), target);
  }

  /// What undo_step() may return to is in use.
  SharedFloats unused_room() const {
    if (!state_.room) return std::make_shared<std::vector<float>>(cut_.learned());
    for (const SharedFloats& one : *state_.room) {
      if (one.use_count() == 1) return one;
    }
    return state_.room->emplace_back(std::make_shared<std::vector<float>>(cut_.learned()));
  }

  static constexpr std::size_t kRange = std::size_t{1} << 16;

  const KltRules& rules_;
  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  TileCut<Step> cut_;
  KltState& state_;
  SharedFloats learned_{};  // by this step's begin
  Span<float> next_{};      // and by its end
  Span<float> p_ = in_host_memory(gradient_);
  Span<float> old_ = in_host_memory(residual_);
  Span<float> own_ = coefficients();
  Span<float> mean_ = coefficients();
  Span<float> left_ = residual_.empty() ? Span<float>() : coefficients();  // see run()
  Span<float> turned_ = step_.workspace.take<float>(cut_.largest());
  Span<float> room_ = step_.workspace.take<float>(2 * kMostTileWidth * kMostTileWidth);
  Span<float> relative_ = step_.workspace.take<float>(kMostTileWidth);
};

}  // namespace thinwire

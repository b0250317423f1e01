// Transform coding: the rows of each matrix are turned into the directions in which they vary most, and what
// is found along each direction travels as whole numbers of steps in an entropy code, as in `ecsq`. Rows of
// a gradient lie near few directions. So most of what travels is near zero, which takes few bits, and what
// does not lie there is sent all the same.
//
//   p, rows --directions--> coefficients --levels of each row's own step--> owner: mean --levels--> all
//   mean, residual <--directions, transposed-- what was said
//   now and then: a rank's own coefficients --eigenvectors of what rows have in common--> all ranks
//
// Sources: K. Karhunen, 1947, and M. Loeve, 1948: the transform, which no other one of orthonormal directions
// beats for values of a normal distribution (Goyal, "Theoretical foundations of transform coding", IEEE
// Signal Processing Magazine, 2001). That rows of gradients lie near few directions: Vogels et al., PowerSGD,
// NeurIPS 2019. The code: exchange/level_average.h.
//
// A row is one of the longer side of a matrix: so the directions are few. The shorter side is cut into tiles,
// each as wide as a power of two, at most 128. Parameters whose leading dimension is not known, and vectors,
// have no directions. Each tile, and each such parameter, begins a block of 128 coefficients.
//
// A block's step is a multiple of its own root mean square: of a row where tiles are 128 wide, of several
// ones elsewhere. Adam makes the small rows of a matrix as large as the others, so they must not wait longer.
// All directions of a row share its step.
//
// Levels travel by direction and not by row (LevelRules::by_place), but for those behind the last whole
// square of 128 blocks of an owner's part. So each of the code's blocks has levels of about one size.
//
// Directions begin as the axes. They are found anew after a bucket's first step, after steps 1, 2, 4, ... of
// the training, and then after every `every`th: the eigenvectors of sum over rows of (row / length)^T (row /
// length), of one rank's p. Tiles take turns over ranks. They travel in bfloat16, so all ranks have the same.
// What that rounding takes from their being orthonormal stays in the residual, and does not grow from set to
// set.
//
// Bytes per rank: those of its frames, which depend on the data; after a step with new directions 2 (W-1)/W *
// 2 bytes for each of their elements, rounded up to 8. payload_bytes() gives what coefficients of a normal
// distribution take: more than gradients' do.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "baselines/baselines.h"
#include "baselines/klt_tiles.h"
#include "core/bucket_vectors.h"
#include "exchange/collectives.h"
#include "exchange/level_average.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/half.h"
#include "kernels/dense/multiply_rows.h"
#include "kernels/dense/orthonormalise.h"
#include "kernels/dense/symmetric_eigen.h"
#include "thinwire/errors.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

constexpr StateKind kDirections = {.name = "klt_directions"};
/// No coefficient of values up to here, and no sum on the way to it or back, leaves the range of float.
constexpr float kLargest = std::numeric_limits<float>::max() / 65536;
/// What rows may still have in common along two directions, relative to what they have along both. Less
/// brings nothing.
constexpr double kTolerance = 1e-3;

struct KltRules {
  LevelRules levels;
  std::uint64_t every = 50;
  bool both = false;

  /// Whether directions are found anew at the end of a step.
  bool renews(std::uint64_t step) const {
    const std::uint64_t steps = step + 1;
    return steps < every ? std::has_single_bit(steps) : steps % every == 0;
  }
};

using Floats = std::shared_ptr<std::vector<float>>;

/// Of a square of 128 rows: both sides turned.
struct Square {
  bool turned = true;
  std::vector<float> left;      // a direction to a row
  std::vector<float> products;  // of rows, decaying
  std::vector<double> sizes;    // squared
  std::vector<float> lengths;   // by which rows are divided
};
/// What a bucket has from step to step. Copies share what they point to.
struct State {
  std::shared_ptr<std::vector<Square>> squares{};
  Floats right_products{};
  /// Of the tiles, one behind the other; within a tile one row to a direction. Null before the first step.
  Floats directions{};
  /// Room for directions: what no copy of this state has as its own is free.
  std::shared_ptr<std::vector<Floats>> room{};
  /// Where those of each parameter end, by its position; others have none.
  std::shared_ptr<const std::map<std::size_t, std::size_t>> ends{};
};

/// One step, in host memory: a device's gradient and residual come here and go back.
class KltStep {
 public:
  KltStep(const KltRules& rules, BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
          State& state)
      : rules_(rules),
        bucket_(bucket),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        cut_(step, gradient.size()),
        state_(state) {}

  void run() {
    const bool renews = !rules_.both && (!state_.directions || rules_.renews(step_.index));
    if (state_.directions) {
      directions_ = state_.directions;
    } else {
      directions_ = std::make_shared<std::vector<float>>(axes_of(cut_));
    }
    if (directions_->size() != cut_.directions()) {
      throw std::invalid_argument("bucket " + std::to_string(bucket_) + " had parameters of other sizes in " +
                                  "earlier steps: a bucket keeps its parameters");
    }
    step_.communicator.commit_exchange();
    turn_there();
    copy(step_.executor, Span<const float>(own_), mean_);
    fill(step_.executor, left_, 0.0f);
    LevelRules levels = rules_.levels;
    std::vector<std::uint16_t> marks;
    if (rules_.both) {
      marks.assign(stepped_blocks(cut_.coefficients()), 0);
      for_squares([&](const Tile& tile, std::size_t row, std::size_t) {
        for (std::size_t i = 0; i < 128; ++i)
          marks[tile.coefficients / kSteppedBlock + row + i] = static_cast<std::uint16_t>((tile.rows <= 768 ? 1 : 1001) + i);
      });
      levels.squares = Span<const std::uint16_t>(marks);
      turn_left(own_, false, Rounding::fused);
      copy(step_.executor, Span<const float>(own_), mean_);
    }
    average_levels(bucket_, mean_, left_, step_, levels);
    if (!step_.report.finite) return;
    require_within();
    // What this rank has said, and of the mean what it keeps for all, with the other sign.
    step_.executor.parallel_for(left_.size(), kRange, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) left_[i] -= own_[i];
    });
    // Whatever can fail comes before the residual is written.
    if (rules_.both) learn();
    const Floats found = renews && cut_.directions() != 0 ? find_all_directions() : directions_;
    step_.clock.enter(Phase::decompress);
    turn_back();
    if (!state_.room) begin();
    state_.directions = found;
    if (rules_.both) learn_right();
  }

 private:
  template <class Body>
  void for_squares(Body&& body) const {
    std::size_t number = 0;
    cut_.for_each([&](const Tile& tile) {
      if (!tile.turned || tile.width != 128) return;
      for (std::size_t row = 0; row + 128 <= tile.rows; row += 128) body(tile, row, number++);
    });
  }
  std::vector<Square>& squares() {
    if (!state_.squares) {
      state_.squares = std::make_shared<std::vector<Square>>();
      for_squares([&](const Tile& tile, std::size_t, std::size_t) {
        Square one;
        one.turned = tile.rows <= 768;
        one.left.assign(128 * 128, 0.0f);
        for (std::size_t i = 0; i < 128; ++i) one.left[i * 129] = 1;
        one.products.assign(128 * 128, 0.0f);
        one.lengths.assign(128, 1.0f);
        state_.squares->push_back(std::move(one));
      });
    }
    return *state_.squares;
  }
  /// Coefficients of squares: rows over their lengths, along the left directions; or back.
  void turn_left(Span<float> all, bool back, Rounding rounding) {
    auto& of = squares();
    for_squares([&](const Tile& tile, std::size_t row, std::size_t number) {
      Square& square = of[number];
      const RowsOf<float> here{all.subspan(tile.coefficients + row * 128, 128 * 128), 128};
      const RowsOf<float> place{room_.first(128 * 128), 128};
      const RowsOf<const float> left{Span<const float>(square.left), 128};
      if (!square.turned) {
        for (std::size_t i = 0; i < 128; ++i)
          for (std::size_t k = 0; k < 128; ++k) {
            if (back) here.row(i)[k] *= square.lengths[i];
            else here.row(i)[k] /= square.lengths[i];
          }
        return;
      }
      if (back) {
        const RowsOf<float> columns{room_.subspan(128 * 128, 128 * 128), 128};
        transpose_rows(step_.executor, 128, 128, left, columns);
        multiply_rows(step_.executor, 128, 128, 128, read(columns), read(here), {}, place, rounding);
        for (std::size_t i = 0; i < 128; ++i)
          for (std::size_t k = 0; k < 128; ++k) here.row(i)[k] = place.row(i)[k] * square.lengths[i];
      } else {
        for (std::size_t i = 0; i < 128; ++i)
          for (std::size_t k = 0; k < 128; ++k) here.row(i)[k] /= square.lengths[i];
        multiply_rows(step_.executor, 128, 128, 128, left, read(here), {}, place, rounding);
        copy(step_.executor, Span<const float>(place.values), here.values);
      }
    });
  }
  /// mean_ and own_ back from the left; new lengths and left directions from the mean.
  void learn() {
    turn_left(mean_, true, Rounding::same_bits);
    turn_left(own_, true, Rounding::fused);
    if (!left_.empty()) turn_left(left_, true, Rounding::fused);
    auto& of = squares();
    for_squares([&](const Tile& tile, std::size_t row, std::size_t number) {
      Square& square = of[number];
      const RowsOf<float> here{mean_.subspan(tile.coefficients + row * 128, 128 * 128), 128};
      const bool first = square.sizes.empty();
      if (first) square.sizes.assign(128, 0.0);
      double all = 0;
      static const double beta = std::getenv("TW_BETA") ? std::atof(std::getenv("TW_BETA")) : 0.95;
      for (std::size_t i = 0; i < 128; ++i) {
        double sum = 0;
        for (std::size_t k = 0; k < 128; ++k)
          sum += static_cast<double>(here.row(i)[k]) * static_cast<double>(here.row(i)[k]);
        square.sizes[i] = first ? sum : beta * square.sizes[i] + (1 - beta) * sum;
        all += square.sizes[i];
      }
      if (!(all > 0)) return;
      const RowsOf<float> scaled{room_.first(128 * 128), 128};
      const RowsOf<float> columns{room_.subspan(128 * 128, 128 * 128), 128};
      std::vector<float> products(128 * 128);
      for (std::size_t i = 0; i < 128; ++i) {
        square.lengths[i] = static_cast<float>(std::sqrt(std::max(square.sizes[i], 1e-4 * all / 128) / 128));
        for (std::size_t k = 0; k < 128; ++k) scaled.row(i)[k] = here.row(i)[k] / square.lengths[i];
      }
      if (!square.turned) return;
      transpose_rows(step_.executor, 128, 128, read(scaled), columns);
      const RowsOf<float> product{Span<float>(products), 128};
      multiply_rows(step_.executor, 128, 128, 128, read(scaled), read(columns), {}, product,
                    Rounding::same_bits);
      for (std::size_t i = 0; i < products.size(); ++i)
        square.products[i] = 0.95f * square.products[i] + products[i];
      if (turns()) follow(step_.executor, 128, Span<float>(square.left), Span<const float>(square.products));
    });
  }
  bool turns() const {
    const auto steps = step_.index + 1;
    return steps <= 8 || (steps <= 64 && steps % 4 == 0) || steps % 8 == 0;
  }
  static void follow(Executor& executor, std::size_t n, Span<float> directions, Span<const float> products) {
    std::vector<float> turned(n * n);
    multiply_rows(executor, n, n, n, {Span<const float>(directions), n}, {products, n}, {},
                  {Span<float>(turned), n}, Rounding::same_bits);
    orthonormalise(n, n, Span<float>(turned));
    for (std::size_t k = 0; k < n; ++k) {
      double sum = 0;
      for (std::size_t j = 0; j < n; ++j) sum += static_cast<double>(turned[k * n + j]) * static_cast<double>(turned[k * n + j]);
      if (!(sum > 0.9)) return;
    }
    std::copy(turned.begin(), turned.end(), directions.begin());
  }
  /// Right directions from the mean, which is in p_.
  void learn_right() {
    auto& all = state_.right_products;
    if (!all) all = std::make_shared<std::vector<float>>(cut_.directions(), 0.0f);
    const Floats next = std::make_shared<std::vector<float>>(*state_.directions);
    cut_.for_each([&](const Tile& tile) {
      if (!tile.turned) return;
      const std::size_t n = tile.width;
      const auto from = rows_of(p_, tile);
      std::vector<float> scaled(tile.rows * n), columns(tile.rows * n), product(n * n);
      for (std::size_t i = 0; i < tile.rows; ++i) {
        double sum = 0;
        for (std::size_t k = 0; k < n; ++k) sum += static_cast<double>(from.row(i)[k]) * static_cast<double>(from.row(i)[k]);
        const auto factor = static_cast<float>(sum > 0 ? 1 / std::sqrt(sum) : 0);
        for (std::size_t k = 0; k < n; ++k) scaled[i * n + k] = from.row(i)[k] * factor;
      }
      const RowsOf<const float> rows{Span<const float>(scaled), n};
      const RowsOf<float> turned{Span<float>(columns), tile.rows};
      transpose_rows(step_.executor, tile.rows, n, rows, turned);
      multiply_rows(step_.executor, n, tile.rows, n, read(turned), rows, {}, {Span<float>(product), n}, Rounding::same_bits);
      for (std::size_t i = 0; i < n * n; ++i) {
        float& one = (*all)[tile.directions + i];
        one = 0.9f * one + product[i];
      }
      if (turns()) follow(step_.executor, n, Span<float>(*next).subspan(tile.directions, n * n), Span<const float>(*all).subspan(tile.directions, n * n));
    });
    state_.directions = next;
  }
  Span<float> in_host_memory(Span<float> values) const {
    if (step_.executor.memory() == Memory::host || values.empty()) return values;
    const auto host = step_.workspace.take<float>(values.size());
    copy(step_.executor, Span<const float>(values), host);
    return host;
  }
  Span<float> coefficients() const { return step_.workspace.take<float>(cut_.coefficients()); }

  void begin() {
    state_.room = std::make_shared<std::vector<Floats>>();
    state_.ends = std::make_shared<std::map<std::size_t, std::size_t>>(ends_of(cut_));
  }
  /// Throws CorruptFrame where the mean's coefficients are larger than any that values within kLargest have.
  void require_within() {
    if (add_within(step_.executor, mean_, {}, 64 * kLargest)) return;
    throw CorruptFrame("frame refused: the mean of bucket " + std::to_string(bucket_) + " in step " +
                       std::to_string(step_.index) + " is larger than what ranks may send");
  }
  RowsOf<const float> directions(const Tile& tile) const {
    return {Span<const float>(*directions_).subspan(tile.directions, tile.squared()), tile.width};
  }
  /// The tile's part of a vector as long as the coefficients.
  static RowsOf<float> rows(Span<float> all, const Tile& tile) {
    return {all.subspan(tile.coefficients, tile.elements()), tile.width};
  }
  /// Its elements in a vector as long as the bucket, row by row of the parameter.
  static RowsOf<float> elements(Span<float> all, const Tile& tile) {
    return {all.subspan(tile.begin, all.size() - tile.begin), tile.stride};
  }
  static RowsOf<const float> read(const RowsOf<float>& rows) { return {rows.values, rows.stride}; }

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

  /// residual = p - what was said, gradient = mean, both from coefficients.
  void turn_back() {
    const ResidualSpan left = step_.turn.write(residual_);
    const bool here = residual_.memory() == Memory::host;
    const Span<float> rest = here ? left.after : old_;
    cut_.for_each([&](const Tile& tile) {
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

  /// New directions, the same on all ranks. own_ has no meaning afterwards. Collective.
  Floats find_all_directions() {
    const auto words = step_.workspace.take<std::uint64_t>(cut_.words());
    std::ranges::fill(words, 0);
    const Span<std::uint16_t> said{reinterpret_cast<std::uint16_t*>(words.data()), cut_.directions()};
    const auto world = static_cast<std::size_t>(step_.communicator.size());
    std::size_t number = bucket_;
    cut_.for_each([&](const Tile& tile) {
      if (!tile.turned) return;
      const bool mine = number++ % world == static_cast<std::size_t>(step_.communicator.rank());
      if (mine) find_directions(tile, said.subspan(tile.directions, tile.squared()));
    });
    all_reduce_or(step_, words);
    step_.report.formula_bytes += step_.communicator.ring_sent_bytes(words.size(), kBytesOfWord);
    Floats found = unused_room();
    decode_half(step_.executor, HalfFormat::bf16, said, Span<float>(*found));
    const std::string wrong = wrong_length(cut_, *found);
    if (wrong.empty()) return found;
    throw CorruptFrame("directions refused: " + wrong + " (bucket " + std::to_string(bucket_) + ")");
  }

  /// What undo_step() may return to is in use.
  Floats unused_room() const {
    if (!state_.room) return std::make_shared<std::vector<float>>(cut_.directions());
    for (const Floats& one : *state_.room) {
      if (one.use_count() == 1) return one;
    }
    return state_.room->emplace_back(std::make_shared<std::vector<float>>(cut_.directions()));
  }

  /// Eigenvectors of what the rows of own_ have in common, by descending share, as elements of the tile.
  void find_directions(const Tile& tile, Span<std::uint16_t> found) {
    const std::size_t n = tile.width;
    const auto values = rows(own_, tile);
    // Each row counts as much as any other, since each has a step of its own.
    for (std::size_t i = 0; i < tile.rows; ++i) {
      double squares = 0;
      for (std::size_t k = 0; k < n; ++k) {
        squares += static_cast<double>(values.row(i)[k]) * static_cast<double>(values.row(i)[k]);
      }
      const double factor = squares > 0 ? 1 / std::sqrt(squares) : 0;
      for (std::size_t k = 0; k < n; ++k) {
        values.row(i)[k] = static_cast<float>(static_cast<double>(values.row(i)[k]) * factor);
      }
    }
    const RowsOf<float> columns{turned_.first(tile.elements()), tile.rows};
    transpose_rows(step_.executor, tile.rows, n, read(values), columns);
    const RowsOf<float> products{room_.first(n * n), n};
    multiply_rows(step_.executor, n, tile.rows, n, read(columns), read(values), {}, products,
                  Rounding::fused);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < n; ++k) {
        matrix_[i * n + k] =
            (static_cast<double>(products.row(i)[k]) + static_cast<double>(products.row(k)[i])) / 2;
      }
    }
    symmetric_eigenvectors(n, matrix_.first(n * n), vectors_.first(n * n), kTolerance);
    const RowsOf<float> eigenvectors{products.values, n};
    for (std::size_t i = 0; i < n * n; ++i) eigenvectors.values[i] = static_cast<float>(vectors_[i]);
    const RowsOf<float> turned{room_.subspan(n * n, n * n), n};
    multiply_rows(step_.executor, n, n, n, read(eigenvectors), directions(tile), {}, turned, Rounding::fused);
    // Rounded, they drift from being orthonormal a little each time.
    orthonormalise(n, n, turned.values);
    encode_half(step_.executor, HalfFormat::bf16, turned.values, {}, found);
  }

  static constexpr std::size_t kRange = std::size_t{1} << 16;

  const KltRules& rules_;
  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  TileCut<Step> cut_;
  State& state_;
  Floats directions_{};  // of this step
  Span<float> p_ = in_host_memory(gradient_);
  Span<float> old_ = in_host_memory(residual_);
  Span<float> own_ = coefficients();
  Span<float> mean_ = coefficients();
  Span<float> left_ = residual_.empty() ? Span<float>() : coefficients();  // see run()
  Span<float> turned_ = step_.workspace.take<float>(cut_.largest());
  Span<float> room_ = step_.workspace.take<float>(2 * kMostTileWidth * kMostTileWidth);
  // Of find_directions().
  Span<double> matrix_ = step_.workspace.take<double>(kMostTileWidth * kMostTileWidth);
  Span<double> vectors_ = step_.workspace.take<double>(kMostTileWidth * kMostTileWidth);
};

class Klt final : public Synchronizer {
 public:
  explicit Klt(const KltRules& rules) : rules_(rules), bits_(normal_level_bits(rules.levels)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    KltStep(rules_, bucket, gradient, residual, step, states_.open(bucket)).run();
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.world_size == 1) return 0;
    const TileCut<Workload> cut(workload, workload.elements);
    const std::uint64_t levels =
        level_average_bytes(cut.coefficients(), static_cast<std::size_t>(workload.world_size),
                            static_cast<std::size_t>(workload.rank), rules_.levels, bits_);
    return levels + (rules_.renews(workload.step) ? workload.ring_sent_bytes(cut.words(), kBytesOfWord) : 0);
  }

  void save(BucketWriter& writer) const override {
    states_.for_each([&](BucketId bucket, const State& state) {
      if (!state.directions) return;
      const auto all = Span<const float>(*state.directions);
      std::size_t begin = 0;
      for (const auto& [parameter, end] : *state.ends) {
        writer.array(kDirections, bucket, parameter, all.subspan(begin, end - begin));
        begin = end;
      }
    });
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, State> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      const SavedParameters parameters(reader, bucket);
      const TileCut<SavedParameters> cut(parameters, reader.bucket_elements(bucket));
      const auto ends = ends_of(cut);
      // A parameter that has none was of a bucket without steps: it begins with the axes.
      std::vector<float> directions = axes_of(cut);
      bool found = false;
      std::size_t begin = 0;
      for (const auto& [parameter, end] : ends) {
        const auto part = Span<float>(directions).subspan(begin, end - begin);
        found = reader.array(kDirections, bucket, parameter, part) || found;
        begin = end;
      }
      if (!found) continue;
      const std::string wrong = wrong_length(cut, directions);
      if (!wrong.empty()) {
        throw std::runtime_error("the state's directions of bucket " + std::to_string(bucket) + ": " + wrong);
      }
      loaded[bucket] = State{{}, {}, std::make_shared<std::vector<float>>(std::move(directions)),
                        std::make_shared<std::vector<Floats>>(),
                        std::make_shared<std::map<std::size_t, std::size_t>>(ends)};
    }
    states_.assign(std::move(loaded));
  }

  void keep_step(BucketId bucket) override { states_.keep(bucket); }
  bool keeps_little(BucketId) const override { return true; }
  void undo_step(BucketId bucket) override { states_.undo(bucket); }

 private:
  KltRules rules_;
  double bits_;
  BucketStates<State> states_;
};

}  // namespace

SystemInfo klt_info() {
  SystemInfo info;
  info.name = "klt";
  info.summary = "matrices along their main directions, then whole numbers of steps in an entropy code";
  info.paper = "Karhunen, 1947; Goyal, 2001; src/baselines/klt.cc";
  info.formula =
      "at most what ecsq sends of normal values with as large a step, each parameter filled up to whole "
      "blocks "
      "of 128; each time that directions are found 2(W-1)/W * 2 bytes for each of their elements, at most "
      "128 "
      "for each element of a matrix's shorter side";
  info.feedback_default = true;
  info.state = {kDirections};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {{"sides", "1", "sides that are turned, 1 or 2"},
                  {"step", "0.3", "between levels, in units of the root mean square of a row, 0.05 to 16"},
                  {"every", "50", "steps from one set of directions to the next, 1 to 1000000"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    KltRules rules;
    rules.levels.step = options.real("step", 0.05, 16);
    rules.levels.by_place = true;
    rules.both = options.integer("sides", 1, 2) == 2;
    rules.every = static_cast<std::uint64_t>(options.integer("every", 1, 1'000'000));
    return std::make_unique<Klt>(rules);
  };
  return info;
}

}  // namespace thinwire

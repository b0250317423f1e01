// Transform coding: each matrix is turned into the directions in which it varies most, on both of its sides,
// and what is found along them travels as whole numbers of steps in an entropy code, as in `ecsq`. A gradient
// lies near few directions. So most of what travels is near zero, which takes few bits, and what does not lie
// there is sent all the same.
//
//   p, rows --directions--> --over each row's length--> groups of rows --directions--> coefficients
//   coefficients --levels--> owner: mean --levels--> all
//   mean, residual <--the same, backwards-- what was said
//   mean --> lengths of rows, and directions of the next steps, the same on all ranks
//
// Sources: K. Karhunen, 1947, and M. Loeve, 1948: the transform, which no other one of orthonormal directions
// beats for values of a normal distribution (Goyal, "Theoretical foundations of transform coding", IEEE
// Signal Processing Magazine, 2001); a separable one, along both sides, as images have it (A. K. Jain, 1976).
// That rows of gradients lie near few directions: Vogels et al., PowerSGD, NeurIPS 2019. That directions on
// both sides come from running means of G^T G and G G^T, and last for many steps: N. Vyas et al., SOAP, 2024,
// of V. Gupta et al., Shampoo, ICML 2018. The code: exchange/level_average.h.
//
// A row is one of the longer side of a matrix. The shorter side is cut into tiles, each as wide as a power of
// two, at most 128, and a tile's rows into groups of as many. Rows of a table have no groups
// (kMostRowsPerColumn). Parameters whose leading dimension is not known, and vectors, have no directions.
// Each tile, and each such parameter, begins a block of 128 coefficients.
//
// Steps are multiples of a root mean square: of a group's coefficients, which share one, and of a block's
// elsewhere, which is a row where tiles are 128 wide. Adam makes the small rows of a matrix as large as the
// others, so they must not wait longer. So the rows of a group are divided by their lengths: a running root
// mean square of what the mean had there. A row that is small for once so takes few bits.
//
// Levels travel in an order in which those of about one size are neighbours: in a group, of coefficient k of
// row i, by (i + 1) (k + 1), since directions are sorted; elsewhere by direction (LevelRules::by_place).
//
// Directions begin as the axes. They are turned after steps 1, 2, 4, ... and after every `every`th: until the
// running products of coefficients along two of them are small beside the directions' own. Every rank finds
// them from the same means, with the same bits, so nothing travels for them. What all have learned has a
// digest, which frames carry: where a rank has learned something else, its frames are refused.
//
// Bytes per rank: those of its frames, which depend on the data. payload_bytes() gives what coefficients of a
// normal distribution take: more than gradients' do.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "baselines/baselines.h"
#include "baselines/klt_tiles.h"
#include "core/bucket_vectors.h"
#include "exchange/collectives.h"
#include "exchange/level_average.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/multiply_rows.h"
#include "kernels/dense/orthonormalise.h"
#include "kernels/dense/symmetric_eigen.h"
#include "thinwire/errors.h"
#include "thinwire/state.h"
#include "wire/crc32c.h"

namespace thinwire {
namespace {

constexpr StateKind kLearned = {.name = "klt_directions"};
/// No coefficient of values up to here, and no sum on the way to it or back, leaves the range of float.
constexpr float kLargest = 1e26f;
constexpr float kLargestCoefficient = 1e33f;
/// Of a row, in units of its group's root mean square.
constexpr double kLeastLength = 1e-4;
/// What a step's products leave of those before it.
constexpr float kDecay = 0.95f;
/// The same of squared lengths: slowly, since rows that are divided by others lie along other directions. In
/// the first steps all count alike.
constexpr double kDecayOfLengths = 0.99;
/// What coefficients along two directions may still have in common, relative to what they have along both.
/// Less brings nothing: -log2(1 - kTolerance^2) / 2 bits.
constexpr double kTolerance = 0.05;
/// Sweeps at a time. What one leaves the next time's goes on with.
constexpr int kSweeps = 1;
/// Turned often, directions drift from being orthonormal by rounding. After so many steps they are made so.
constexpr std::uint64_t kStepsOfDrift = 256;

struct KltRules {
  LevelRules levels;
  std::uint64_t every = 8;

  /// Whether directions are turned at the end of a step.
  bool turns(std::uint64_t step) const {
    const std::uint64_t steps = step + 1;
    return steps < every ? std::has_single_bit(steps) : steps % every == 0;
  }
};

/// Places of a group's coefficients, by how large they are likely to be.
Span<const std::uint16_t> order_of(std::size_t rows, std::size_t width) {
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

using Floats = std::shared_ptr<std::vector<float>>;

/// What a bucket has from step to step. Copies share what they point to.
struct State {
  /// Of the tiles, one behind the other (klt_tiles.h). Null before the first step.
  Floats learned{};
  /// Room for it: what no copy of this state has as its own is free.
  std::shared_ptr<std::vector<Floats>> room{};
  /// Where that of each parameter ends, by its position; others have none.
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
    const Floats next = unused_room();
    std::ranges::copy(*learned_, next->begin());
    step_.clock.enter(Phase::decompress);
    next_ = Span<float>(*next);
    learn();
    turn_back();
    if (!state_.room) begin();
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
    state_.room = std::make_shared<std::vector<Floats>>();
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
  /// The lengths of a group's rows in units of their root mean square; 1 where none has any.
  Span<const float> relative_lengths(const RowGroup& group) {
    const auto lengths = learned(group.lengths(), group.rows);
    double squares = 0;
    for (const float length : lengths) squares += static_cast<double>(length) * static_cast<double>(length);
    const double unit = std::sqrt(squares / static_cast<double>(group.rows));
    const auto relative = relative_.first(group.rows);
    for (std::size_t i = 0; i < group.rows; ++i) {
      relative[i] = unit > 0
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
  /// And back. Where it is the mean, its rows' lengths are learned.
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
    const double keeps = std::min(kDecayOfLengths, 1 - 1 / static_cast<double>(step_.index + 1));
    for (std::size_t i = 0; i < group.rows; ++i) {
      double squares = 0;
      for (std::size_t k = 0; k < width; ++k) {
        here.row(i)[k] = place.row(i)[k] * lengths[i];
        squares += static_cast<double>(here.row(i)[k]) * static_cast<double>(here.row(i)[k]);
      }
      if (!is_mean) continue;
      float& length = next_[group.lengths() + i];
      const double before = static_cast<double>(length) * static_cast<double>(length);
      const double now = squares / static_cast<double>(width);
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
  Floats unused_room() const {
    if (!state_.room) return std::make_shared<std::vector<float>>(cut_.learned());
    for (const Floats& one : *state_.room) {
      if (one.use_count() == 1) return one;
    }
    return state_.room->emplace_back(std::make_shared<std::vector<float>>(cut_.learned()));
  }

  /// What the mean's coefficients have in common, and directions from that. own_ has no meaning afterwards.
  void learn() {
    const bool turns = rules_.turns(step_.index);
    cut_.for_each([&](const Tile& tile) {
      if (!tile.turned) return;
      const RowsOf<float> scaled = scale_rows(tile);
      const RowsOf<float> columns{turned_.first(tile.elements()), tile.rows};
      transpose_rows(step_.executor, tile.rows, tile.width, read(scaled), columns);
      add_products(tile.width, tile.rows, read(columns), read(scaled), tile.learned);
      if (turns) turn_directions(tile.width, tile.learned);
      tile.for_groups([&](const RowGroup& group) {
        if (!group.turned) return;
        const std::size_t begin = group.begin * tile.width;
        const RowsOf<const float> own{scaled.values.subspan(begin, group.rows * tile.width), tile.width};
        const RowsOf<const float> across{
            columns.values.subspan(group.begin, columns.values.size() - group.begin), tile.rows};
        add_products(group.rows, tile.width, own, across, group.learned);
        if (turns) turn_directions(group.rows, group.learned);
      });
    });
  }

  /// The mean's coefficients, each row as if it had length 1, and those of a group together.
  RowsOf<float> scale_rows(const Tile& tile) {
    const RowsOf<float> scaled = rows(own_, tile);
    const RowsOf<float> from = rows(mean_, tile);
    std::size_t next = 0;
    const auto scale = [&](std::size_t count) {
      double squares = 0;
      const auto values = from.values.subspan(next * tile.width, count * tile.width);
      for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
      const double factor = squares > 0 ? std::sqrt(static_cast<double>(count) / squares) : 0;
      const auto target = scaled.values.subspan(next * tile.width, count * tile.width);
      for (std::size_t i = 0; i < values.size(); ++i) {
        target[i] = static_cast<float>(static_cast<double>(values[i]) * factor);
      }
      next += count;
    };
    tile.for_groups([&](const RowGroup& group) {
      if (group.turned) scale(group.rows);
    });
    while (next < tile.rows) scale(1);
    return scaled;
  }

  /// Adds a [n x inner] by b [inner x n] to the products behind the n directions that begin there.
  void add_products(std::size_t n, std::size_t inner, RowsOf<const float> a, RowsOf<const float> b,
                    std::size_t begin) {
    const auto products = next_.subspan(begin + n * n, n * n);
    scale(step_.executor, products, kDecay);
    multiply_rows(step_.executor, n, inner, n, a, b, {Span<const float>(products), n}, {products, n},
                  Rounding::same_bits);
  }

  /// Turns n directions so that their products are those of eigenvectors, by falling size.
  void turn_directions(std::size_t n, std::size_t begin) {
    const auto directions = next_.subspan(begin, n * n);
    const auto products = next_.subspan(begin + n * n, n * n);
    const auto matrix = matrix_.first(n * n);
    const auto vectors = vectors_.first(n * n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < n; ++k) {
        matrix[i * n + k] =
            (static_cast<double>(products[i * n + k]) + static_cast<double>(products[k * n + i])) / 2;
      }
    }
    symmetric_eigenvectors(n, matrix, vectors, kTolerance, kSweeps);
    const RowsOf<float> turns{room_.first(n * n), n};
    for (std::size_t i = 0; i < n * n; ++i) {
      turns.values[i] = static_cast<float>(vectors[i]);
      products[i] = static_cast<float>(matrix[i]);
    }
    const RowsOf<float> turned{room_.subspan(n * n, n * n), n};
    multiply_rows(step_.executor, n, n, n, read(turns), {Span<const float>(directions), n}, {}, turned,
                  Rounding::same_bits);
    if ((step_.index + 1) % kStepsOfDrift == 0) orthonormalise(n, n, turned.values);
    std::ranges::copy(turned.values, directions.begin());
  }

  static constexpr std::size_t kRange = std::size_t{1} << 16;

  const KltRules& rules_;
  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  TileCut<Step> cut_;
  State& state_;
  Floats learned_{};    // by this step's begin
  Span<float> next_{};  // and by its end
  Span<float> p_ = in_host_memory(gradient_);
  Span<float> old_ = in_host_memory(residual_);
  Span<float> own_ = coefficients();
  Span<float> mean_ = coefficients();
  Span<float> left_ = residual_.empty() ? Span<float>() : coefficients();  // see run()
  Span<float> turned_ = step_.workspace.take<float>(cut_.largest());
  Span<float> room_ = step_.workspace.take<float>(2 * kMostTileWidth * kMostTileWidth);
  Span<float> relative_ = step_.workspace.take<float>(kMostTileWidth);
  // Of turn_directions().
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
    return level_average_bytes(cut.coefficients(), static_cast<std::size_t>(workload.world_size),
                               static_cast<std::size_t>(workload.rank), rules_.levels, bits_);
  }

  void save(BucketWriter& writer) const override {
    states_.for_each([&](BucketId bucket, const State& state) {
      if (!state.learned) return;
      const auto all = Span<const float>(*state.learned);
      std::size_t begin = 0;
      for (const auto& [parameter, end] : *state.ends) {
        writer.array(kLearned, bucket, parameter, all.subspan(begin, end - begin));
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
      std::vector<float> learned = nothing_learned(cut);
      bool found = false;
      std::size_t begin = 0;
      for (const auto& [parameter, end] : ends) {
        const auto part = Span<float>(learned).subspan(begin, end - begin);
        found = reader.array(kLearned, bucket, parameter, part) || found;
        begin = end;
      }
      if (!found) continue;
      const std::string wrong = wrong_in(cut, learned);
      if (!wrong.empty()) {
        throw std::runtime_error("the state's directions of bucket " + std::to_string(bucket) + ": " + wrong);
      }
      loaded[bucket] = {std::make_shared<std::vector<float>>(std::move(learned)),
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
      "of 128";
  info.feedback_default = true;
  info.state = {kLearned};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {{"step", "0.3", "between levels, in units of the root mean square of a row, 0.05 to 16"},
                  {"every", "8", "steps from one turn of the directions to the next, 1 to 1000000"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    KltRules rules;
    rules.levels.step = options.real("step", 0.05, 16);
    rules.levels.by_place = true;
    rules.every = static_cast<std::uint64_t>(options.integer("every", 1, 1'000'000));
    return std::make_unique<Klt>(rules);
  };
  return info;
}

}  // namespace thinwire

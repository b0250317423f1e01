#include "exchange/level_average.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "exchange/payload_messages.h"
#include "exchange/shard_exchange.h"
#include "kernels/codes/entropy_code.h"
#include "kernels/codes/quantize.h"
#include "kernels/codes/rounded_levels.h"
#include "kernels/dense/dense.h"
#include "kernels/selection/block_norms.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr double kMostLevel = 32767;
/// A smaller step counts as 0, so that the inverse of each block's is finite.
constexpr double kLeastStep = 1e-33;
/// Levels of a place that are moved at a time: a line of the cache.
constexpr std::size_t kRun = 32;

/// Steps of blocks whose sums of squares are `norms`. Where these are 0, so is every level. Squares of values
/// below about 1e-22 are 0 in float32, so such values wait in the residual. scales: written.
float choose_steps(const LevelRules& rules, std::size_t elements, Span<float> norms,
                   Span<std::uint8_t> scales, Span<const std::uint16_t> marks) {
  for (std::size_t begin = 0; begin < marks.size();) {
    std::size_t end = begin + 1;
    if (marks[begin] != 0) {
      while (end < marks.size() && marks[end] == marks[end - 1] + 1) ++end;
      double sum = 0;
      static const double cap = std::getenv("TW_CAP") ? std::atof(std::getenv("TW_CAP")) : 4;
      for (std::size_t i = begin; i < end; ++i)
        sum += marks[begin] > 1000 ? std::min(static_cast<double>(norms[i]), cap * 128) : static_cast<double>(norms[i]);
      for (std::size_t i = begin; i < end; ++i) norms[i] = static_cast<float>(sum / static_cast<double>(end - begin));
    }
    begin = end;
  }
  double squares = 0;
  double largest = 0;
  for (const float norm : norms) {
    squares += static_cast<double>(norm);
    largest = std::max(largest, static_cast<double>(norm));
  }
  const double mean = squares / static_cast<double>(std::max<std::size_t>(1, elements));
  const double most_factor = static_cast<double>(kStepFactors.back());
  const double step = std::max(rules.step * std::sqrt(mean), std::sqrt(largest) / kMostLevel / most_factor);
  std::ranges::fill(scales, kUnitScale);
  if (step < kLeastStep) return 0;
  for (std::size_t block = 0; block < norms.size(); ++block) {
    const auto norm = static_cast<double>(norms[block]);
    const double count = static_cast<double>(std::min(kSteppedBlock, elements - block * kSteppedBlock));
    const double wanted = norm > 0 ? std::pow(norm / count / mean, rules.local / 2) : 0;
    // So that no level is cut, however the block's norm is spread.
    const double factor = std::max(wanted, std::sqrt(norm) / kMostLevel / step);
    const auto halves = factor > 0 ? std::lround(2 * std::log2(factor)) : -kUnitScale;
    auto scale = static_cast<std::uint8_t>(std::clamp<long>(kUnitScale + halves, 0, kStepScales - 1));
    while (scale + 1 < kStepScales &&
           static_cast<double>(kStepFactors[scale]) * step * kMostLevel < std::sqrt(norm))
      ++scale;
    scales[block] = scale;
  }
  return static_cast<float>(step);
}

/// Elements that no two owners share.
std::size_t run_of(const LevelRules& rules) {
  return rules.by_place ? kSteppedBlock : 1;
}

/// Share of a normal distribution below x.
double normal_below(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

std::uint64_t bytes_of_part(std::size_t elements, double bits) {
  if (elements == 0) return 0;
  const auto words = static_cast<std::uint64_t>(static_cast<double>(elements) * bits / 8);
  const std::uint64_t codes = words + entropy_coded_head_bytes(elements);
  // Where that is no gain, levels go as they are.
  return sizeof(float) + stepped_blocks(elements) +
         std::min<std::uint64_t>(codes, most_entropy_coded_bytes(elements));
}

class LevelAverage {
 public:
  LevelAverage(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
               const LevelRules& rules)
      : bucket_(bucket),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        rules_(rules),
        up_(bucket, kLevelsUpTag, step),
        down_(bucket, kLevelsDownTag, step),
        own_(step.workspace.take<Part>(world())),
        results_(step.workspace.take<Part>(world())) {
    std::size_t most = 0;
    for (std::size_t owner = 0; owner < world(); ++owner) {
      own_[owner] = part_of(owner);
      results_[owner] = part_of(owner);
      most = std::max(most, shard(owner).size());
    }
    coded_ = step.workspace.take<std::byte>(most_entropy_coded_bytes(most));
    if (rules_.by_place) placed_ = step.workspace.take<std::int16_t>(most);
    norms_ = step.workspace.take<float>(stepped_blocks(most));
  }

  void run() {
    step_.communicator.commit_exchange();
    round_own();
    send_parts();
    average();
    send_result();
    step_.report.formula_bytes = sent_;
    step_.report.finite = down_.finite();
    if (down_.finite()) apply();
  }

 private:
  /// Steps and levels of one owner's part.
  struct Part {
    float step = 0;
    std::size_t owner = 0;
    Span<std::uint8_t> scales{};
    Span<std::int16_t> levels{};

    SteppedLevels said() const { return {{step, scales}, levels}; }
  };

  std::size_t world() const { return std::max<std::size_t>(1, up_.world()); }
  std::size_t self() const { return up_.self(); }
  Shard shard(std::size_t owner) const { return shard_of(gradient_.size(), world(), owner, run_of(rules_)); }
  template <class T>
  T shard_in(T all, std::size_t owner) const {
    return all.subspan(shard(owner).begin, shard(owner).size());
  }
  Part part_of(std::size_t owner) const {
    const std::size_t count = shard(owner).size();
    return {.owner = owner, .scales = step_.workspace.take<std::uint8_t>(stepped_blocks(count)),
            .levels = step_.workspace.take<std::int16_t>(count)};
  }

  Span<const std::uint16_t> squares_of(std::size_t owner) const {
    if (rules_.squares.empty()) return {};
    return rules_.squares.subspan(shard(owner).begin / kSteppedBlock, stepped_blocks(shard(owner).size()));
  }
  /// Returns whether all values are finite, also `times` as large; without meaning otherwise.
  bool round(Span<const float> values, Span<const float> residual, double times, Part& part) {
    const auto norms = norms_.first(part.scales.size());
    block_norms(step_.executor, values, residual, kSteppedBlock, norms);
    if (std::ranges::any_of(norms, [](float norm) { return !std::isfinite(norm); })) {
      // Squares overflow where values do not.
      const float largest = largest_magnitude(step_.executor, values, residual);
      if (!std::isfinite(static_cast<float>(static_cast<double>(largest) * times))) return false;
      std::ranges::fill(part.scales, kUnitScale);
      part.step = static_cast<float>(static_cast<double>(largest) / kMostLevel);
    } else {
      part.step = choose_steps(rules_, values.size(), norms, part.scales, squares_of(part.owner));
    }
    round_to_levels(step_.executor, part.said().steps, rules_.up, values, residual, part.levels);
    return true;
  }

  static void blank(Part& part) {
    part.step = 0;
    std::ranges::fill(part.scales, kUnitScale);
    std::ranges::fill(part.levels, std::int16_t{0});
  }

  void round_own() {
    for (std::size_t owner = 0; owner < world(); ++owner) {
      up_.note(round(shard_in<Span<const float>>(gradient_, owner),
                     shard_in<Span<const float>>(residual_, owner), 1, own_[owner]));
    }
    if (up_.finite()) return;
    for (Part& part : own_) blank(part);
  }

  /// Bytes in front of the levels' code.
  static std::size_t table_bytes(const Part& part) {
    return sizeof(float) + part.scales.size() + part.scales.size() % 2;
  }

  /// The order in which levels travel, and back. Behind the last square of 128 blocks they stay as they are.
  void order_by_place(Span<const std::int16_t> levels, Span<std::int16_t> placed,
                      Span<const std::uint16_t> squares, bool back) const {
    if (squares.empty()) return order_square(levels, placed);
    for (std::size_t begin = 0; begin < squares.size();) {
      std::size_t end = begin + 1;
      if (squares[begin] == 0) {
        while (end < squares.size() && squares[end] == 0) ++end;
      } else {
        while (end < squares.size() && squares[end] == squares[end - 1] + 1) ++end;
      }
      const std::size_t first = begin * kSteppedBlock;
      const std::size_t count = std::min(levels.size(), end * kSteppedBlock) - first;
      if (squares[begin] == 0 || squares[begin] > 1000) {
        order_square(levels.subspan(first, count), placed.subspan(first, count));
      } else {
        const std::size_t row = squares[begin] - 1u;
        std::size_t at = 0;
        for (const std::uint16_t place : zigzag()) {
          const std::size_t i = place / kSteppedBlock;
          if (i < row || i >= row + (end - begin)) continue;
          const std::size_t here = first + (i - row) * kSteppedBlock + place % kSteppedBlock;
          if (back) placed[here] = levels[first + at++];
          else placed[first + at++] = levels[here];
        }
      }
      begin = end;
    }
  }
  static const std::vector<std::uint16_t>& zigzag() {
    static const std::vector<std::uint16_t> order = [] {
      std::vector<std::uint16_t> all(kSteppedBlock * kSteppedBlock);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
      std::ranges::stable_sort(all, {}, [](std::uint16_t place) {
        return (place / kSteppedBlock + 1) * (place % kSteppedBlock + 1);
      });
      return all;
    }();
    return order;
  }
  void order_square(Span<const std::int16_t> levels, Span<std::int16_t> placed) const {
    constexpr std::size_t kSquare = kSteppedBlock * kSteppedBlock;
    std::size_t begin = 0;
    for (; begin + kSquare <= levels.size(); begin += kSquare) {
      for (std::size_t i = 0; i < kSteppedBlock; i += kRun) {
        for (std::size_t j = 0; j < kSteppedBlock; ++j) {
          for (std::size_t r = i; r < i + kRun; ++r) {
            placed[begin + j * kSteppedBlock + r] = levels[begin + r * kSteppedBlock + j];
          }
        }
      }
    }
    std::copy(levels.begin() + begin, levels.end(), placed.begin() + begin);
  }

  /// Step, scales, coded levels, in the workspace.
  Span<const std::byte> payload_of(const Part& part) {
    if (part.levels.empty()) return {};
    Span<const std::int16_t> levels = part.levels;
    if (rules_.by_place) {
      const auto placed = placed_.first(levels.size());
      order_by_place(levels, placed, squares_of(part.owner), false);
      levels = placed;
    }
    const std::size_t coded = write_entropy_coded(step_.executor, levels, coded_);
    if (std::getenv("TW_DEBUG") && step_.communicator.rank() == 0 && step_.index % 20 >= 10) {
      const auto marks = squares_of(part.owner);
      std::vector<std::int16_t> in, out;
      for (std::size_t i = 0; i < levels.size(); ++i)
        (!marks.empty() && marks[i / kSteppedBlock] ? in : out).push_back(levels[i]);
      auto bits = [&](std::vector<std::int16_t>& v) {
        if (v.empty()) return 0.0;
        return 8.0 * static_cast<double>(write_entropy_coded(step_.executor, Span<const std::int16_t>(v), coded_)) / static_cast<double>(v.size());
      };
      const double a1 = bits(in), a2 = bits(out);
      std::fprintf(stderr, "DBG coded %zu table %zu step %zu bucket %zu owner %zu in %zu bits %.3f out %zu bits %.3f scales %zu\n", coded, table_bytes(part), (size_t)step_.index, (size_t)bucket_, part.owner, in.size(), a1, out.size(), a2, part.scales.size());
      write_entropy_coded(step_.executor, levels, coded_);
    }
    const std::size_t table = table_bytes(part);
    const auto payload = step_.workspace.take<std::byte>(table + coded);
    payload[table - 1] = std::byte{};
    std::memcpy(payload.data(), &part.step, sizeof part.step);
    std::memcpy(payload.data() + sizeof part.step, part.scales.data(), part.scales.size());
    std::memcpy(payload.data() + table, coded_.data(), coded);
    return payload;
  }

  FrameContents contents(std::size_t owner, std::size_t workers, std::size_t bytes) const {
    return {.type = FrameType::levels,
            .workers = static_cast<std::uint32_t>(workers),
            .first = shard(owner).begin,
            .count = shard(owner).size(),
            .payload_bytes = bytes};
  }

  void await_header(PayloadMessages& messages, std::size_t peer, std::size_t owner, std::size_t workers) {
    messages.await_header(peer, workers, [&](const FrameHeader& header) {
      require_field(header, "type", static_cast<std::uint64_t>(header.type),
                    static_cast<std::uint64_t>(FrameType::levels));
      require_field(header, "first element", header.first, shard(owner).begin);
      require_field(header, "count", header.count, shard(owner).size());
      // The most that so many levels can take was checked with the header.
      const std::uint64_t least = header.count == 0 ? 0 : table_bytes(own_[owner]);
      if (header.payload_bytes >= least) return;
      throw CorruptFrame("frame refused: payload length is " + std::to_string(header.payload_bytes) +
                         ", expected at least " + std::to_string(least) + " (" + whose(header) + ")");
    });
  }

  /// A peer's payload into its steps and levels.
  void read(PayloadMessages& messages, std::size_t peer, Part& part) {
    const Span<const std::byte> payload = messages.await_payload(peer);
    if (part.levels.empty()) return;
    try {
      read_table(payload, part);
      const std::size_t table = table_bytes(part);
      const auto coded = payload.subspan(table, payload.size() - table);
      if (rules_.by_place) {
        const auto placed = placed_.first(part.levels.size());
        read_entropy_coded(step_.executor, coded, placed);
        order_by_place(placed, part.levels, squares_of(part.owner), true);
      } else {
        read_entropy_coded(step_.executor, coded, part.levels);
      }
    } catch (const CorruptFrame& error) {
      throw CorruptFrame(std::string(error.what()) + " (" + whose(messages.header_of(peer)) + ")");
    }
  }

  static void read_table(Span<const std::byte> payload, Part& part) {
    std::memcpy(&part.step, payload.data(), sizeof part.step);
    std::memcpy(part.scales.data(), payload.data() + sizeof part.step, part.scales.size());
    if (!(part.step >= 0 && std::isfinite(part.step * kStepFactors.back()))) {
      throw CorruptFrame("frame refused: step is " + std::to_string(part.step) +
                         ", expected not negative and finite");
    }
    const auto wrong = std::ranges::find_if(part.scales, [](std::uint8_t one) { return one >= kStepScales; });
    if (wrong != part.scales.end()) {
      throw CorruptFrame("frame refused: scale is " + std::to_string(*wrong) + ", expected below " +
                         std::to_string(kStepScales));
    }
    if (part.scales.size() % 2 != 0 && payload[table_bytes(part) - 1] != std::byte{}) {
      throw CorruptFrame("frame refused: the byte behind the scales is not 0");
    }
  }

  void send_parts() {
    // Receives wait for stamps, which travel while the first part is coded.
    bool expects = false;
    up_.exchange(
        [&](std::size_t owner) {
          const auto payload = payload_of(own_[owner]);
          if (!std::exchange(expects, true)) up_.for_peers([&](std::size_t peer) { up_.expect(peer); });
          sent_ += payload.size();
          return PayloadMessages::Outgoing{up_.seal(contents(owner, 1, payload.size()), payload), payload};
        },
        [&](std::size_t peer) { await_header(up_, peer, self(), 1); });
  }

  /// Of this rank's part.
  void average() {
    const auto ranks = step_.workspace.take<SteppedLevels>(world());
    ranks[self()] = own_[self()].said();
    up_.for_peers([&](std::size_t peer) {
      Part part = part_of(self());
      read(up_, peer, part);
      ranks[peer] = part.said();
    });
    step_.clock.enter(Phase::decompress);
    mean_ = step_.scratch.take<float>(shard(self()).size());
    mean_of_levels(step_.executor, ranks, mean_);
    step_.clock.enter(Phase::compress);
  }

  void send_result() {
    Part& own = results_[self()];
    // What the levels leave out counts W times.
    down_.note(up_.finite() && round(mean_, {}, static_cast<double>(world()), own));
    if (!down_.finite()) blank(own);
    if (world() == 1) return;
    const auto payload = payload_of(own);
    const auto sealed = down_.seal(contents(self(), world(), payload.size()), payload);
    sent_ += (world() - 1) * payload.size();
    down_.for_peers([&](std::size_t peer) { down_.expect(peer); });
    down_.exchange(
        [&](std::size_t) {
          return PayloadMessages::Outgoing{sealed, payload};
        },
        [&](std::size_t peer) { await_header(down_, peer, peer, world()); });
    down_.for_peers([&](std::size_t peer) {
      read(down_, peer, results_[peer]);
      if (down_.finite()) require_finite(peer);
    });
    up_.finish();
    down_.finish();
    step_.communicator.end_turn();
  }

  /// Throws CorruptFrame where a result of `owner` is no float.
  void require_finite(std::size_t owner) const {
    const SteppedLevels result = results_[owner].said();
    if (std::isfinite(result.steps.step * kStepFactors.back() * static_cast<float>(kMostLevel))) return;
    for (std::size_t i = 0; i < result.levels.size(); ++i) {
      if (std::isfinite(result.steps.of(i / kSteppedBlock) * static_cast<float>(result.levels[i]))) continue;
      throw CorruptFrame("frame refused: the mean of rank " + std::to_string(owner) + " for bucket " +
                         std::to_string(bucket_) + " in step " + std::to_string(step_.index) +
                         " holds inf, and its flags say that all is finite");
    }
  }

  void apply() {
    step_.clock.enter(Phase::decompress);
    const ResidualSpan left = step_.turn.write(residual_);
    double squares = 0;
    for (std::size_t owner = 0; owner < world(); ++owner) {
      const double part = apply_levels(step_.executor, own_[owner].said(), results_[owner].said(),
                                       shard_in(gradient_, owner), shard_in(left, owner));
      squares += owner == self() ? 0 : part;
    }
    if (left.empty()) return;
    // What the result's levels left out stays with the owner, who stands for all ranks.
    const auto all = static_cast<float>(world());
    scale(step_.executor, mean_, all);
    squares +=
        add_remainder(step_.executor, mean_, all, shard_in(gradient_, self()), shard_in(left.after, self()));
    step_.report.residual_norm = std::sqrt(squares);
  }

  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  LevelRules rules_;
  PayloadMessages up_;
  PayloadMessages down_;
  Span<Part> own_;      // this rank's, by owner
  Span<Part> results_;  // the means, by owner
  Span<float> mean_;    // of this rank's part
  Span<float> norms_;   // of the blocks at hand
  Span<std::byte> coded_;
  Span<std::int16_t> placed_;  // levels in the order in which they travel
  std::uint64_t sent_ = 0;
};

}  // namespace

void average_levels(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                    const LevelRules& rules) {
  LevelAverage(bucket, gradient, residual, step, rules).run();
}

double normal_level_bits(const LevelRules& rules) {
  double bits = 0;
  const auto add = [&](double share) {
    if (share > 0) bits -= share * std::log2(share);
  };
  const double zero = (1 - static_cast<double>(rules.up)) * rules.step;  // larger magnitudes are no zero
  add(1 - 2 * normal_below(-zero));
  const auto levels = static_cast<int>(std::max(0.0, 40 - zero) / rules.step) + 1;
  for (int level = 0; level < levels; ++level) {
    const double begin = zero + level * rules.step;
    const double share = normal_below(-begin) - normal_below(-begin - rules.step);
    add(share);
    add(share);
  }
  return bits;
}

std::uint64_t level_average_bytes(std::size_t elements, std::size_t world, std::size_t rank,
                                  const LevelRules& rules, double bits) {
  const auto bytes_of = [&](std::size_t owner) {
    return bytes_of_part(shard_of(elements, world, owner, run_of(rules)).size(), bits);
  };
  return shard_exchange_bytes(world, rank, bytes_of, bytes_of);
}

}  // namespace thinwire

#include "exchange/level_average.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

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
/// Steps of blocks whose sums of squares are `norms`. Where these are 0, so is every level. Squares of values
/// below about 1e-22 are 0 in float32, so such values wait in the residual. scales: written.
float choose_steps(const LevelRules& rules, std::size_t elements, Span<const float> norms,
                   Span<std::uint8_t> scales) {
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

/// Where owners' parts begin, and the last one ends: [world + 1]. A square has one owner.
Span<const std::size_t> begins_of_parts(std::size_t elements, std::size_t world, const LevelRules& rules,
                                        Step& step) {
  const auto begins = step.workspace.take<std::size_t>(world + 1);
  for (std::size_t owner = 0; owner < world; ++owner) {
    begins[owner] = shard_of(elements, world, owner, run_of(rules)).begin;
    for (const LevelSquare& square : rules.squares) {
      const std::size_t begin = square.first * kSteppedBlock;
      const std::size_t end = begin + square.blocks * kSteppedBlock;
      if (begins[owner] <= begin || begins[owner] >= end) continue;
      begins[owner] = begins[owner] - begin < end - begins[owner] ? begin : end;
    }
  }
  begins[world] = elements;
  return begins;
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
               const LevelRules& rules, std::size_t base)
      : bucket_(bucket),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        rules_(rules),
        base_(base),
        up_(bucket, kLevelsUpTag, step),
        down_(bucket, kLevelsDownTag, step),
        begins_(begins_of_parts(gradient.size(), world(), rules, step)),
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

  void run(bool finite) {
    step_.communicator.commit_exchange();
    up_.note(finite);
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
    std::size_t owner = 0;
    float step = 0;
    Span<std::uint8_t> scales{};
    Span<std::int16_t> levels{};

    SteppedLevels said() const { return {{step, scales}, levels}; }
  };

  std::size_t world() const { return std::max<std::size_t>(1, up_.world()); }
  std::size_t self() const { return up_.self(); }
  Shard shard(std::size_t owner) const { return {begins_[owner], begins_[owner + 1]}; }
  template <class T>
  T shard_in(T all, std::size_t owner) const {
    return all.subspan(shard(owner).begin, shard(owner).size());
  }
  Part part_of(std::size_t owner) const {
    const std::size_t count = shard(owner).size();
    return {.owner = owner,
            .scales = step_.workspace.take<std::uint8_t>(stepped_blocks(count)),
            .levels = step_.workspace.take<std::int16_t>(count)};
  }

  template <class Body>
  void for_shared_of(std::size_t owner, Body&& body) const {
    const std::size_t first = first_block(owner);
    for_shared(rules_.squares, first, first + stepped_blocks(shard(owner).size()), body);
  }
  std::size_t first_block(std::size_t owner) const { return shard(owner).begin / kSteppedBlock; }

  /// Returns whether all values are finite, also `times` as large; without meaning otherwise.
  bool round(Span<const float> values, Span<const float> residual, double times, Part& part) {
    const auto norms = norms_.first(part.scales.size());
    block_norms(step_.executor, values, residual, kSteppedBlock, norms);
    for_shared_of(part.owner, [&](const SharedBlocks& blocks) {
      if (blocks.square == nullptr) return;
      const auto shared = norms.subspan(blocks.begin, blocks.end - blocks.begin);
      double sum = 0;
      std::size_t count = 0;  // of blocks with anything to say
      for (const float norm : shared) {
        count += norm > 0 ? 1 : 0;
        sum += blocks.has_order() ? static_cast<double>(norm) : std::sqrt(static_cast<double>(norm));
      }
      const double mean =
          sum / static_cast<double>(blocks.has_order() ? shared.size() : std::max<std::size_t>(count, 1));
      std::ranges::fill(shared, static_cast<float>(blocks.has_order() ? mean : mean * mean));
    });
    if (std::ranges::any_of(norms, [](float norm) { return !std::isfinite(norm); })) {
      // Squares overflow where values do not.
      const float largest = largest_magnitude(step_.executor, values, residual);
      if (!std::isfinite(static_cast<float>(static_cast<double>(largest) * times))) return false;
      std::ranges::fill(part.scales, kUnitScale);
      part.step = static_cast<float>(static_cast<double>(largest) / kMostLevel);
    } else {
      part.step = choose_steps(rules_, values.size(), norms, part.scales);
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

  /// body(first, end) for the blocks that each scale of a frame is of: a square has one.
  template <class Body>
  void for_scales(const Part& part, Body&& body) const {
    for_shared_of(part.owner, [&](const SharedBlocks& blocks) {
      if (blocks.square != nullptr) return body(blocks.begin, blocks.end);
      for (std::size_t block = blocks.begin; block < blocks.end; ++block) body(block, block + 1);
    });
  }
  /// Bytes in front of the levels' code.
  std::size_t table_bytes(const Part& part) const {
    std::size_t scales = 0;
    for_scales(part, [&](std::size_t, std::size_t) { ++scales; });
    return sizeof(float) + scales + scales % 2;
  }

  /// Step, scales, coded levels, in the workspace.
  Span<const std::byte> payload_of(const Part& part) {
    if (part.levels.empty()) return {};
    Span<const std::int16_t> levels = part.levels;
    if (rules_.by_place) {
      const auto placed = placed_.first(levels.size());
      order_by_place(rules_.squares, first_block(part.owner), levels, placed);
      levels = placed;
    }
    const std::size_t coded = write_entropy_coded(step_.executor, levels, coded_);
    const std::size_t table = table_bytes(part);
    const auto payload = step_.workspace.take<std::byte>(table + coded);
    payload[table - 1] = std::byte{};
    std::memcpy(payload.data(), &part.step, sizeof part.step);
    std::size_t at = sizeof part.step;
    for_scales(part, [&](std::size_t block, std::size_t) { payload[at++] = std::byte{part.scales[block]}; });
    std::memcpy(payload.data() + table, coded_.data(), coded);
    return payload;
  }

  FrameContents contents(std::size_t owner, std::size_t workers, std::size_t bytes) const {
    return {.type = FrameType::levels,
            .workers = static_cast<std::uint32_t>(workers),
            .first = base_ + shard(owner).begin,
            .count = shard(owner).size(),
            .payload_bytes = bytes,
            .width = rules_.digest};
  }

  void await_header(PayloadMessages& messages, std::size_t peer, std::size_t owner, std::size_t workers) {
    messages.await_header(peer, workers, [&](const FrameHeader& header) {
      require_field(header, "type", static_cast<std::uint64_t>(header.type),
                    static_cast<std::uint64_t>(FrameType::levels));
      require_field(header, "first element", header.first, base_ + shard(owner).begin);
      require_field(header, "count", header.count, shard(owner).size());
      if (rules_.digest == 0) require_field(header, "digest", header.width, 0);
      if (header.width != rules_.digest) {
        throw CorruptFrame("frame refused: the digest of what its levels mean is " +
                           std::to_string(header.width) + ", here " + std::to_string(rules_.digest) +
                           ", so ranks no longer have the same directions: let all run the same build, and "
                           "begin from one checkpoint (" +
                           whose(header) + ")");
      }
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
        order_as_they_were(rules_.squares, first_block(part.owner), placed, part.levels);
      } else {
        read_entropy_coded(step_.executor, coded, part.levels);
      }
    } catch (const CorruptFrame& error) {
      throw CorruptFrame(std::string(error.what()) + " (" + whose(messages.header_of(peer)) + ")");
    }
  }

  void read_table(Span<const std::byte> payload, Part& part) const {
    std::memcpy(&part.step, payload.data(), sizeof part.step);
    std::size_t at = sizeof part.step;
    for_scales(part, [&](std::size_t block, std::size_t end) {
      std::ranges::fill(part.scales.subspan(block, end - block),
                        std::to_integer<std::uint8_t>(payload[at++]));
    });
    if (!(part.step >= 0 && std::isfinite(part.step * kStepFactors.back()))) {
      throw CorruptFrame("frame refused: step is " + std::to_string(part.step) +
                         ", expected not negative and finite");
    }
    const auto wrong = std::ranges::find_if(part.scales, [](std::uint8_t one) { return one >= kStepScales; });
    if (wrong != part.scales.end()) {
      throw CorruptFrame("frame refused: scale is " + std::to_string(*wrong) + ", expected below " +
                         std::to_string(kStepScales));
    }
    if (at < table_bytes(part) && payload[at] != std::byte{}) {
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
  std::size_t base_;
  PayloadMessages up_;
  PayloadMessages down_;
  Span<const std::size_t> begins_;  // of the owners' parts, and their end
  Span<Part> own_;                  // this rank's, by owner
  Span<Part> results_;              // the means, by owner
  Span<float> mean_;                // of this rank's part
  Span<float> norms_;               // of the blocks at hand
  Span<std::byte> coded_;
  Span<std::int16_t> placed_;  // levels in the order in which they travel
  std::uint64_t sent_ = 0;
};

}  // namespace

void average_levels(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                    const LevelRules& rules, std::size_t base, bool finite) {
  LevelAverage(bucket, gradient, residual, step, rules, base).run(finite);
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

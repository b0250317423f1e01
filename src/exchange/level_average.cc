#include "exchange/level_average.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "exchange/block_average.h"
#include "exchange/payload_messages.h"
#include "exchange/shard_exchange.h"
#include "kernels/codes/entropy_code.h"
#include "kernels/codes/quantize.h"
#include "kernels/codes/rounded_levels.h"
#include "kernels/dense/dense.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr float kMostLevel = 32767;

/// Large enough that no level is cut, and that its inverse is finite.
float step_of(double step, double mean_square, float largest) {
  // Sums of squares of floats near the largest one overflow.
  const double root = std::isfinite(mean_square) ? std::sqrt(mean_square) : static_cast<double>(largest);
  const double least = 1.00001 * static_cast<double>(largest) / static_cast<double>(kMostLevel);
  const double wanted =
      std::clamp(step * root, least, static_cast<double>(std::numeric_limits<float>::max()));
  return wanted < static_cast<double>(std::numeric_limits<float>::min()) ? 0.0f : static_cast<float>(wanted);
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
        down_(bucket, kLevelsDownTag, step) {
    cut();
    std::size_t most = 0;
    for (std::size_t owner = 0; owner < world(); ++owner) most = std::max(most, shard(owner).size());
    coded_ = step.workspace.take<std::byte>(most_entropy_coded_bytes(most));
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
  std::size_t world() const { return up_.world(); }
  std::size_t self() const { return up_.self(); }
  Shard shard(std::size_t owner) const { return shard_of(gradient_.size(), world(), owner); }

  /// Ranges that share a step, which begin and end with parts.
  void cut() {
    const std::size_t whole = gradient_.size();
    const auto parameters = rules_.of_parameters && !step_.parameter_ends.empty()
                                ? step_.parameter_ends
                                : Span<const std::size_t>(&whole, 1);
    const auto room = step_.workspace.take<std::size_t>(parameters.size() + world());
    first_range_ = step_.workspace.take<std::size_t>(world() + 1);
    std::size_t ranges = 0;
    std::size_t begin = 0;
    std::size_t parameter = 0;
    for (std::size_t owner = 0; owner < world(); ++owner) {
      first_range_[owner] = ranges;
      const std::size_t end = shard(owner).end;
      while (begin < end) {
        while (parameters[parameter] <= begin) ++parameter;
        begin = room[ranges++] = std::min(end, parameters[parameter]);
      }
    }
    first_range_[world()] = ranges;
    ends_ = room.first(ranges);
    steps_ = step_.workspace.take<float>(ranges);
    result_steps_ = step_.workspace.take<float>(ranges);
    levels_ = step_.workspace.take<std::int16_t>(whole);
    results_ = step_.workspace.take<std::int16_t>(whole);
  }

  std::size_t ranges_of(std::size_t owner) const { return first_range_[owner + 1] - first_range_[owner]; }
  template <class T>
  Span<T> ranges_in(Span<T> all, std::size_t owner) const {
    return all.subspan(first_range_[owner], ranges_of(owner));
  }
  template <class T>
  Span<T> elements_in(Span<T> all, std::size_t owner) const {
    return all.subspan(shard(owner).begin, shard(owner).size());
  }

  /// steps: one for each range, by what shares it. Returns whether all values are finite, also `times` as
  /// large.
  bool choose_steps(Span<const std::size_t> ends, Span<const float> values, Span<const float> residual,
                    float times, Span<float> steps) {
    const auto squares = step_.workspace.take<double>(ends.size());
    measure_ranges(step_.executor, ends, values, residual, steps, squares);
    std::size_t begin = 0;
    for (std::size_t range = 0; range < ends.size(); begin = ends[range], ++range) {
      if (!std::isfinite(steps[range] * times)) return false;
      steps[range] =
          step_of(rules_.step, squares[range] / static_cast<double>(ends[range] - begin), steps[range]);
    }
    return true;
  }

  void round_own() {
    up_.note(choose_steps(ends_, gradient_, residual_, 1, steps_));
    if (up_.finite()) {
      round_to_levels(step_.executor, ends_, steps_, rules_.up, gradient_, residual_, levels_);
    } else {
      blank(steps_, levels_);
    }
  }

  static void blank(Span<float> steps, Span<std::int16_t> levels) {
    std::ranges::fill(steps, 0.0f);
    std::ranges::fill(levels, std::int16_t{0});
  }

  /// Steps, then coded levels, in the workspace.
  Span<const std::byte> payload_of(Span<const float> steps, Span<const std::int16_t> levels) {
    const std::size_t coded = write_entropy_coded(step_.executor, levels, coded_);
    const auto payload = step_.workspace.take<std::byte>(steps.size_bytes() + coded);
    std::memcpy(payload.data(), steps.data(), steps.size_bytes());
    std::memcpy(payload.data() + steps.size_bytes(), coded_.data(), coded);
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
      const std::uint64_t steps = ranges_of(owner) * sizeof(float);
      const std::uint64_t most = steps + most_entropy_coded_bytes(shard(owner).size());
      if (header.payload_bytes >= steps && header.payload_bytes <= most) return;
      throw CorruptFrame("frame from rank " + std::to_string(peer) + " refused: payload length is " +
                         std::to_string(header.payload_bytes) + ", expected " + std::to_string(steps) +
                         " to " + std::to_string(most));
    });
  }

  /// A peer's payload into its steps and levels.
  void read(PayloadMessages& messages, std::size_t peer, Span<float> steps, Span<std::int16_t> levels) {
    const Span<const std::byte> payload = messages.await_payload(peer);
    const std::size_t table = steps.size_bytes();
    std::memcpy(steps.data(), payload.data(), table);
    bound_of_table(steps, peer);
    require_norms(steps);
    read_entropy_coded(step_.executor, payload.subspan(table, payload.size() - table), levels);
  }

  void send_parts() {
    up_.for_peers([&](std::size_t peer) { up_.expect(peer); });
    up_.exchange(
        [&](std::size_t owner) {
          const auto payload = payload_of(ranges_in(steps_, owner), elements_in(levels_, owner));
          sent_ += payload.size();
          return PayloadMessages::Outgoing{up_.seal(contents(owner, 1, payload.size()), payload), payload};
        },
        [&](std::size_t peer) { await_header(up_, peer, self(), 1); });
  }

  /// Of this rank's part.
  void average() {
    const std::size_t count = shard(self()).size();
    const auto ranks = step_.workspace.take<SteppedLevels>(world());
    ranks[self()] = {ranges_in(steps_, self()), elements_in(levels_, self())};
    up_.for_peers([&](std::size_t peer) {
      const auto steps = step_.workspace.take<float>(ranges_of(self()));
      const auto levels = step_.workspace.take<std::int16_t>(count);
      read(up_, peer, steps, levels);
      ranks[peer] = {steps, levels};
    });
    step_.clock.enter(Phase::decompress);
    own_ends_ = step_.workspace.take<std::size_t>(ranges_of(self()));
    std::ranges::transform(ranges_in(ends_, self()), own_ends_.begin(),
                           [&](std::size_t end) { return end - shard(self()).begin; });
    mean_ = step_.scratch.take<float>(count);
    mean_of_levels(step_.executor, own_ends_, ranks, mean_);
    step_.clock.enter(Phase::compress);
  }

  void send_result() {
    const auto steps = ranges_in(result_steps_, self());
    const auto levels = elements_in(results_, self());
    // What the levels leave out counts W times.
    down_.note(up_.finite() && choose_steps(own_ends_, mean_, {}, static_cast<float>(world()), steps));
    if (down_.finite()) {
      round_to_levels(step_.executor, own_ends_, steps, rules_.up, mean_, {}, levels);
    } else {
      blank(steps, levels);
    }
    const auto payload = payload_of(steps, levels);
    const auto sealed = down_.seal(contents(self(), world(), payload.size()), payload);
    sent_ += (world() - 1) * payload.size();
    down_.for_peers([&](std::size_t peer) { down_.expect(peer); });
    down_.exchange(
        [&](std::size_t) {
          return PayloadMessages::Outgoing{sealed, payload};
        },
        [&](std::size_t peer) { await_header(down_, peer, peer, world()); });
    down_.for_peers([&](std::size_t peer) {
      const auto steps_of_peer = ranges_in(result_steps_, peer);
      read(down_, peer, steps_of_peer, elements_in(results_, peer));
      if (down_.finite()) require_finite(peer);
    });
    up_.finish();
    down_.finish();
    step_.communicator.end_turn();
  }

  /// Throws CorruptFrame where a result of `owner` is no float.
  void require_finite(std::size_t owner) const {
    std::size_t begin = shard(owner).begin;
    for (std::size_t range = first_range_[owner]; range < first_range_[owner + 1]; ++range) {
      const float step = result_steps_[range];
      const auto levels = results_.subspan(begin, ends_[range] - begin);
      begin = ends_[range];
      if (std::isfinite(step * kMostLevel)) continue;
      for (const std::int16_t level : levels) {
        if (std::isfinite(step * static_cast<float>(level))) continue;
        throw CorruptFrame("frame refused: the mean of rank " + std::to_string(owner) + " for bucket " +
                           std::to_string(bucket_) + " in step " + std::to_string(step_.index) +
                           " holds inf, and its flags say that all is finite");
      }
    }
  }

  void apply() {
    step_.clock.enter(Phase::decompress);
    const ResidualSpan left = step_.turn.write(residual_);
    apply_levels(step_.executor, ends_, {steps_, levels_}, {result_steps_, results_}, gradient_, left);
    if (left.empty()) return;
    // What the result's levels left out stays with the owner, who stands for all ranks.
    const auto all = static_cast<float>(world());
    const auto own = shard(self());
    scale(step_.executor, mean_, all);
    add_remainder(step_.executor, mean_, all, gradient_.subspan(own.begin, own.size()),
                  left.after.subspan(own.begin, own.size()));
  }

  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  LevelRules rules_;
  PayloadMessages up_;
  PayloadMessages down_;
  std::uint64_t sent_ = 0;

  Span<std::size_t> ends_;         // of all ranges
  Span<std::size_t> first_range_;  // of each owner, and behind the last one's
  Span<std::size_t> own_ends_;     // of this rank's ranges, within its part
  Span<float> steps_;              // this rank's,
  Span<std::int16_t> levels_;      // and its levels
  Span<float> result_steps_;       // of all owners' means
  Span<std::int16_t> results_;
  Span<float> mean_;  // of this rank's part
  Span<std::byte> coded_;
};

}  // namespace

void average_levels(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                    const LevelRules& rules) {
  LevelAverage(bucket, gradient, residual, step, rules).run();
}

}  // namespace thinwire

// 1-bit Adam and 0/1 Adam, as far as whoever synchronizes gradients can hold them: Adam's momentum travels in
// one bit per element, and Adam's variance stands still meanwhile.
//
// Sources: H. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
// Speed", ICML 2021 (arXiv 2102.02888), algorithm 1. Y. Lu et al., "Maximizing Communication Efficiency for
// Large-scale Training via 0/1 Adam" (arXiv 2202.06009), algorithm 1.
//
//   gradient --+ beta1 V--> v --signs on both legs--> V' --- beta1 V--> what Adam is given
//   gradient --dense--> what Adam is given, + beta1 V --> V'
//
// V is the momentum delivered so far (stages/momentum.h). Adam makes it its own again: m = (1 - beta1)
// V'. Whoever steps the optimizer asks Session::variance_is_frozen() and holds the second moment in these
// steps.
//
// one_bit_adam: dense in the first `freeze` steps, then signs. The variance is frozen with the first signs.
//
// zero_one_adam: dense in the steps k_0 = 0, k_(j+1) = k_j + 2^floor(j / kappa) up to `freeze`, where the
// variance moves; signs in all others. The dense steps leave the residual where it is, so that the variance
// sees the mean of gradients and nothing else. The paper's steps without any exchange are not here: all ranks
// get the same mean in every step.
//
// Bytes per rank: dense's, or those of SignShards.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "baselines/baselines.h"
#include "exchange/shard_exchange.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/sign_bits.h"
#include "stages/momentum.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

enum class SignScale {
  l1,  ///< mean |p|, which errs least.
  l2,  ///< sqrt(mean p^2), with which the code is as long as p.
};

/// What one parameter has in one shard.
struct Part {
  std::size_t begin = 0;  // in the bucket
  std::size_t count = 0;
  std::size_t number = 0;  // in the shard
  std::size_t word = 0;    // where its bits begin: parts share no word
};

/// Calls body(part) for what each parameter has in the shard, in order. Returns how many there are, and
/// words of all.
template <class Body>
std::pair<std::size_t, std::size_t> for_parts(Span<const std::size_t> ends, const Shard& shard, Body&& body) {
  Part part;
  const auto* end = std::upper_bound(ends.begin(), ends.end(), shard.begin);
  for (std::size_t at = shard.begin; at < shard.end; at += part.count) {
    while (end != ends.end() && *end == at) ++end;  // parameters without elements
    const std::size_t stop = end == ends.end() ? shard.end : std::min(shard.end, *end);
    part.begin = at;
    part.count = stop - at;
    body(static_cast<const Part&>(part));
    ++part.number;
    part.word += sign_words(part.count);
  }
  return {part.number, part.word};
}

/// Signs with error feedback on both legs: to the owners of shards, and from them to all.
///
/// Source: H. Tang et al., "1-bit Adam", ICML 2021 (arXiv 2102.02888), algorithm 1 and section 4.2.
///
///   p --signs, scales--> owner of the shard: s = own p + sum of the others' Q(p)
///     --signs, scales of s / W--> mean
///
/// Each rank owns part `rank` of the bucket. Every parameter has a scale of its own in each shard, since
/// layers differ by orders of magnitude. residual = p - Q(p) of the others' shards, and s - W * mean of its
/// own: the server's error waits there. Deviations: the papers have one scale for a whole vector or shard,
/// and codes the owner's own part like the others' although it does not travel.
///
/// Bytes per rank: for each of the others' shards, and W - 1 times for its own, 4 for each parameter that has
/// elements there, and 8 for each 64 of these elements or a part of them.
class SignShards final : public ShardExchange {
 public:
  SignShards(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step, SignScale scale)
      : ShardExchange(bucket, gradient, residual, step, {kSignsUpTag, kSignsDownTag}), scale_(scale) {}

  void run() {
    ShardExchange::run();
    if (step_.report.finite && !residual_.empty()) step_.report.residual_norm = std::sqrt(squares_);
  }

 private:
  Codes codes(std::size_t owner, Leg) const override {
    const auto [parts, words] = for_parts(step_.parameter_ends, shard(owner), [](const Part&) {});
    return {{.bits = 1, .table_floats = parts}, 64 * words};
  }
  static Span<std::uint64_t> bits_of(const CodedFrame& frame, const Part& part) {
    return frame.codes().subspan(part.word, sign_words(part.count));
  }
  /// What a part has of values that begin with its shard. values: may be empty.
  template <class T>
  Span<T> part_in(Span<T> values, const Part& part, std::size_t owner) const {
    return values.empty() ? values : values.subspan(part.begin - shard(owner).begin, part.count);
  }

  void encode(std::size_t owner) override {
    const auto values = shard_in(gradient_, owner);
    const auto more = shard_in(residual_, owner);
    if (owner == self()) {
      add_residual(step_.executor, values, more, sums_);
    } else {
      write_signs(owner, values, more, 1, up_[owner]);
    }
  }

  /// Signs and scales of gradient + residual, whose scales are multiplied by `factor`. A value that is not
  /// finite blanks the frame.
  void write_signs(std::size_t owner, Span<const float> gradient, Span<const float> residual, double factor,
                   const CodedFrame& frame) {
    bool finite = true;
    for_parts(step_.parameter_ends, shard(owner), [&](const Part& part) {
      const auto values = part_in(gradient, part, owner);
      const auto more = part_in(residual, part, owner);
      const auto count = static_cast<double>(part.count);
      const double size = scale_ == SignScale::l1
                              ? sum_of_magnitudes(step_.executor, values, more) / count
                              : std::sqrt(sum_of_squares(step_.executor, values, more) / count);
      const auto scale = static_cast<float>(factor * size);
      finite =
          pack_signs(step_.executor, values, more, bits_of(frame, part)) && std::isfinite(scale) && finite;
      frame.table()[part.number] = scale;
    });
    frames_.note(finite);
    if (!finite) blank(frame);
  }

  /// s, and the code of s / W.
  void encode_result() override {
    for (std::size_t rank = 0; rank < world(); ++rank) {
      if (rank == self()) continue;
      for_parts(step_.parameter_ends, shard(self()), [&](const Part& part) {
        accumulate_signs(step_.executor, bits_of(arrived_[rank], part), arrived_[rank].table()[part.number],
                         part_in(sums_, part, self()));
      });
    }
    write_signs(self(), sums_, {}, 1 / static_cast<double>(world()), down_[self()]);
  }

  void accept(std::size_t source, const CodedFrame& frame, Leg) override {
    bound_of_table(frame.table(), source);
    for (const float scale : frame.table()) {
      if (scale >= 0) continue;
      throw CorruptFrame("frame refused: a scale of rank " + std::to_string(source) + " is " +
                         std::to_string(scale) + ", expected one that is not negative");
    }
  }

  void apply(std::size_t owner) override {
    for_parts(step_.parameter_ends, shard(owner), [&](const Part& part) {
      const auto values = gradient_.subspan(part.begin, part.count);
      const auto left = residual_.empty() ? residual_ : residual_.subspan(part.begin, part.count);
      const auto apply_frame = [&](const CodedFrame& frame, Span<float> residual) {
        return apply_signs(step_.executor, bits_of(frame, part), frame.table()[part.number], values,
                           residual);
      };
      if (owner != self() && !left.empty()) squares_ += apply_frame(up_[owner], left);
      apply_frame(down_[owner], {});
      if (owner != self() || left.empty()) return;
      fill(step_.executor, left, 0);
      squares_ += add_remainder(step_.executor, part_in(sums_, part, owner), static_cast<float>(world()),
                                values, left);
    });
  }

  SignScale scale_;
  Span<float> sums_ = step_.scratch.take<float>(shard(self()).size());  // of this rank's shard
  double squares_ = 0;                                                  // of the residual
};

std::uint64_t sign_shards_payload_bytes(const Workload& workload) {
  const auto world = static_cast<std::size_t>(workload.world_size);
  const auto bytes_of = [&](std::size_t owner) -> std::uint64_t {
    const auto [parts, words] =
        for_parts(workload.parameter_ends, shard_of(workload.elements, world, owner), [](const Part&) {});
    return sizeof(float) * parts + sizeof(std::uint64_t) * words;
  };
  return shard_exchange_bytes(world, static_cast<std::size_t>(workload.rank), bytes_of, bytes_of);
}

std::unique_ptr<Synchronizer> make_dense() {
  const SystemInfo info = dense_info();
  return info.make(Options({.name = info.name, .options = {}}, info.options), Inner{});
}

class OneBitSteps : public Synchronizer {
 public:
  /// dense_takes_residual: whether dense steps deliver what waits.
  OneBitSteps(SignScale scale, bool dense_takes_residual)
      : scale_(scale), dense_takes_residual_(dense_takes_residual) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    if (freezes_variance(step.index)) return SignShards(bucket, gradient, residual, step, scale_).run();
    dense_->synchronize(bucket, gradient, dense_takes_residual_ ? residual : Span<float>(), step);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return freezes_variance(workload.step) ? sign_shards_payload_bytes(workload)
                                           : dense_->payload_bytes(workload);
  }

 private:
  SignScale scale_;
  bool dense_takes_residual_;
  std::unique_ptr<Synchronizer> dense_ = make_dense();
};

class OneBitAdam final : public OneBitSteps {
 public:
  OneBitAdam(std::uint64_t freeze, SignScale scale) : OneBitSteps(scale, true), freeze_(freeze) {}

  bool freezes_variance(std::uint64_t step) const override { return step >= freeze_; }

 private:
  std::uint64_t freeze_;
};

class ZeroOneAdam final : public OneBitSteps {
 public:
  ZeroOneAdam(std::uint64_t kappa, std::uint64_t freeze, SignScale scale)
      : OneBitSteps(scale, false), kappa_(kappa), freeze_(freeze) {}

  bool freezes_variance(std::uint64_t step) const override {
    if (step >= freeze_) return true;
    std::uint64_t interval = 1;
    while (step >= kappa_ * interval) {
      step -= kappa_ * interval;
      interval *= 2;
    }
    return step % interval != 0;
  }

 private:
  std::uint64_t kappa_;
  std::uint64_t freeze_;
};

SystemInfo common_info() {
  SystemInfo info;
  info.incomparable = [](const Options&) { return "take another system"; };
  info.feedback_default = true;
  info.freezes_variance = true;
  info.state = {kDeliveredMomentum};
  info.undoes_steps = true;
  info.optimizers_momentum_option = "beta1";
  info.options = {{"beta1", "0.9", "the Adam's own, 0 to 1"},
                  {"norm", "l2", "a sign's scale: l2, sqrt(mean p^2), or l1, mean |p|"}};
  return info;
}

SignScale scale_of(const Options& options) {
  return options.choice("norm", {"l1", "l2"}) == "l1" ? SignScale::l1 : SignScale::l2;
}

float beta1_of(const Options& options) {
  return static_cast<float>(options.real("beta1", 0, 1));
}

constexpr std::int64_t kMostSteps = 1'000'000'000;

}  // namespace

SystemInfo one_bit_adam_info() {
  SystemInfo info = common_info();
  info.name = "one_bit_adam";
  info.summary = "dense, then Adam's momentum in one bit per element both ways while its variance is frozen";
  info.paper = "Tang et al., ICML 2021";
  info.formula = "2(W-1)/W * 4d in the first steps, then 2(W-1)/W * (d/8 + 4 * parameters)";
  info.options.insert(
      info.options.begin(),
      {"freeze", "100", "steps of dense training, after which the variance is frozen; 1 or more"});
  info.first_steps_option = "freeze";
  info.first_steps_end = "signs travel";
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    const auto freeze = static_cast<std::uint64_t>(options.integer("freeze", 1, kMostSteps));
    return keep_momentum(beta1_of(options), MomentumTravels::while_variance_is_frozen,
                         std::make_unique<OneBitAdam>(freeze, scale_of(options)));
  };
  return info;
}

SystemInfo zero_one_adam_info() {
  SystemInfo info = common_info();
  info.name = "zero_one_adam";
  info.summary =
      "dense steps ever further apart, in which Adam's variance moves; one bit per element between them";
  info.paper = "Lu et al., 0/1 Adam, ICLR 2023";
  info.formula = "2(W-1)/W * 4d where the variance moves, else 2(W-1)/W * (d/8 + 4 * parameters)";
  info.options.insert(
      info.options.begin(),
      {{"kappa", "16", "dense steps after which the distance between them doubles; 1 or more"},
       {"freeze", "100000", "steps after which the variance moves no more; 1 or more"}});
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    const auto kappa = static_cast<std::uint64_t>(options.integer("kappa", 1, kMostSteps));
    const auto freeze = static_cast<std::uint64_t>(options.integer("freeze", 1, kMostSteps));
    return keep_momentum(beta1_of(options), MomentumTravels::while_variance_is_frozen,
                         std::make_unique<ZeroOneAdam>(kappa, freeze, scale_of(options)));
  };
  return info;
}

}  // namespace thinwire

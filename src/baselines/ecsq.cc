// Entropy-coded scalar quantization: every element is rounded to a whole number of steps, and these numbers
// travel in about as many bits as they tell. At a given error that takes fewer bits than codes of a fixed
// length, the fewer the more elements are near zero: with the best codes of fixed length an element that says
// nothing costs as much as one that says a lot.
//
//   p --/ step, rounded--> levels --entropy code--> owner: mean --the same--> all ranks
//
// Sources: H. Gish and J. Pierce, "Asymptotically efficient quantizing", IEEE Transactions on Information
// Theory, 1968: equal steps with an entropy code are within a quarter of a bit of the least rate for the
// error. J. Duda, arXiv 1311.2540, 2013: the code. Residual and owners as in `blocks`.
//
// A block of 128 elements has a step of its own: the part's, times (root mean square of the block / that of
// the part)^local. With local = 0 a quiet row of a matrix says nothing for many steps, and then all at once.
// Adam divides such a lump by the root of its mean square, and little of it remains.
//
// Bytes per rank: those of its frames. A frame of n elements has a step, a byte for each block, and what
// src/kernels/codes/entropy_code.h says of the levels. payload_bytes() gives what elements of a normal
// distribution take; those of gradients, more of which are near zero, take less.

#include <algorithm>
#include <cmath>

#include "baselines/baselines.h"
#include "exchange/level_average.h"
#include "exchange/shard_exchange.h"
#include "kernels/codes/entropy_code.h"
#include "kernels/codes/rounded_levels.h"

namespace thinwire {
namespace {

/// Share of a normal distribution below x.
double normal_below(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

/// Bits that a level tells, of elements of a normal distribution.
double normal_bits(double step, double up) {
  double bits = 0;
  const auto add = [&](double share) {
    if (share > 0) bits -= share * std::log2(share);
  };
  const double zero = (1 - up) * step;  // larger magnitudes are no zero
  add(1 - 2 * normal_below(-zero));
  const auto levels = static_cast<int>(std::max(0.0, 40 - zero) / step) + 1;
  for (int level = 0; level < levels; ++level) {
    const double begin = zero + level * step;
    const double share = normal_below(-begin) - normal_below(-begin - step);
    add(share);
    add(share);
  }
  return bits;
}

class Ecsq final : public Synchronizer {
 public:
  explicit Ecsq(const LevelRules& rules)
      : rules_(rules), bits_(normal_bits(rules.step, static_cast<double>(rules.up))) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    average_levels(bucket, gradient, residual, step, rules_);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const auto world = static_cast<std::size_t>(workload.world_size);
    const auto bytes_of = [&](std::size_t owner) {
      const Shard part = shard_of(static_cast<std::size_t>(workload.elements), world, owner);
      return bytes_of_part(part);
    };
    return shard_exchange_bytes(world, static_cast<std::size_t>(workload.rank), bytes_of, bytes_of);
  }

 private:
  std::uint64_t bytes_of_part(const Shard& part) const {
    if (part.size() == 0) return 0;
    const auto words = static_cast<std::uint64_t>(static_cast<double>(part.size()) * bits_ / 8);
    const std::uint64_t codes = words + entropy_coded_head_bytes(part.size());
    // Where that is no gain, levels go as they are.
    return sizeof(float) + stepped_blocks(part.size()) +
           std::min<std::uint64_t>(codes, most_entropy_coded_bytes(part.size()));
  }

  LevelRules rules_;
  double bits_;
};

}  // namespace

SystemInfo ecsq_info() {
  SystemInfo info;
  info.name = "ecsq";
  info.summary = "whole numbers of steps both ways, in as many bits as these numbers tell";
  info.paper = "Gish and Pierce, 1968; Duda, 2013; src/baselines/ecsq.cc";
  info.formula =
      "of normal values about 2(W-1)/W * d H/8, H = 3.1, 2.1 and 1.1 bits at steps of 0.5, 1 and 2";
  info.feedback_default = true;
  info.turns_residual = true;
  info.options = {
      {"step", "0.5", "between levels, in units of the root mean square, 0.05 to 16"},
      {"local", "1",
       "how far the step of a block of 128 goes by the block's own root mean square: 0 not, 1 alone"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    LevelRules rules;
    rules.step = options.real("step", 0.05, 16);
    rules.local = options.real("local", 0, 1);
    return std::make_unique<Ecsq>(rules);
  };
  return info;
}

}  // namespace thinwire

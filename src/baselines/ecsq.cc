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

#include "baselines/baselines.h"
#include "exchange/level_average.h"

namespace thinwire {
namespace {

class Ecsq final : public Synchronizer {
 public:
  explicit Ecsq(const LevelRules& rules) : rules_(rules), bits_(normal_level_bits(rules)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    average_levels(bucket, gradient, residual, step, rules_);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return level_average_bytes(static_cast<std::size_t>(workload.elements),
                               static_cast<std::size_t>(workload.world_size),
                               static_cast<std::size_t>(workload.rank), rules_, bits_);
  }

 private:
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

// Blocks: an all-reduce in a few bits. Blocks of values share a scale, both on the way to the rank that adds
// them up and on the way back.
//
// Sources: T. Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022, section 2.1 (a
// scale to each block, so that an outlier spoils its own block alone); G. Wang et al., "ZeRO++", 2023,
// section 3.3 (gradients in blocks of 4 bits, all-to-all in place of a ring, so that they are coded twice and
// not W times).
//
//   block of p, its largest magnitude n: p / n rounded to one of 2^bits - 1 values equally far apart
//     --to the part's owner--> mean of all Q(p), coded in the same way --to all--> mean
//   residual = p - Q(p); the owner's also has W times what the result's codes left out
//
// Bytes per rank: 2(W-1)/W * (ceil(bits d/8) + 4 ceil(d/block)), whatever the number of ranks.
//
// Rounding is to the nearest step where a residual keeps the rest, and at random, unbiased, with
// feedback=off.

#include "baselines/baselines.h"
#include "baselines/stochastic_quantizer.h"

namespace thinwire {
namespace {

class Blocks final : public Synchronizer {
 public:
  explicit Blocks(const BlockCodes& codes) : codes_(codes) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    average_blocks(bucket, gradient, residual, step, codes_);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return block_average_bytes(workload.elements, workload.world_size, workload.rank, codes_);
  }

 private:
  BlockCodes codes_;
};

}  // namespace

SystemInfo blocks_info() {
  SystemInfo info;
  info.name = "blocks";
  info.summary = "8 or fewer bits per element both ways, a scale to each block";
  info.paper = "Dettmers et al., 8-bit optimizers, ICLR 2022; Wang et al., ZeRO++, 2023";
  info.formula = "2(W-1)/W * (ceil(bits d/8) + 4 ceil(d/block))";
  info.feedback_default = true;
  info.options = {{"bits", "8", "bits per element, sign included, 2 to 8"},
                  {"block", "256", "elements that share a scale, a multiple of 128"}};
  info.make = [](const Options& options, Inner) {
    return std::make_unique<Blocks>(read_block_codes(options));
  };
  return info;
}

}  // namespace thinwire

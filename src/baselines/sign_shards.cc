#include "baselines/sign_shards.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "exchange/shard_exchange.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/sign_bits.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

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

class SignShards final : public ShardExchange {
 public:
  SignShards(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step, SignScale scale)
      : ShardExchange(bucket, gradient, residual, step, {kSignsUpTag, kSignsDownTag}),
        scale_(scale),
        sums_(step.scratch.take<float>(shard(self()).size())) {}

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
        apply_signs(step_.executor, bits_of(frame, part), frame.table()[part.number], values, residual);
      };
      if (owner != self() && !left.empty()) apply_frame(up_[owner], left);
      apply_frame(down_[owner], {});
      if (owner != self() || left.empty()) return;
      fill(step_.executor, left, 0);
      add_remainder(step_.executor, part_in(sums_, part, owner), static_cast<float>(world()), values, left);
    });
  }

  SignScale scale_;
  Span<float> sums_;  // of this rank's shard
};

}  // namespace

void average_sign_shards(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                         SignScale scale) {
  SignShards(bucket, gradient, residual, step, scale).run();
}

std::uint64_t sign_shards_payload_bytes(const Workload& workload) {
  const auto world = static_cast<std::size_t>(workload.world_size);
  const auto bytes_of = [&](std::size_t owner) -> std::uint64_t {
    const auto [parts, words] =
        for_parts(workload.parameter_ends, shard_of(workload.elements, world, owner), [](const Part&) {});
    return sizeof(float) * parts + sizeof(std::uint64_t) * words;
  };
  return shard_exchange_bytes(world, static_cast<std::size_t>(workload.rank), bytes_of, bytes_of);
}

}  // namespace thinwire

#include "baselines/sign_shards.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/partition.h"
#include "exchange/coded_exchange.h"
#include "exchange/frames.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/sign_bits.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// What one parameter has in one shard.
struct Piece {
  std::size_t begin = 0;  // in the bucket
  std::size_t count = 0;
  std::size_t number = 0;  // in the shard
  std::size_t word = 0;    // where its bits begin: pieces share no word
};

/// How a bucket is cut into shards and these into pieces.
class Shards {
 public:
  Shards(Span<const std::size_t> ends, std::size_t elements, std::size_t world)
      : ends_(ends), elements_(elements), world_(world) {}

  std::size_t begin(std::size_t owner) const { return part_begin(elements_, world_, owner); }
  std::size_t size(std::size_t owner) const { return part_size(elements_, world_, owner); }

  /// body(piece) in order. Returns how many there are, and words of all of them.
  template <class Body>
  std::pair<std::size_t, std::size_t> for_each(std::size_t owner, Body&& body) const {
    const std::size_t first = begin(owner);
    const std::size_t last = first + size(owner);
    Piece piece;
    const auto* end = std::upper_bound(ends_.begin(), ends_.end(), first);
    for (std::size_t at = first; at < last; at += piece.count) {
      while (end != ends_.end() && *end == at) ++end;  // parameters without elements
      const std::size_t stop = end == ends_.end() ? last : std::min(last, *end);
      piece.begin = at;
      piece.count = stop - at;
      body(static_cast<const Piece&>(piece));
      ++piece.number;
      piece.word += sign_words(piece.count);
    }
    return {piece.number, piece.word};
  }

  std::uint64_t payload_bytes(std::size_t owner) const {
    const auto [pieces, words] = for_each(owner, [](const Piece&) {});
    return sizeof(float) * pieces + sizeof(std::uint64_t) * words;
  }

 private:
  Span<const std::size_t> ends_;
  std::size_t elements_;
  std::size_t world_;
};

/// One step. Shards without elements do not travel.
class SignShards {
 public:
  SignShards(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step, SignScale scale)
      : scale_(scale),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        shards_(step.parameter_ends, gradient.size(), static_cast<std::size_t>(step.communicator.size())),
        frames_(bucket, step),
        up_(step.workspace.take<CodedFrame>(frames_.world())),
        down_(step.workspace.take<CodedFrame>(frames_.world())),
        sums_(step.scratch.take<float>(shards_.size(self()))) {
    for (std::size_t owner = 0; owner < frames_.world(); ++owner) {
      up_[owner] = take_frame(owner);
      down_[owner] = take_frame(owner);
    }
  }

  void run() {
    const auto from = step_.workspace.take<CodedFrame>(frames_.world());
    send_up(from);
    code_sums(from);
    send_down();
    step_.report.finite = frames_.finite();
    if (!frames_.finite()) return;
    step_.clock.enter(Phase::decompress);
    for (std::size_t owner = 0; owner < frames_.world(); ++owner) deliver(owner);
  }

 private:
  std::size_t self() const { return frames_.self(); }
  float world() const { return static_cast<float>(frames_.world()); }

  CodedFrame take_frame(std::size_t owner) const {
    const auto [pieces, words] = shards_.for_each(owner, [](const Piece&) {});
    return {step_.workspace, pieces, 64 * words, 1};
  }
  FrameContents contents(std::size_t owner, std::size_t workers) const {
    const CodedShape shape{.bits = 1, .table_floats = up_[owner].table().size()};
    return shape.contents(64 * up_[owner].codes().size(), shards_.begin(owner), workers);
  }
  static Span<std::uint64_t> bits_of(const CodedFrame& frame, const Piece& piece) {
    return frame.codes().subspan(piece.word, sign_words(piece.count));
  }

  /// Writes signs and scales of gradient + residual, whose scales are multiplied by `factor`. A value that is not
  /// finite blanks the frame.
  void encode(std::size_t owner, Span<const float> gradient, Span<const float> residual, double factor,
              const CodedFrame& frame) {
    bool finite = true;
    const std::size_t first = shards_.begin(owner);
    shards_.for_each(owner, [&](const Piece& piece) {
      const auto values = gradient.subspan(piece.begin - first, piece.count);
      const auto more = residual.empty() ? residual : residual.subspan(piece.begin - first, piece.count);
      const auto count = static_cast<double>(piece.count);
      const double size = scale_ == SignScale::l1
                              ? sum_of_magnitudes(step_.executor, values, more) / count
                              : std::sqrt(sum_of_squares(step_.executor, values, more) / count);
      const auto scale = static_cast<float>(factor * size);
      finite =
          pack_signs(step_.executor, values, more, bits_of(frame, piece)) && std::isfinite(scale) && finite;
      frame.table()[piece.number] = scale;
    });
    frames_.note(finite);
    if (!finite) blank(frame);
  }

  Span<float> shard(Span<float> span, std::size_t owner) const {
    return span.empty() ? span : span.subspan(shards_.begin(owner), shards_.size(owner));
  }

  /// from: the frames that the others send for this rank's shard.
  void send_up(Span<CodedFrame> from) {
    frames_.for_peers([&](std::size_t peer) {
      from[peer] = take_frame(self());
      if (shards_.size(self()) != 0) frames_.receive(peer, kSignsUpTag, from[peer].message());
    });
    frames_.for_peers([&](std::size_t peer) {
      if (shards_.size(peer) == 0) return;
      encode(peer, shard(gradient_, peer), shard(residual_, peer), 1, up_[peer]);
      frames_.seal(up_[peer].message(), contents(peer, 1));
      frames_.send(peer, kSignsUpTag, up_[peer].message());
    });
    if (shards_.size(self()) == 0) return;
    add_residual(step_.executor, shard(gradient_, self()), shard(residual_, self()), sums_);
    frames_.for_peers([&](std::size_t peer) {
      frames_.await(peer, from[peer].message(), contents(self(), 1));
      require_scales(from[peer], peer);
    });
  }

  /// s, and the code of s / W.
  void code_sums(Span<const CodedFrame> from) {
    if (shards_.size(self()) == 0) return;
    for (std::size_t rank = 0; rank < from.size(); ++rank) {
      if (rank != self()) add_signs(from[rank], self(), sums_);
    }
    encode(self(), sums_, {}, 1 / static_cast<double>(world()), down_[self()]);
  }

  void add_signs(const CodedFrame& frame, std::size_t owner, Span<float> sums) {
    shards_.for_each(owner, [&](const Piece& piece) {
      accumulate_signs(step_.executor, bits_of(frame, piece), frame.table()[piece.number],
                       sums.subspan(piece.begin - shards_.begin(owner), piece.count));
    });
  }

  void send_down() {
    frames_.for_peers([&](std::size_t peer) {
      if (shards_.size(peer) != 0) frames_.receive(peer, kSignsDownTag, down_[peer].message());
    });
    if (shards_.size(self()) != 0) {
      frames_.seal(down_[self()].message(), contents(self(), frames_.world()));
      frames_.send_to_all(kSignsDownTag, down_[self()].message());
    }
    frames_.for_peers([&](std::size_t peer) {
      if (shards_.size(peer) == 0) return;
      frames_.await(peer, down_[peer].message(), contents(peer, frames_.world()));
      require_scales(down_[peer], peer);
    });
    frames_.finish();
  }

  static void require_scales(const CodedFrame& frame, std::size_t source) {
    bound_of_table(frame.table(), source);
    for (const float scale : frame.table()) {
      if (scale >= 0) continue;
      throw CorruptFrame("frame refused: a scale of rank " + std::to_string(source) + " is " +
                         std::to_string(scale) + ", expected one that is not negative");
    }
  }

  /// The shard's mean to the gradient, and what did not arrive to the residual.
  void deliver(std::size_t owner) {
    shards_.for_each(owner, [&](const Piece& piece) {
      const auto values = gradient_.subspan(piece.begin, piece.count);
      const auto left = residual_.empty() ? residual_ : residual_.subspan(piece.begin, piece.count);
      if (owner != self() && !left.empty()) {
        apply_signs(step_.executor, bits_of(up_[owner], piece), up_[owner].table()[piece.number], values,
                    left);
      }
      apply_signs(step_.executor, bits_of(down_[owner], piece), down_[owner].table()[piece.number], values,
                  {});
      if (owner != self() || left.empty()) return;
      fill(step_.executor, left, 0);
      add_remainder(step_.executor, sums_.subspan(piece.begin - shards_.begin(owner), piece.count), world(),
                    values, left);
    });
  }

  SignScale scale_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  Shards shards_;
  Frames frames_;
  Span<CodedFrame> up_;    // this rank's, of every shard
  Span<CodedFrame> down_;  // the means, of every shard
  Span<float> sums_;       // of this rank's shard
};

}  // namespace

void average_sign_shards(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                         SignScale scale) {
  SignShards(bucket, gradient, residual, step, scale).run();
}

std::uint64_t sign_shards_payload_bytes(const Workload& workload) {
  const auto world = static_cast<std::size_t>(workload.world_size);
  const auto rank = static_cast<std::size_t>(workload.rank);
  const Shards shards(workload.parameter_ends, workload.elements, world);
  std::uint64_t bytes = (world - 1) * shards.payload_bytes(rank);
  for (std::size_t owner = 0; owner < world; ++owner) {
    if (owner != rank) bytes += shards.payload_bytes(owner);
  }
  return bytes;
}

}  // namespace thinwire

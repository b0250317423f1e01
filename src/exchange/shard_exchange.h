#pragma once
// A bucket through owners: every rank owns a shard of it. Each rank sends every owner its codes of the shard,
// the owner makes the mean of them, and sends codes of that to all ranks.
//
//   p --codes of each shard, up--> its owner: mean --codes of it, down--> all ranks
//
// In a reduce-scatter (Step::reduce_scatter) the owner keeps the mean. What it sends to all ranks then has no
// elements, and says whether all that it has heard of is finite: so a step counts on all ranks or on none.
//
// This is the order in which frames are received, made, sent and awaited, so that ranks work while frames
// travel. Systems derive from it and say what a frame holds.

#include "exchange/coded_exchange.h"
#include "thinwire/function_ref.h"

namespace thinwire {

/// A run of a bucket's elements.
struct Shard {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
};

/// What a rank owns: nearly equal shares of the bucket's runs of `run` elements.
Shard shard_of(std::size_t elements, std::size_t world, std::size_t rank, std::size_t run = 1);

/// Payload bytes that `rank` sends. up, down: of one frame for this owner's shard.
std::uint64_t shard_exchange_bytes(std::size_t world, std::size_t rank,
                                   FunctionRef<std::uint64_t(std::size_t owner)> up,
                                   FunctionRef<std::uint64_t(std::size_t owner)> down);

/// One step. A shard without elements does not travel, and nothing here is called for it.
class ShardExchange {
 public:
  ShardExchange(const ShardExchange&) = delete;
  ShardExchange& operator=(const ShardExchange&) = delete;

  /// All of it: report.finite, and where that is true every shard applied.
  void run();

 protected:
  enum class Leg : std::uint8_t { up, down };
  struct Tags {
    MessageTag up;
    MessageTag down;
  };
  /// What a frame holds.
  struct Codes {
    CodedShape shape;
    std::size_t count = 0;
  };

  /// first: the number of the bucket's first element, as frames say it.
  ShardExchange(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step, Tags tags,
                std::size_t run = 1, std::size_t first = 0);
  ~ShardExchange() = default;

  /// Leg::down is not asked for in a reduce-scatter.
  virtual Codes codes(std::size_t owner, Leg leg) const = 0;
  /// Fills up_[owner]. This rank's own shard comes last, when the others' are on their way: it has no frame
  /// unless one is taken here, and put into arrived_ too where that is of use.
  virtual void encode(std::size_t owner) = 0;
  /// Fills down_[self()] from arrived_; in a reduce-scatter it looks only whether the mean is finite.
  virtual void encode_result() = 0;
  /// A frame that another rank made: throws CorruptFrame where values are out of bounds, and opens it.
  virtual void accept(std::size_t source, const CodedFrame& frame, Leg leg) = 0;
  /// The shard's mean to the gradient, and what did not arrive to turned_. In a reduce-scatter the mean is
  /// that of this rank's own shard, and of another's up_[owner] is at hand.
  virtual void apply(std::size_t owner) = 0;

  // The parts of run(), in this order, behind Communicator::commit_exchange().
  void send_parts();
  void send_results();

  std::size_t world() const { return frames_.world(); }
  std::size_t self() const { return frames_.self(); }
  Shard shard(std::size_t owner) const { return shard_of(gradient_.size(), world(), owner, run_); }
  /// A shard of the gradient, or of the residual, which may be empty.
  Span<float> shard_in(Span<float> values, std::size_t owner) const {
    return values.empty() ? values : values.subspan(shard(owner).begin, shard(owner).size());
  }
  /// The same of the residual as apply() writes it.
  ResidualSpan turned_shard(std::size_t owner) const {
    return turned_.empty() ? turned_ : turned_.subspan(shard(owner).begin, shard(owner).size());
  }
  CodedFrame take_frame(std::size_t owner, Leg leg) const;

  Span<float> gradient_;
  Span<float> residual_;
  ResidualSpan turned_ = residual_;  // as it becomes, from the first apply() on
  Step& step_;
  Frames frames_;
  // This rank's, by owner; those of this rank's shard, by rank; the results, by owner.
  Span<CodedFrame> up_ = step_.workspace.take<CodedFrame>(world());
  Span<CodedFrame> arrived_ = step_.workspace.take<CodedFrame>(world());
  Span<CodedFrame> down_ = step_.workspace.take<CodedFrame>(world());

 private:
  void expect_parts();
  bool owns(std::size_t owner) const { return shard(owner).size() != 0; }
  Codes sent(std::size_t owner, Leg leg) const;
  FrameContents contents(std::size_t owner, Leg leg) const;
  void await(std::size_t source, const CodedFrame& frame, std::size_t owner, Leg leg);

  Tags tags_;
  std::size_t run_;
  std::size_t first_;
};

}  // namespace thinwire

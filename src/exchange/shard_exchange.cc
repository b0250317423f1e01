#include "exchange/shard_exchange.h"

#include <algorithm>
#include <utility>

#include "core/partition.h"

namespace thinwire {

Shard shard_of(std::size_t elements, std::size_t world, std::size_t rank, std::size_t run) {
  const std::size_t runs = (elements + run - 1) / run;
  const auto end_of = [&](std::size_t part) {
    return std::min(elements, run * part_begin(runs, world, part));
  };
  return {end_of(rank), end_of(rank + 1)};
}

std::uint64_t shard_exchange_bytes(std::size_t world, std::size_t rank,
                                   FunctionRef<std::uint64_t(std::size_t owner)> up,
                                   FunctionRef<std::uint64_t(std::size_t owner)> down) {
  std::uint64_t bytes = (world - 1) * down(rank);
  for (std::size_t owner = 0; owner < world; ++owner) {
    if (owner != rank) bytes += up(owner);
  }
  return bytes;
}

ShardExchange::ShardExchange(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                             Tags tags, std::size_t run, std::size_t first)
    : gradient_(gradient),
      residual_(residual),
      step_(step),
      frames_(bucket, step),
      tags_(tags),
      run_(run),
      first_(first) {}

void ShardExchange::run() {
  step_.communicator.commit_exchange();
  send_parts();
  send_results();
  step_.report.finite = frames_.finite();
  if (!frames_.finite()) return;
  step_.clock.enter(Phase::decompress);
  turned_ = step_.turn.write(residual_);
  for (std::size_t owner = 0; owner < world(); ++owner) {
    if (owns(owner)) apply(owner);
  }
}

ShardExchange::Codes ShardExchange::sent(std::size_t owner, Leg leg) const {
  const bool is_news = leg == Leg::down && step_.reduce_scatter;
  return is_news ? Codes{{.type = FrameType::floats}, 0} : codes(owner, leg);
}

CodedFrame ShardExchange::take_frame(std::size_t owner, Leg leg) const {
  const auto [shape, count] = sent(owner, leg);
  return {step_.workspace, shape.table_floats, count, shape.bits};
}

FrameContents ShardExchange::contents(std::size_t owner, Leg leg) const {
  const auto [shape, count] = sent(owner, leg);
  return shape.contents(count, first_ + shard(owner).begin, leg == Leg::up ? 1 : world());
}

void ShardExchange::await(std::size_t source, const CodedFrame& frame, std::size_t owner, Leg leg) {
  frames_.await(source, frame.message(), contents(owner, leg));
  accept(source, frame, leg);
}

void ShardExchange::expect_parts() {
  if (!owns(self())) return;
  frames_.for_peers([&](std::size_t peer) {
    arrived_[peer] = take_frame(self(), Leg::up);
    frames_.receive(peer, tags_.up, arrived_[peer].message());
  });
}

void ShardExchange::send_parts() {
  // Receives wait for what is to be sent first: until then stamps have time to travel.
  bool expects = false;
  Turns turns(step_.communicator);
  const auto await_part = [&](std::size_t peer) {
    if (!owns(self())) return;
    await(peer, arrived_[peer], self(), Leg::up);
    turns.arrived(arrived_[peer].message().size());
  };
  for (std::size_t shift = 1; shift < world(); ++shift) {
    const std::size_t owner = frames_.peer_at(shift);
    if (!owns(owner)) continue;
    up_[owner] = take_frame(owner, Leg::up);
    encode(owner);
    if (!std::exchange(expects, true)) expect_parts();
    turns.before(shift, up_[owner].message().size(), await_part);
    frames_.seal(up_[owner].message(), contents(owner, Leg::up));
    frames_.send(owner, tags_.up, up_[owner].message());
  }
  if (!owns(self())) return;
  if (!expects) expect_parts();
  encode(self());
  turns.rest(await_part);
}

void ShardExchange::send_results() {
  frames_.for_peers([&](std::size_t owner) {
    if (!owns(owner)) return;
    down_[owner] = take_frame(owner, Leg::down);
    frames_.receive(owner, tags_.down, down_[owner].message());
  });
  Turns turns(step_.communicator);
  const auto await_result = [&](std::size_t owner) {
    if (!owns(owner)) return;
    await(owner, down_[owner], owner, Leg::down);
    turns.arrived(down_[owner].message().size());
  };
  if (owns(self())) {
    down_[self()] = take_frame(self(), Leg::down);
    encode_result();
    frames_.seal(down_[self()].message(), contents(self(), Leg::down));
    frames_.send_to_all(tags_.down, down_[self()].message(), turns, await_result);
  }
  turns.rest(await_result);
  frames_.finish();
  step_.communicator.end_turn();
}

}  // namespace thinwire

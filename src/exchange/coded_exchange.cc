#include "exchange/coded_exchange.h"

#include <algorithm>
#include <cmath>

#include "thinwire/errors.h"

namespace thinwire {

float bound_of_table(Span<const float> table, std::size_t source) {
  float bound = 0;
  for (const float value : table) {
    if (!std::isfinite(value)) {
      throw CorruptFrame("frame refused: the table of rank " + std::to_string(source) +
                         " holds a float that is not finite");
    }
    bound = std::max(bound, std::fabs(value));
  }
  return bound;
}

double Coder::keep_rest(Executor& executor, const CodedFrame& own, Span<float> gradient,
                        ResidualSpan residual) {
  prepare(0, own.table());
  return average(executor, {&own, 1}, 0, gradient, residual);
}

void blank(const CodedFrame& frame) {
  std::ranges::fill(frame.table(), 0.0f);
  std::ranges::fill(frame.codes(), 0);
}

Span<const CodedFrame> gather_coded(BucketId bucket, std::size_t count, Step& step, const CodedShape& shape,
                                    FunctionRef<bool(const CodedFrame& own)> encode,
                                    FunctionRef<void(std::size_t rank, const CodedFrame& frame)> check) {
  step.communicator.commit_exchange();
  Frames frames(bucket, step);
  const FrameContents contents = shape.contents(count);
  const auto coded = step.workspace.take<CodedFrame>(frames.world());
  for (auto& frame : coded) frame = CodedFrame(step.workspace, shape.table_floats, count, shape.bits);
  const CodedFrame& own = coded[frames.self()];
  frames.note(encode(own));
  frames.for_peers([&](std::size_t peer) { frames.receive(peer, kCodesTag, coded[peer].message()); });
  if (!frames.finite()) blank(own);
  own.close();
  frames.seal(own.message(), contents);
  Turns turns(step.communicator);
  const auto await = [&](std::size_t peer) {
    frames.await(peer, coded[peer].message(), contents);
    turns.arrived(coded[peer].message().size());
    coded[peer].open();
  };
  frames.send_to_all(kCodesTag, own.message(), turns, await);
  turns.rest(await);
  frames.finish();
  step.communicator.end_turn();
  for (std::size_t rank = 0; rank < frames.world(); ++rank) check(rank, coded[rank]);
  own.open();
  return frames.finite() ? coded : Span<CodedFrame>();
}

void average_coded(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                   const CodedShape& shape, Coder& coder) {
  // Bounds every partial sum; taken in rank order, so the same on all ranks.
  float bound = 0;
  const auto coded = gather_coded(
      bucket, gradient.size(), step, shape,
      [&](const CodedFrame& own) { return coder.encode(own.table(), own.codes()); },
      [&](std::size_t rank, const CodedFrame& frame) {
        bound += bound_of_table(frame.table(), rank);
        coder.prepare(rank, frame.table());
      });
  step.report.finite = !coded.empty() && std::isfinite(bound);
  if (!step.report.finite) return;
  step.clock.enter(Phase::decompress);
  const auto self = static_cast<std::size_t>(step.communicator.rank());
  const double squares = coder.average(step.executor, coded, self, gradient, step.turn.write(residual));
  if (!residual.empty()) step.report.residual_norm = std::sqrt(squares);
}

}  // namespace thinwire

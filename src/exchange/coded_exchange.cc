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

void Coder::prepare(std::size_t, Span<const float>) {}

void blank(const CodedFrame& frame) {
  std::fill(frame.table().begin(), frame.table().end(), 0.0f);
  std::fill(frame.codes().begin(), frame.codes().end(), 0);
}

void average_coded(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                   const CodedShape& shape, Coder& coder) {
  Frames frames(bucket, step);
  const FrameContents contents = shape.contents(gradient.size());
  const auto coded = step.workspace.take<CodedFrame>(frames.world());
  for (auto& frame : coded) {
    frame = CodedFrame(step.workspace, shape.table_floats, gradient.size(), shape.bits);
  }
  frames.for_peers([&](std::size_t peer) { frames.receive(peer, kCodesTag, coded[peer].message()); });
  const CodedFrame& own = coded[frames.self()];
  frames.note(coder.encode(own.table(), own.codes()));
  if (!frames.finite()) blank(own);
  own.close();
  frames.seal(own.message(), contents);
  frames.send_to_all(kCodesTag, own.message());

  // Bounds every partial sum; taken in rank order, so the same on all ranks.
  float bound = 0;
  for (std::size_t rank = 0; rank < frames.world(); ++rank) {
    const CodedFrame& frame = coded[rank];
    if (rank != frames.self()) frames.await(rank, frame.message(), contents);
    bound += bound_of_table(frame.table(), rank);
    coder.prepare(rank, frame.table());
    if (rank != frames.self()) frame.open();
  }
  frames.finish();
  own.open();
  step.report.finite = frames.finite() && std::isfinite(bound);
  if (!step.report.finite) return;
  step.clock.enter(Phase::decompress);
  const double squares =
      coder.average(step.executor, coded, frames.self(), gradient, step.turn.write(residual));
  if (!residual.empty()) step.report.residual_norm = std::sqrt(squares);
}

}  // namespace thinwire

#include "exchange/coded_exchange.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/pending_lease.h"
#include "comm/ring.h"
#include "core/stopwatch.h"
#include "kernels/dense/dense.h"
#include "thinwire/errors.h"
#include "wire/coded_payload.h"

namespace thinwire {
namespace {

constexpr Communicator::Tag kTag = 48;

FrameHeader header_of(BucketId bucket, const Step& step, std::size_t source, std::size_t elements,
                      const CodedShape& shape) {
  FrameHeader header;
  header.type = FrameType::codes;
  header.bucket = bucket;
  header.step = step.index;
  header.source = static_cast<std::uint32_t>(source);
  header.count = elements;
  header.width = static_cast<std::uint32_t>(shape.bits);
  header.payload_bytes = 4 * shape.table_floats + code_bytes(elements, shape.bits);
  return header;
}

/// A frame that has arrived, checked and readable. Returns what bounds its values; infinity where its rank
/// had some that were not finite.
float accept(const CodedFrame& frame, const FrameHeader& expected, Coder& coder) {
  if (expect_frame(frame.message(), expected).non_finite()) return std::numeric_limits<float>::infinity();
  const float bound = bound_of_table(frame.table(), expected.source);
  coder.prepare(expected.source, frame.table());
  frame.open();
  return bound;
}

}  // namespace

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

void average_coded(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                   const CodedShape& shape, std::vector<Pending>& pendings, Coder& coder) {
  const std::size_t elements = gradient.size();
  const auto world = static_cast<std::size_t>(step.communicator.size());
  const auto self = static_cast<std::size_t>(step.communicator.rank());
  Stopwatch watch;
  const auto frames = step.workspace.take<CodedFrame>(world);
  for (auto& frame : frames) {
    frame = CodedFrame(step.workspace, shape.table_floats, elements, shape.bits);
  }
  PendingLease receives(pendings, world);
  for (std::size_t peer = 0; peer < world; ++peer) {
    if (peer != self) {
      receives[peer] = step.communicator.receive(static_cast<int>(peer), kTag, frames[peer].message());
    }
  }
  const CodedFrame& own = frames[self];
  const bool finite = coder.encode(own.table(), own.codes());
  if (!finite) {  // the message's bytes mean nothing then, and must not depend on what the memory held
    std::fill(own.table().begin(), own.table().end(), 0.0f);
    std::fill(own.codes().begin(), own.codes().end(), 0);
  }
  FrameHeader header = header_of(bucket, step, self, elements, shape);
  header.flags = finite ? std::uint16_t{0} : FrameHeader::kNonFinite;
  write_frame_header(own.message(), header);
  own.close();
  step.report.seconds_compress += watch.lap();
  SendWindow sends;
  for (std::size_t shift = 1; shift < world; ++shift) {
    sends.push(step.communicator.send(static_cast<int>((self + shift) % world), kTag, own.message()));
    step.report.frame_header_bytes += FrameHeader::kBytes;
  }
  // Bounds every partial sum; taken in rank order, so the same on all ranks.
  float bound = 0;
  for (std::size_t peer = 0; peer < world; ++peer) {
    if (peer == self) {
      if (!finite) bound = std::numeric_limits<float>::infinity();
      bound += bound_of_table(own.table(), self);
      coder.prepare(self, own.table());
    } else {
      receives[peer].wait();
      bound += accept(frames[peer], header_of(bucket, step, peer, elements, shape), coder);
    }
  }
  sends.wait_all();
  own.open();
  step.report.seconds_wait += watch.lap();
  step.report.finite = std::isfinite(bound);
  if (!step.report.finite) {
    fill(step.executor, gradient, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const double squares = coder.average(step.executor, frames, self, gradient, residual);
  if (!residual.empty()) step.report.residual_norm = std::sqrt(squares);
  step.report.seconds_decompress += watch.lap();
}

}  // namespace thinwire

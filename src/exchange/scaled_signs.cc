#include "exchange/scaled_signs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "comm/pending_lease.h"
#include "comm/ring.h"
#include "core/stopwatch.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/sign_bits.h"
#include "wire/frame.h"
#include "wire/scaled_sign_payload.h"

namespace thinwire {
namespace {

constexpr Communicator::Tag kScaledSignsTag = 40;

FrameHeader header_of(BucketId bucket, const Step& step, std::size_t source, std::size_t elements) {
  FrameHeader header;
  header.type = FrameType::scaled_sign_bits;
  header.bucket = bucket;
  header.step = step.index;
  header.source = static_cast<std::uint32_t>(source);
  header.workers = 1;
  header.first = 0;
  header.count = elements;
  header.payload_bytes = frame_payload_bytes(header.type, elements, 1);
  return header;
}

}  // namespace

void average_scaled_signs(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          double scale, std::vector<Pending>& pendings, PackScaledSigns pack) {
  const std::size_t elements = gradient.size();
  const auto world = static_cast<std::size_t>(step.communicator.size());
  const auto self = static_cast<std::size_t>(step.communicator.rank());
  const std::size_t frame_bytes =
      FrameHeader::kBytes + frame_payload_bytes(FrameType::scaled_sign_bits, elements, 1);
  const std::size_t stride = (frame_bytes + 63) / 64 * 64;
  const auto frames = step.workspace.take<std::byte>(world * stride);
  auto frame_of = [&](std::size_t rank) { return frames.subspan(rank * stride, frame_bytes); };
  auto bits_of = [&](std::size_t rank) { return scaled_sign_words(frame_of(rank), elements); };

  Stopwatch watch;
  PendingLease receives(pendings, world);
  for (std::size_t peer = 0; peer < world; ++peer) {
    if (peer != self)
      receives[peer] = step.communicator.receive(static_cast<int>(peer), kScaledSignsTag, frame_of(peer));
  }
  FrameHeader own = header_of(bucket, step, self, elements);
  const bool finite = std::isfinite(static_cast<float>(scale));
  if (finite) pack(bits_of(self));
  own.flags = finite ? std::uint16_t{0} : FrameHeader::kNonFinite;
  write_frame_header(frame_of(self), own);
  write_scale(frame_of(self), finite ? static_cast<float>(scale) : 0.0f);
  step.report.seconds_compress += watch.lap();
  SendWindow sends;
  for (std::size_t shift = 1; shift < world; ++shift) {
    sends.push(
        step.communicator.send(static_cast<int>((self + shift) % world), kScaledSignsTag, frame_of(self)));
    step.report.frame_header_bytes += FrameHeader::kBytes;
  }
  bool all_finite = finite;
  const auto scales = step.workspace.take<float>(world);
  for (std::size_t peer = 0; peer < world; ++peer) {
    if (peer != self) {
      receives[peer].wait();
      all_finite =
          !expect_frame(frame_of(peer), header_of(bucket, step, peer, elements)).non_finite() && all_finite;
    }
    scales[peer] = read_scale(frame_of(peer));
  }
  sends.wait_all();
  step.report.seconds_wait += watch.lap();
  // Every partial sum lies within the sum of the scales; all ranks have the same ones.
  float largest_sum = 0;
  for (const float one : scales) largest_sum += one;
  all_finite = all_finite && std::isfinite(largest_sum);
  step.report.finite = all_finite;
  if (!all_finite) {
    fill(step.executor, gradient, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  step.report.scale = scale;

  const auto vectors = step.workspace.take<ScaledSigns>(world);
  for (std::size_t peer = 0; peer < world; ++peer) vectors[peer] = {bits_of(peer), scales[peer]};
  const double squares = average_signs(step.executor, vectors, self, gradient, residual);
  if (!residual.empty()) step.report.residual_norm = std::sqrt(squares);
  step.report.seconds_decompress += watch.lap();
}

std::uint64_t scaled_signs_payload_bytes(const Workload& workload) {
  if (workload.elements == 0) return 0;
  return static_cast<std::uint64_t>(workload.world_size - 1) *
         frame_payload_bytes(FrameType::scaled_sign_bits, workload.elements, 1);
}

}  // namespace thinwire

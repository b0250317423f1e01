#include "exchange/sums.h"

#include <algorithm>

#include "comm/ring.h"
#include "core/partition.h"
#include "core/stopwatch.h"
#include "kernels/dense/dense.h"

namespace thinwire {
namespace {

constexpr Communicator::Tag kDeviceSumsTag = Communicator::kFirstReservedTag + 60;

/// Long enough that a kernel's start and the wait for it vanish beside the transfer over a fast link.
constexpr std::size_t kDevicePieceElements = std::size_t{1} << 20;
constexpr std::size_t kMostDevicePieces = 64;

/// Values travel from where they lie and are added on the device: own + received, as on the host.
class DeviceSums final : public RingCodec {
 public:
  DeviceSums(Executor& executor, Span<float> values, Span<float> landing, std::size_t piece_elements)
      : executor_(executor), values_(values), landing_(landing), piece_elements_(piece_elements) {}

  void start_gather() { gathering_ = true; }

  std::size_t message_bytes(const RingPiece& piece) const override {
    return piece.elements() * sizeof(float);
  }
  Span<const std::byte> outgoing(const RingPiece& piece) override { return as_bytes(own(piece)); }
  Span<std::byte> landing(const RingPiece& piece) override {
    return as_writable_bytes(gathering_ ? own(piece)
                                        : landing_.subspan(piece.slot * piece_elements_, piece.elements()));
  }
  void incoming(const RingPiece& piece, Span<const std::byte>) override {
    if (gathering_) return;
    add(executor_, own(piece), landing_.subspan(piece.slot * piece_elements_, piece.elements()));
    executor_.wait();  // what arrives next may land in the same place, and the sum is sent on
  }

 private:
  Span<float> own(const RingPiece& piece) const { return values_.subspan(piece.begin, piece.elements()); }

  Executor& executor_;
  Span<float> values_;
  Span<float> landing_;
  std::size_t piece_elements_;
  bool gathering_ = false;
};

void ring_on_device(Step& step, Span<float> values) {
  Communicator& communicator = step.communicator;
  const RingGroup group{communicator.ranks(), static_cast<std::size_t>(communicator.rank())};
  const std::size_t longest = part_size(values.size(), group.size(), group.size() - 1);
  const std::size_t piece_elements =
      std::min(std::max(kDevicePieceElements, longest / kMostDevicePieces + 1), longest + 1);
  DeviceSums sums(step.executor, values, step.scratch.take<float>(kRingWindow * piece_elements),
                  piece_elements);
  const RingLayout layout{.elements = values.size(), .parts = group.size(), .piece_elements = piece_elements};
  RingTimes times;
  ring_reduce_scatter(communicator, group, layout, kDeviceSumsTag, sums, times);
  sums.start_gather();
  ring_all_gather(communicator, group, layout, kDeviceSumsTag, sums, times);
}

void sum(Step& step, Span<float> values) {
  if (values.memory() == Memory::host || values.empty()) return step.communicator.all_reduce_sum(values);
  if (step.communicator.reduces(values.memory())) {
    step.executor.wait();
    return step.communicator.all_reduce_sum(values);
  }
  if (step.communicator.size() == 1) return;
  if (step.communicator.reaches(values.memory())) {
    step.executor.wait();
    return ring_on_device(step, values);
  }
  const Span<float> here = step.workspace.take<float>(values.size());
  copy(step.executor, Span<const float>(values), here);
  step.communicator.all_reduce_sum(here);
  copy(step.executor, Span<const float>(here), values);
}

}  // namespace

void all_reduce_sum(Step& step, Span<float> values) {
  Stopwatch watch;
  sum(step, values);
  step.report.seconds_wait += watch.seconds();
}

}  // namespace thinwire

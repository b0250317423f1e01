#include "exchange/collectives.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "comm/message_tags.h"
#include "comm/ring.h"
#include "core/partition.h"
#include "kernels/dense/dense.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// Long enough that a kernel's start and the wait for it vanish beside the transfer over a fast link.
constexpr std::size_t kDeviceChunkElements = std::size_t{1} << 20;
constexpr std::size_t kMostDeviceChunks = 64;

/// Values travel from where they lie and are added on the device: own + received, as on the host.
class DeviceSums final : public RingCodec {
 public:
  DeviceSums(Executor& executor, Span<float> values, Span<float> receive_buffers, std::size_t chunk_elements)
      : executor_(executor),
        values_(values),
        receive_buffers_(receive_buffers),
        chunk_elements_(chunk_elements) {}

  void start_gather() override { gathering_ = true; }

  std::size_t message_bytes(const RingChunk& chunk) const override {
    return chunk.elements() * sizeof(float);
  }
  Span<const std::byte> outgoing(const RingChunk& chunk) override { return as_bytes(own(chunk)); }
  Span<std::byte> receive_buffer(const RingChunk& chunk) override {
    return as_writable_bytes(
        gathering_ ? own(chunk) : receive_buffers_.subspan(chunk.slot * chunk_elements_, chunk.elements()));
  }
  void incoming(const RingChunk& chunk, Span<const std::byte>) override {
    if (gathering_) return;
    add(executor_, own(chunk), receive_buffers_.subspan(chunk.slot * chunk_elements_, chunk.elements()));
    executor_.wait();  // what arrives next may land in the same place, and the sum is sent on
  }

 private:
  Span<float> own(const RingChunk& chunk) const { return values_.subspan(chunk.begin, chunk.elements()); }

  Executor& executor_;
  Span<float> values_;
  Span<float> receive_buffers_;
  std::size_t chunk_elements_;
  bool gathering_ = false;
};

void ring_on_device(Step& step, Span<float> values) {
  Communicator& communicator = step.communicator;
  const RingGroup group{communicator.ranks(), static_cast<std::size_t>(communicator.rank())};
  const std::size_t longest = part_size(values.size(), group.size(), group.size() - 1);
  const std::size_t chunk_elements =
      std::min(std::max(kDeviceChunkElements, longest / kMostDeviceChunks + 1), longest + 1);
  DeviceSums sums(step.executor, values, step.scratch.take<float>(kRingWindow * chunk_elements),
                  chunk_elements);
  const RingLayout layout{.elements = values.size(), .parts = group.size(), .chunk_elements = chunk_elements};
  ring_all_reduce(communicator, group, layout, kDeviceSumsTag, sums);
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
  const StepClock::During waiting(&step.clock, Phase::wait);
  sum(step, values);
}

void mark_not_finite(Executor& executor, Span<float> values) {
  constexpr float kNotFinite = std::numeric_limits<float>::quiet_NaN();
  if (values.empty()) return;
  if (values.memory() == Memory::host) {
    values[0] = kNotFinite;
  } else {
    fill(executor, values.first(1), kNotFinite);
  }
}

void all_reduce_or(Step& step, Span<std::uint64_t> words) {
  const StepClock::During waiting(&step.clock, Phase::wait);
  step.communicator.all_reduce_or(words);
}

double mean_over_ranks(Step& step, double value) {
  const auto all = gather(step, value);
  double sum = 0;
  for (const double one : all) {
    if (!std::isfinite(one) || one < 0) return std::numeric_limits<double>::quiet_NaN();
    sum += one;
  }
  return sum / static_cast<double>(all.size());
}

double largest_over_ranks(Step& step, double value) {
  double largest = 0;
  for (const double one : gather(step, value)) {
    if (!std::isfinite(one) || one < 0) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, one);
  }
  return largest;
}

bool take_from_rank_0(Step& step, Span<float> values, bool usable) {
  if (!usable) values[0] = std::numeric_limits<float>::quiet_NaN();
  const StepClock::During waiting(&step.clock, Phase::wait);
  step.communicator.broadcast(as_writable_bytes(values), 0);
  step.report.formula_bytes +=
      broadcast_payload_bytes(values.size_bytes(), step.communicator.rank(), step.communicator.size());
  return !std::isnan(values[0]);
}

std::uint64_t broadcast_payload_bytes(std::uint64_t bytes, int rank, int world_size) {
  std::uint64_t sent = 0;
  for (int reach = 1; reach < world_size; reach *= 2) {
    if (rank < reach && rank + reach < world_size) sent += bytes;
  }
  return sent;
}

std::vector<std::string> gather_bytes(Communicator& communicator, const ExchangeCall& call,
                                      std::string_view mine, std::size_t longest) {
  Exchange exchange(communicator, call);
  const auto world = static_cast<std::size_t>(communicator.size());
  const std::uint64_t own = mine.size();
  std::vector<std::uint64_t> lengths(world);
  communicator.all_gather(as_bytes(Span<const std::uint64_t>(&own, 1)),
                          as_writable_bytes(Span<std::uint64_t>(lengths)));
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (lengths[rank] <= longest) continue;
    throw CorruptFrame("rank " + std::to_string(rank) + " announces " + std::to_string(lengths[rank]) +
                       " bytes (" + std::string(call.kind) + "), and " + std::to_string(longest) +
                       " are the most that there can be");
  }
  const std::vector<std::size_t> counts(lengths.begin(), lengths.end());
  std::vector<std::byte> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  communicator.all_gather_v(as_bytes(Span<const char>(mine.data(), mine.size())), Span<std::byte>(all),
                            counts);
  exchange.finish();
  std::vector<std::string> parts;
  const char* at = reinterpret_cast<const char*>(all.data());
  for (const std::size_t count : counts) {
    parts.emplace_back(at, count);
    at += count;
  }
  return parts;
}

}  // namespace thinwire

// The collectives that every engine has, on send and receive alone. An engine overrides what it does better.
//
//   all_reduce     ring, in chunks: 2 (W-1)/W n elements sent per rank, 2 (W-1) hops
//   all_gather     direct exchange: (W-1) n bytes, one hop, or W - 1 in turns where that is long
//   broadcast      binomial tree: ceil(log2 W) hops
//   barrier        dissemination: ceil(log2 W) hops of one byte

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "comm/message_tags.h"
#include "comm/ring.h"
#include "core/partition.h"
#include "core/turns.h"
#include "thinwire/communicator.h"
#include "wire/crc32c.h"

namespace thinwire {
namespace {

/// Large enough that per-message cost vanishes, small enough that a chunk stays in the second-level cache;
/// but a segment is never cut into more than kMostChunks, so that the messages under way stay countable.
constexpr std::size_t kChunkBytes = 256 * 1024;
constexpr std::size_t kMostChunks = 64;

/// Messages may lie where the engine reaches; what is reduced or copied here may not.
void require_host(Memory memory) {
  if (memory == Memory::host) return;
  throw std::invalid_argument(
      "this collective works on host memory only: copy device memory to the host first");
}

/// Values travel as they lie and are reduced in place.
template <class T, class Combine>
class InPlaceCodec final : public RingCodec {
 public:
  /// seals: a word for each chunk of each segment, or none: then chunks travel without checksums.
  InPlaceCodec(Span<T> values, Span<std::byte> scratch, std::size_t chunk_elements, Span<std::uint32_t> seals,
               Combine combine)
      : values_(values),
        scratch_(scratch),
        chunk_elements_(chunk_elements),
        seals_(seals),
        combine_(combine) {}

  void start_gather() override { gathering_ = true; }

  std::size_t message_bytes(const RingChunk& chunk) const override { return chunk.elements() * sizeof(T); }
  Span<const std::byte> outgoing(const RingChunk& chunk) override { return bytes_of(chunk); }
  Span<std::byte> receive_buffer(const RingChunk& chunk) override {
    return gathering_ ? bytes_of(chunk)
                      : scratch_.subspan(chunk.slot * chunk_elements_ * sizeof(T), message_bytes(chunk));
  }
  std::uint32_t* seal_of(const RingChunk& chunk) override {
    return seals_.empty() ? nullptr : &seals_[chunk.begin / chunk_elements_ + chunk.part];
  }
  void incoming(const RingChunk& chunk, Span<const std::byte> message) override {
    if (gathering_) return;  // it has arrived where it belongs
    const T* __restrict received = reinterpret_cast<const T*>(message.data());
    T* __restrict own = values_.data() + chunk.begin;
    const std::size_t count = chunk.elements();
    for (std::size_t i = 0; i < count; ++i) own[i] = combine_(received[i], own[i]);
  }

 private:
  Span<std::byte> bytes_of(const RingChunk& chunk) const {
    return as_writable_bytes(values_.subspan(chunk.begin, chunk.elements()));
  }

  Span<T> values_;
  Span<std::byte> scratch_;
  std::size_t chunk_elements_;
  Span<std::uint32_t> seals_;
  Combine combine_;
  bool gathering_ = false;
};

}  // namespace

template <class T, class Combine>
void Communicator::ring_all_reduce(Span<T> values, Combine combine) {
  require_host(values.memory());
  if (size_ == 1 || values.empty()) return;
  const RingGroup group{ranks(), static_cast<std::size_t>(rank_)};
  const std::size_t longest = part_size(values.size(), group.size(), group.size() - 1);
  const std::size_t chunk_elements =
      std::min(std::max(kChunkBytes / sizeof(T), longest / kMostChunks + 1), longest + 1);
  bind_exchange();
  // The chunks of all segments begin at different multiples of chunk_elements, but for one that two may
  // share.
  seals_.resize(seals() ? values.size() / chunk_elements + group.size() + 1 : 0);
  InPlaceCodec<T, Combine> codec(values, scratch(kRingWindow * chunk_elements * sizeof(T)), chunk_elements,
                                 seals_, combine);
  const RingLayout layout{.elements = values.size(), .parts = group.size(), .chunk_elements = chunk_elements};
  thinwire::ring_all_reduce(*this, group, layout, kReduceTag, codec);
}

void Communicator::all_reduce_sum(Span<float> values) {
  ring_all_reduce(values, [](float received, float own) { return received + own; });
}

void Communicator::ring_sum(Span<double> values) {
  ring_all_reduce(values, [](double received, double own) { return received + own; });
}

void Communicator::all_reduce_or(Span<std::uint64_t> words) {
  ring_all_reduce(words, [](std::uint64_t received, std::uint64_t own) { return received | own; });
}

void Communicator::all_gather(Span<const std::byte> mine, Span<std::byte> all) {
  if (all.size() != mine.size() * static_cast<std::size_t>(size_)) {
    throw std::invalid_argument("all_gather of " + std::to_string(mine.size()) + " bytes from " +
                                std::to_string(size_) + " ranks needs room for " +
                                std::to_string(mine.size() * static_cast<std::size_t>(size_)) +
                                " bytes, got " + std::to_string(all.size()));
  }
  exchange_parts(mine, all, [&](std::size_t) { return mine.size(); });
}

void Communicator::all_gather_v(Span<const std::byte> mine, Span<std::byte> all,
                                Span<const std::size_t> counts) {
  const auto world = static_cast<std::size_t>(size_);
  const auto self = static_cast<std::size_t>(rank_);
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  if (counts.size() != world || counts[self] != mine.size() || total != all.size()) {
    throw std::invalid_argument("all_gather_v: counts must list " + std::to_string(size_) + " sizes, " +
                                std::to_string(mine.size()) + " bytes for this rank and " +
                                std::to_string(all.size()) + " bytes in all");
  }
  exchange_parts(mine, all, [&](std::size_t peer) { return counts[peer]; });
}

void Communicator::exchange_parts(Span<const std::byte> mine, Span<std::byte> all,
                                  FunctionRef<std::size_t(std::size_t)> count) {
  require_host(mine.memory());
  require_host(all.memory());
  const auto world = static_cast<std::size_t>(size_);
  const auto self = static_cast<std::size_t>(rank_);
  bind_exchange();
  const bool sealed = seals();
  seals_.assign(sealed ? world : 0, 0);
  if (sealed) seals_[self] = crc32c(mine);
  const Span<std::uint32_t> all_seals(seals_);
  PendingLease pendings(pendings_, world);  // what each rank sends here comes first
  std::size_t offset = 0;
  for (std::size_t peer = 0; peer < world; offset += count(peer), ++peer) {
    if (count(peer) == 0) continue;
    const auto slot = all.subspan(offset, count(peer));
    if (peer != self) {
      pendings[peer] = receive(static_cast<int>(peer), kGatherTag, slot);
      if (sealed) {
        pendings.push(
            receive(static_cast<int>(peer), kGatherTag, as_writable_bytes(all_seals.subspan(peer, 1))));
      }
    } else if (slot.data() != mine.data()) {
      std::memmove(slot.data(), mine.data(), mine.size());
    }
  }
  // Everyone starts with its right-hand neighbour, so that no rank is everybody's first target.
  Turns turns(*this);
  const auto await = [&](std::size_t peer) {
    pendings[peer].wait();
    turns.arrived(count(peer));
  };
  for (std::size_t shift = 1; shift < world && !mine.empty(); ++shift) {
    const auto to = static_cast<int>((self + shift) % world);
    turns.before(shift, mine.size(), await);
    pendings.push(send(to, kGatherTag, mine));
    if (sealed) pendings.push(send_guard(to, kGatherTag, as_bytes(all_seals.subspan(self, 1))));
  }
  turns.rest(await);
  pendings.wait_all();
  offset = 0;
  for (std::size_t peer = 0; sealed && peer < world; offset += count(peer), ++peer) {
    if (peer == self || count(peer) == 0) continue;
    check_seal(static_cast<int>(peer), all.subspan(offset, count(peer)), all_seals[peer]);
  }
}

void Communicator::broadcast(Span<std::byte> bytes, int root) {
  if (root < 0 || root >= size_) {
    throw std::invalid_argument("broadcast from rank " + std::to_string(root) + " in a world of " +
                                std::to_string(size_));
  }
  if (bytes.empty()) return;
  bind_exchange();
  const bool sealed = seals();
  std::uint32_t seal = sealed && rank_ == root ? crc32c(bytes) : 0;
  const Span<std::byte> seal_bytes = as_writable_bytes(Span<std::uint32_t>(&seal, 1));
  // Ranks relative to the root; in round k the first 2^k of them send to those 2^k further on.
  const int relative = (rank_ - root + size_) % size_;
  for (int reach = 1; reach < size_; reach *= 2) {
    if (relative < reach) {
      if (relative + reach >= size_) continue;
      const int to = (rank_ + reach) % size_;
      Pending sending = send(to, kBroadcastTag, bytes);
      if (sealed) send_guard(to, kBroadcastTag, seal_bytes).wait();
      sending.wait();
    } else if (relative < 2 * reach) {
      const int from = (rank_ - reach + size_) % size_;
      Pending arriving = receive(from, kBroadcastTag, bytes);
      if (sealed) receive(from, kBroadcastTag, seal_bytes).wait();
      arriving.wait();
      if (sealed) check_seal(from, bytes, seal);
    }
  }
}

void Communicator::barrier() {
  for (int distance = 1; distance < size_; distance *= 2) {
    std::byte out{1};
    std::byte in{};
    Pending receiving = receive((rank_ + size_ - distance) % size_, kBarrierTag, Span<std::byte>(&in, 1));
    Pending sending = send((rank_ + distance) % size_, kBarrierTag, Span<const std::byte>(&out, 1));
    receiving.wait();
    sending.wait();
  }
}

}  // namespace thinwire

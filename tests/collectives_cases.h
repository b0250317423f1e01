#pragma once
// One set of checks for every engine: what each collective and message must compute, what it must count, and
// which misuse it must refuse. They throw std::runtime_error instead of using a test framework, because under
// Gloo and MPI they run in programs of their own, one process per rank.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/sanitized.h"
#include "thinwire/communicator.h"
#include "thinwire/errors.h"

namespace thinwire::testing {

inline const std::vector<std::size_t> kSizes{0, 1, 63, 64, 65, 1000, kSanitized ? 300'007u : 1'000'003u};

inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

/// For checks of single elements, which are too many to build a message for each.
inline void require_element(bool condition, const char* what, std::size_t index) {
  if (!condition) throw std::runtime_error(std::string(what) + " " + std::to_string(index));
}

class CollectivesCases {
 public:
  explicit CollectivesCases(Communicator& communicator)
      : communicator_(communicator),
        world_(static_cast<std::size_t>(communicator.size())),
        self_(static_cast<std::size_t>(communicator.rank())) {}

  void run() {
    for (const std::size_t size : kSizes) {
      in_case(size, "all_reduce_sum", &CollectivesCases::all_reduce_sum);
      in_case(size, "identical bits", &CollectivesCases::identical_bits);
      in_case(size, "all_reduce_or", &CollectivesCases::all_reduce_or);
      in_case(size, "all_gather", &CollectivesCases::all_gather);
      in_case(size, "all_gather_v", &CollectivesCases::all_gather_v);
      in_case(size, "broadcast", &CollectivesCases::broadcast);
      in_case(size, "ring of messages", &CollectivesCases::ring_of_messages);
    }
    in_case(0, "barrier", &CollectivesCases::barrier);
    in_case(0, "order and tags", &CollectivesCases::order_and_tags);
    in_case(0, "many messages in flight", &CollectivesCases::many_in_flight);
    in_case(0, "misuse", &CollectivesCases::misuse);
    in_case(1000, "all_reduce_sum after misuse", &CollectivesCases::all_reduce_sum);
    in_case(1000, "exchanges given up", &CollectivesCases::given_up);
    in_case(1000, "all_reduce_sum after them", &CollectivesCases::all_reduce_sum);
    in_case(1000, "exchanges with stamps ahead", &CollectivesCases::committed);
    in_case(0, "stamps ahead of different exchanges", &CollectivesCases::committed_to_another);
    in_case(1000, "all_reduce_sum after a refusal", &CollectivesCases::all_reduce_sum);
    in_case(1000, "sums that may begin early", &CollectivesCases::early_sums);
    in_case(0, "an exchange given up at the end", &CollectivesCases::begins_only);
  }

 private:
  void in_case(std::size_t size, const std::string& name, void (CollectivesCases::*body)(std::size_t)) {
    try {
      (this->*body)(size);
    } catch (const std::exception& error) {
      throw std::runtime_error(communicator_.engine() + ", " + std::to_string(world_) + " ranks, size " +
                               std::to_string(size) + ", " + name + ": " + error.what());
    }
  }

  Traffic traffic_of(const std::function<void()>& body) {
    const Traffic before = communicator_.traffic();
    body();
    return communicator_.traffic() - before;
  }

  std::vector<std::uint64_t> from_all_ranks(std::uint64_t mine) {
    std::vector<std::uint64_t> all(world_);
    communicator_.all_gather(as_bytes(Span<const std::uint64_t>(&mine, 1)),
                             as_writable_bytes(Span<std::uint64_t>(all)));
    return all;
  }

  std::uint64_t sum_over_ranks(std::uint64_t mine) {
    std::uint64_t sum = 0;
    for (const std::uint64_t value : from_all_ranks(mine)) sum += value;
    return sum;
  }

  /// A ring sends all parts but one in each of its two phases; a part has n/W elements, give or take one.
  void require_ring_traffic(const Traffic& traffic, std::size_t elements, std::size_t element_bytes) {
    const std::uint64_t total = 2 * (world_ - 1) * elements * element_bytes;
    const std::uint64_t most = 2 * (world_ - 1) * ((elements + world_ - 1) / world_) * element_bytes;
    require(sum_over_ranks(traffic.sent_bytes) == total, "bytes sent by all ranks");
    require(sum_over_ranks(traffic.received_bytes) == total, "bytes received by all ranks");
    require(traffic.sent_bytes <= most && traffic.received_bytes <= most, "more bytes than a ring needs");
  }

  void all_reduce_sum(std::size_t size) {
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(i % 1000 + self_);
    const Traffic traffic = traffic_of([&] { communicator_.all_reduce_sum(values); });
    for (std::size_t i = 0; i < size; ++i) {
      const auto expected = static_cast<float>(world_ * (i % 1000) + world_ * (world_ - 1) / 2);
      require_element(values[i] == expected, "wrong sum at", i);
    }
    require_ring_traffic(traffic, size, sizeof(float));
  }

  void identical_bits(std::size_t size) {
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) {
      values[i] = std::sin(static_cast<float>(i + 1) * 0.37f + static_cast<float>(self_) * 1.71f);
    }
    communicator_.all_reduce_sum(values);
    std::uint64_t hash = 14695981039346656037u;
    for (const float value : values) hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211u;
    for (const std::uint64_t other : from_all_ranks(hash))
      require(other == hash, "ranks hold different bits");
  }

  void all_reduce_or(std::size_t size) {
    std::vector<std::uint64_t> words(size);
    for (std::size_t i = 0; i < size; ++i) words[i] = std::uint64_t{1} << ((i + 9 * self_) % 64);
    const Traffic traffic = traffic_of([&] { communicator_.all_reduce_or(words); });
    for (std::size_t i = 0; i < size; ++i) {
      std::uint64_t expected = 0;
      for (std::size_t rank = 0; rank < world_; ++rank) expected |= std::uint64_t{1} << ((i + 9 * rank) % 64);
      require_element(words[i] == expected, "wrong word", i);
    }
    require_ring_traffic(traffic, size, sizeof(std::uint64_t));
  }

  static std::byte pattern(std::size_t from, std::size_t to, std::size_t i) {
    return static_cast<std::byte>((i * 31 + from * 7 + to * 13 + i / 256) % 251);
  }

  std::vector<std::byte> bytes_of(std::size_t from, std::size_t to, std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern(from, to, i);
    return bytes;
  }

  void require_pattern(const std::byte* bytes, std::size_t from, std::size_t to, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
      require_element(bytes[i] == pattern(from, to, i), "wrong byte", i);
    }
  }

  void all_gather(std::size_t size) {
    const std::vector<std::byte> mine = bytes_of(self_, 0, size);
    std::vector<std::byte> all(size * world_);
    const Traffic traffic = traffic_of([&] { communicator_.all_gather(mine, all); });
    for (std::size_t rank = 0; rank < world_; ++rank)
      require_pattern(all.data() + rank * size, rank, 0, size);
    require(traffic.sent_bytes == (world_ - 1) * size && traffic.received_bytes == (world_ - 1) * size,
            "bytes");
    // In place: this rank's part already lies in its slot.
    std::vector<std::byte> slots(size * world_);
    if (size != 0) std::memcpy(slots.data() + self_ * size, mine.data(), size);
    communicator_.all_gather(Span<const std::byte>(slots.data() + self_ * size, size), slots);
    require(slots == all, "in place differs");
  }

  void all_gather_v(std::size_t size) {
    std::vector<std::size_t> counts(world_);
    std::size_t total = 0;
    for (std::size_t rank = 0; rank < world_; ++rank) total += counts[rank] = size * rank / world_;
    const std::vector<std::byte> mine = bytes_of(self_, 0, counts[self_]);
    std::vector<std::byte> all(total);
    const Traffic traffic = traffic_of([&] { communicator_.all_gather_v(mine, all, counts); });
    std::size_t begin = 0;
    for (std::size_t rank = 0; rank < world_; begin += counts[rank], ++rank) {
      require_pattern(all.data() + begin, rank, 0, counts[rank]);
    }
    require(traffic.sent_bytes == (world_ - 1) * counts[self_], "bytes sent");
    require(traffic.received_bytes == total - counts[self_], "bytes received");
  }

  void broadcast(std::size_t size) {
    for (std::size_t root = 0; root < world_; ++root) {
      std::vector<std::byte> bytes = bytes_of(self_, 0, size);
      const Traffic traffic = traffic_of([&] { communicator_.broadcast(bytes, static_cast<int>(root)); });
      require_pattern(bytes.data(), root, 0, size);
      require(sum_over_ranks(traffic.sent_bytes) == (world_ - 1) * size, "bytes sent by all ranks");
      require(traffic.received_bytes == (self_ == root ? 0 : size), "bytes received");
    }
  }

  void ring_of_messages(std::size_t size) {
    if (world_ == 1) return;
    const std::size_t next = (self_ + 1) % world_;
    const std::size_t previous = (self_ + world_ - 1) % world_;
    const std::vector<std::byte> out = bytes_of(self_, next, size);
    std::vector<std::byte> in(size);
    const Traffic traffic = traffic_of([&] {
      Pending receiving = communicator_.receive(static_cast<int>(previous), 5, in);
      communicator_.send(static_cast<int>(next), 5, out).wait();
      receiving.wait();
    });
    require_pattern(in.data(), previous, self_, size);
    require(traffic.sent_bytes == size && traffic.received_bytes == size, "bytes");
    require(traffic.sent_messages == 1 && traffic.received_messages == 1, "messages");
  }

  void barrier(std::size_t) {
    for (int round = 0; round < 20; ++round) communicator_.barrier();
  }

  /// Messages with one tag arrive in the order sent; tags do not wait for each other.
  void order_and_tags(std::size_t) {
    if (world_ == 1) return;
    const int next = static_cast<int>((self_ + 1) % world_);
    const int previous = static_cast<int>((self_ + world_ - 1) % world_);
    const std::uint64_t out[]{self_ * 10 + 1, self_ * 10 + 2, self_ * 10 + 3};
    std::uint64_t in[3]{};
    const auto outgoing = [&](int i) { return as_bytes(Span<const std::uint64_t>(&out[i], 1)); };
    const auto incoming = [&](int i) { return as_writable_bytes(Span<std::uint64_t>(&in[i], 1)); };
    Pending first = communicator_.send(next, 0, outgoing(0));
    Pending second = communicator_.send(next, 0, outgoing(1));
    Pending other = communicator_.send(next, Communicator::kFirstReservedTag - 1, outgoing(2));
    communicator_.receive(previous, Communicator::kFirstReservedTag - 1, incoming(2)).wait();
    communicator_.receive(previous, 0, incoming(0)).wait();
    communicator_.receive(previous, 0, incoming(1)).wait();
    first.wait();
    second.wait();
    other.wait();
    const auto from = static_cast<std::uint64_t>(previous) * 10;
    require(in[0] == from + 1 && in[1] == from + 2 && in[2] == from + 3, "messages were mixed up");
  }

  void many_in_flight(std::size_t) {
    if (world_ == 1) return;
    const int next = static_cast<int>((self_ + 1) % world_);
    const int previous = static_cast<int>((self_ + world_ - 1) % world_);
    constexpr std::size_t kMessages = 64;
    constexpr std::size_t kBytes = 40000;
    std::vector<std::vector<std::byte>> in(kMessages, std::vector<std::byte>(kBytes));
    std::vector<std::vector<std::byte>> out;
    std::vector<Pending> pending;
    for (std::size_t i = 0; i < kMessages; ++i) out.push_back(bytes_of(self_, i, kBytes));
    for (auto& bytes : in) pending.push_back(communicator_.receive(previous, 7, bytes));
    for (const auto& bytes : out) pending.push_back(communicator_.send(next, 7, bytes));
    for (auto& message : pending) message.wait();
    for (std::size_t i = 0; i < kMessages; ++i)
      require_pattern(in[i].data(), static_cast<std::size_t>(previous), i, kBytes);
  }

  template <class Body>
  void refused(const std::string& what, Body body) {
    try {
      body();
    } catch (const std::invalid_argument&) {
      return;
    }
    throw std::runtime_error(what + " was accepted");
  }

  /// All local: nothing of it reaches another rank, and the communicator works on.
  void misuse(std::size_t) {
    std::vector<std::byte> four(4);
    std::vector<std::byte> odd(4 * world_ + 1);
    const std::vector<std::size_t> counts(world_ + 1, 4);
    const int rank = communicator_.rank();
    refused("a send to oneself", [&] { communicator_.send(rank, 1, four); });
    refused("a receive from oneself", [&] { communicator_.receive(rank, 1, four); });
    refused("a negative peer", [&] { communicator_.send(-1, 1, four); });
    refused("a peer outside", [&] { communicator_.receive(communicator_.size(), 1, four); });
    refused("an all_gather without room", [&] { communicator_.all_gather(four, odd); });
    refused("an all_gather_v with a count too many", [&] { communicator_.all_gather_v(four, odd, counts); });
    refused("a broadcast from outside", [&] { communicator_.broadcast(four, communicator_.size()); });
    refused("a deadline of zero", [&] { communicator_.set_deadline(std::chrono::seconds(0)); });
    if (!communicator_.reduces(Memory::cuda)) {
      float values[2] = {};
      refused("a sum of memory of a device",
              [&] { communicator_.all_reduce_sum(Span<float>(values, 2, Memory::cuda)); });
    }
    if (world_ > 1 && !communicator_.reaches(Memory::cuda)) {
      const int peer = rank == 0 ? 1 : 0;
      const Span<const std::byte> on_device(four.data(), four.size(), Memory::cuda);
      refused("memory of a device", [&] { communicator_.send(peer, 1, on_device); });
    }
  }

  /// What a rank does whose work failed before its first message.
  void begin_and_give_up(std::uint32_t bucket) {
    const Exchange exchange(communicator_, {.bucket = bucket, .step = 3, .elements = 10});
  }

  void whole_exchange(std::uint32_t bucket, std::size_t size) {
    Exchange exchange(communicator_, {.bucket = bucket, .step = 3, .elements = 10});
    std::vector<float> values(size, static_cast<float>(bucket));
    communicator_.all_reduce_sum(values);
    exchange.finish();
    for (std::size_t i = 0; i < size; ++i) {
      require_element(values[i] == static_cast<float>(bucket * world_), "sum of an exchange", i);
    }
  }

  /// Ranks that commit themselves and ranks that do not, by turns, meet in the same comparison.
  void committed(std::size_t size) {
    for (std::uint32_t bucket = 10; bucket < 14; ++bucket) {
      Exchange exchange(communicator_, {.bucket = bucket, .step = 4, .elements = 10});
      if (bucket == 10 || (bucket + self_) % 2 == 0) communicator_.commit_exchange();
      std::vector<float> values(size, static_cast<float>(bucket));
      if (bucket != 12) communicator_.all_reduce_sum(values);  // of bucket 12 nothing has to be sent
      communicator_.commit_exchange();                         // too late to matter
      exchange.finish();
      const auto times = static_cast<float>(bucket != 12 ? world_ : 1);
      for (std::size_t i = 0; i < size; ++i) {
        require_element(values[i] == static_cast<float>(bucket) * times, "sum after a stamp", i);
      }
      communicator_.barrier();
    }
  }

  /// The odd rank means another bucket: all are told, whoever had sent a stamp before.
  void committed_to_another(std::size_t) {
    if (world_ == 1) return;
    for (std::uint32_t turn = 0; turn < 3; ++turn) {
      const bool odd = self_ + 1 == world_;
      try {
        Exchange exchange(communicator_, {.bucket = odd ? 21u : 20u, .step = turn, .elements = 10});
        if (turn == 0 || (turn == 1) == odd) communicator_.commit_exchange();
        communicator_.barrier();
        exchange.finish();
      } catch (const CommError& error) {
        const std::string text = error.what();
        require(text.find("bucket 20") != std::string::npos && text.find("bucket 21") != std::string::npos,
                "the refusal does not say which buckets");
        continue;
      }
      require(false, "different calls went through");
    }
  }

  /// Steps that repeat and steps that do not: whatever begins early, sums and messages are the same.
  void early_sums(std::size_t size) {
    communicator_.set_early_sums(true);
    const std::vector<std::uint64_t> buckets_of_steps{2, 2, 2, 1, 2, 2, 2, 3, 3, 3};
    // Of calls that repeat those of the step before, where that one has repeated its own.
    const std::vector<std::uint64_t> repeated{0, 0, 2, 1, 0, 0, 2, 2, 0, 3};
    const bool begins_early = communicator_.engine() == "gloo" && world_ > 1 && size > 0;
    std::vector<std::uint64_t> messages;
    for (std::size_t step = 0; step < buckets_of_steps.size(); ++step) {
      const std::uint64_t before = communicator_.sums_begun_early();
      const Traffic traffic = traffic_of([&] {
        for (std::uint32_t bucket = 0; bucket < buckets_of_steps[step]; ++bucket) {
          Exchange exchange(communicator_, {.bucket = bucket, .step = 10 + step, .elements = size});
          if (bucket == 0) communicator_.commit_exchange();
          std::vector<float> values(size, static_cast<float>(self_ + 1));
          communicator_.all_reduce_sum(values);
          exchange.finish();
          for (std::size_t i = 0; i < size; ++i) {
            require_element(values[i] == static_cast<float>(world_ * (world_ + 1) / 2), "early sum at", i);
          }
        }
      });
      messages.push_back(traffic.sent_messages / buckets_of_steps[step]);
      require(communicator_.sums_begun_early() - before == (begins_early ? repeated[step] : 0),
              "sums that have begun early");
    }
    // A rank that has given up a call expects nothing; the others do.
    for (std::size_t step = 30; step < 34; ++step) {
      if (step == 33 && self_ == 0) begin_and_give_up(0);
      const std::uint64_t before = communicator_.sums_begun_early();
      Exchange exchange(communicator_, {.bucket = 0, .step = step, .elements = size});
      std::vector<float> values(size, 1.0f);
      communicator_.all_reduce_sum(values);
      exchange.finish();
      for (const float value : values) require(value == static_cast<float>(world_), "an early sum");
      require(communicator_.sums_begun_early() - before ==
                  (begins_early && step > 31 && (step < 33 || self_ > 0) ? 1 : 0),
              "sums after a call that was given up");
    }
    for (const std::uint64_t of_step : messages) require(of_step == messages[0], "calls were not compared");
    communicator_.set_early_sums(false);
  }

  void given_up(std::size_t size) {
    begin_and_give_up(1);
    whole_exchange(1, size);  // the same again
    if (communicator_.rank() == 0) begin_and_give_up(2);
    whole_exchange(2, size);  // where only one rank had given up
    begin_and_give_up(3);
    whole_exchange(4, size);  // another one
    if (communicator_.rank() == 0) begin_and_give_up(5);
    whole_exchange(6, size);  // where only one rank had begun another
  }

  void begins_only(std::size_t) { begin_and_give_up(7); }

  Communicator& communicator_;
  std::size_t world_;
  std::size_t self_;
};

/// Rank 0 sends rank 1 a message of another size than it expects. Both get an error that a program can
/// handle; the communicator is unusable afterwards.
inline void check_wrong_size(Communicator& communicator, std::size_t sent, std::size_t expected) {
  std::vector<std::byte> bytes(communicator.rank() == 0 ? sent : expected);
  if (communicator.rank() == 0) {
    communicator.send(1, 3, bytes).wait();
  } else if (communicator.rank() == 1) {
    communicator.receive(0, 3, bytes).wait();
    throw std::runtime_error("a message of " + std::to_string(sent) + " bytes was taken for " +
                             std::to_string(expected));
  }
}

/// After steps that repeat, the last rank sums something else. All are told, and it has summed nothing. The
/// others' sums had begun, so the communicator is unusable.
inline void check_early_sums_that_differ(Communicator& communicator) {
  communicator.set_early_sums(true);
  const bool differs = communicator.rank() + 1 == communicator.size();
  for (std::uint64_t step = 0; step < 5; ++step) {
    const std::size_t size = step < 4 || !differs ? 100'000 : 4;
    std::vector<float> values(size, 1.0f);
    try {
      Exchange exchange(communicator, {.bucket = 3, .step = step, .elements = size});
      communicator.all_reduce_sum(values);
      exchange.finish();
      require(step < 4, "different calls went through");
      require(values[0] == static_cast<float>(communicator.size()), "an early sum is wrong");
    } catch (const CommError& error) {
      const std::string text = error.what();
      require(step == 4, "equal calls were refused: " + text);
      require(error.peer() == communicator.size() - 1, "the rank that differs is not named: " + text);
      require(text.find(", 4 elements") != std::string::npos &&
                  text.find(", 100000 elements") != std::string::npos,
              "the refusal does not say which sizes: " + text);
      require(!differs || values == std::vector<float>(4, 1.0f), "the rank that differs has summed");
    }
  }
  require(communicator.sums_begun_early() == (differs ? 2 : 3), "sums that have begun early");
  try {
    std::vector<float> values(4, 1.0f);
    communicator.all_reduce_sum(values);
  } catch (const CommError&) {
    return;
  }
  require(false, "a sum after the refusal went through");
}

}  // namespace thinwire::testing

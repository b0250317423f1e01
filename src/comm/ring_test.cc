#include "comm/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/partition.h"
#include "thinwire/in_process.h"

namespace thinwire::ring_test {
namespace {

/// Adds up integers and writes down what it was asked.
class SumCodec final : public RingCodec {
 public:
  explicit SumCodec(std::vector<std::uint32_t>& values) : values_(values) {}

  bool gathering = false;
  std::size_t prepared = 0;
  std::size_t reduced = 0;

  std::size_t message_bytes(const RingChunk& chunk) const override { return chunk.elements() * 4; }
  Span<const std::byte> outgoing(const RingChunk& chunk) override { return as_bytes(part(chunk)); }
  void prepare(const RingChunk&) override { ++prepared; }
  Span<std::byte> receive_buffer(const RingChunk& chunk) override {
    if (gathering) return as_writable_bytes(part(chunk));
    auto& buffer = receive_buffers_[chunk.slot];
    buffer.resize(message_bytes(chunk));
    return buffer;
  }
  void incoming(const RingChunk& chunk, Span<const std::byte> message) override {
    ++reduced;
    EXPECT_LT(chunk.begin, chunk.end);
    if (gathering) return;
    for (std::size_t i = 0; i < chunk.elements(); ++i) {
      std::uint32_t value = 0;
      std::memcpy(&value, message.data() + 4 * i, 4);
      values_[chunk.begin + i] += value;
    }
  }

 private:
  Span<std::uint32_t> part(const RingChunk& chunk) {
    return Span<std::uint32_t>(values_).subspan(chunk.begin, chunk.elements());
  }
  std::vector<std::uint32_t>& values_;
  std::map<std::size_t, std::vector<std::byte>> receive_buffers_;
};

struct RingCase {
  int ranks;
  std::size_t elements;
  std::size_t chunk;
};

class Ring : public testing::TestWithParam<RingCase> {};

TEST_P(Ring, ReduceScatterThenAllGatherIsAnAllReduce) {
  const auto [ranks, elements, chunk] = GetParam();
  run_in_process(ranks, [&, elements = elements, chunk = chunk](Communicator& communicator) {
    const auto world = static_cast<std::size_t>(communicator.size());
    std::vector<int> members(world);
    for (std::size_t i = 0; i < world; ++i) members[i] = static_cast<int>(i);
    const RingGroup group{members, static_cast<std::size_t>(communicator.rank())};
    const RingLayout layout{.elements = elements,
                            .parts = 2 * world,
                            .first_part = 0,
                            .parts_per_segment = 2,
                            .chunk_elements = chunk};
    std::vector<std::uint32_t> values(elements);
    for (std::size_t i = 0; i < elements; ++i)
      values[i] = static_cast<std::uint32_t>(i * world + group.position);
    SumCodec codec(values);
    ring_reduce_scatter(communicator, group, layout, 0, codec);
    EXPECT_EQ(codec.prepared, codec.reduced);
    auto expected = [&](std::size_t i) {
      return static_cast<std::uint32_t>(i * world * world + world * (world - 1) / 2);
    };
    const std::size_t owned = ring_owned_segment(group.position, world);
    for (std::size_t i = part_begin(elements, 2 * world, 2 * owned);
         i < part_begin(elements, 2 * world, 2 * owned + 2); ++i) {
      ASSERT_EQ(values[i], expected(i));
    }
    codec.gathering = true;
    ring_all_gather(communicator, group, layout, 0, codec);
    for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(values[i], expected(i));
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Ring,
                         testing::Values(RingCase{1, 100, 8}, RingCase{2, 100, 8}, RingCase{3, 100, 7},
                                         RingCase{4, 1000, 1}, RingCase{5, 3, 8}, RingCase{8, 1, 8},
                                         RingCase{8, 0, 8}, RingCase{3, 100'003, 1000}, RingCase{8, 64, 64},
                                         RingCase{4, 100'000, 10}));

TEST(RingFormula, SentElementsAreTwoPhasesOfAllButOneSegment) {
  for (std::size_t size = 2; size <= 9; ++size) {
    for (const std::size_t elements : {0u, 1u, 7u, 8u, 1000u}) {
      std::uint64_t total = 0;
      for (std::size_t position = 0; position < size; ++position)
        total += ring_sent_elements(elements, size, position);
      EXPECT_EQ(total, 2 * (size - 1) * elements);
    }
  }
}

}  // namespace
}  // namespace thinwire::ring_test

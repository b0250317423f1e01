#include "comm/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/partition.h"
#include "thinwire/in_process.h"

namespace thinwire {
namespace {

/// Adds up integers and writes down what it was asked.
class SumCodec final : public RingCodec {
 public:
  explicit SumCodec(std::vector<std::uint32_t>& values) : values_(values) {}

  bool gathering = false;
  std::size_t prepared = 0;
  std::size_t joined = 0;

  std::size_t message_bytes(const RingPiece& piece) const override { return piece.elements() * 4; }
  Span<const std::byte> outgoing(const RingPiece& piece) override { return as_bytes(part(piece)); }
  void prepare(const RingPiece&) override { ++prepared; }
  Span<std::byte> landing(const RingPiece& piece) override {
    if (gathering) return as_writable_bytes(part(piece));
    auto& buffer = landings_[piece.slot];
    buffer.resize(message_bytes(piece));
    return buffer;
  }
  void incoming(const RingPiece& piece, Span<const std::byte> message) override {
    ++joined;
    EXPECT_LT(piece.begin, piece.end);
    if (gathering) return;
    for (std::size_t i = 0; i < piece.elements(); ++i) {
      std::uint32_t value = 0;
      std::memcpy(&value, message.data() + 4 * i, 4);
      values_[piece.begin + i] += value;
    }
  }

 private:
  Span<std::uint32_t> part(const RingPiece& piece) {
    return Span<std::uint32_t>(values_).subspan(piece.begin, piece.elements());
  }
  std::vector<std::uint32_t>& values_;
  std::map<std::size_t, std::vector<std::byte>> landings_;
};

struct RingCase {
  int ranks;
  std::size_t elements;
  std::size_t piece;
};

class Ring : public testing::TestWithParam<RingCase> {};

TEST_P(Ring, ReduceScatterThenAllGatherIsAnAllReduce) {
  const auto [ranks, elements, piece] = GetParam();
  run_in_process(ranks, [&, elements = elements, piece = piece](Communicator& communicator) {
    const auto world = static_cast<std::size_t>(communicator.size());
    std::vector<int> members(world);
    for (std::size_t i = 0; i < world; ++i) members[i] = static_cast<int>(i);
    const RingGroup group{members, static_cast<std::size_t>(communicator.rank())};
    const RingLayout layout{.elements = elements,
                            .parts = 2 * world,
                            .first_part = 0,
                            .parts_per_segment = 2,
                            .piece_elements = piece};
    std::vector<std::uint32_t> values(elements);
    for (std::size_t i = 0; i < elements; ++i)
      values[i] = static_cast<std::uint32_t>(i * world + group.position);
    SumCodec codec(values);
    RingTimes times;
    ring_reduce_scatter(communicator, group, layout, 0, codec, times);
    EXPECT_EQ(codec.prepared, codec.joined);
    auto expected = [&](std::size_t i) {
      return static_cast<std::uint32_t>(i * world * world + world * (world - 1) / 2);
    };
    const std::size_t owned = ring_owned_segment(group.position, world);
    for (std::size_t i = part_begin(elements, 2 * world, 2 * owned);
         i < part_begin(elements, 2 * world, 2 * owned + 2); ++i) {
      ASSERT_EQ(values[i], expected(i));
    }
    codec.gathering = true;
    ring_all_gather(communicator, group, layout, 0, codec, times);
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
}  // namespace thinwire

#include "exchange/coded_exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/dense/average_tiles.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "wire/payloads.h"

namespace thinwire::coded_exchange_test {
namespace {

constexpr CodedShape kShape{.bits = 2, .table_floats = 2};
constexpr std::size_t kElements = 100;

/// Plane 0 is the sign, plane 1 chooses one of the table's two magnitudes.
class TwoMagnitudes final : public Coder {
 public:
  explicit TwoMagnitudes(Span<const float> values) : values_(values) {}

  bool encode(Span<float> table, Span<std::uint64_t> codes) override {
    table[0] = 1;
    table[1] = 4;
    std::fill(codes.begin(), codes.end(), 0);
    bool finite = true;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      finite = finite && std::isfinite(values_[i]);
      codes[i / 64 * 2] |= std::uint64_t{values_[i] < 0} << (i % 64);
      codes[i / 64 * 2 + 1] |= std::uint64_t{std::fabs(values_[i]) > 2} << (i % 64);
    }
    return finite;
  }
  void prepare(std::size_t rank, Span<const float> table) override {
    if (table[0] > table[1]) throw CorruptFrame("rank " + std::to_string(rank) + ": magnitudes descend");
  }
  double average(Executor& executor, Span<const CodedFrame> frames, std::size_t self, Span<float> gradient,
                 ResidualSpan residual) const override {
    return average_tiles(executor, frames.size(), self, gradient, residual,
                         [&](std::size_t rank, std::size_t first, bool add, Span<float> values) {
                           const auto table = frames[rank].table();
                           const auto codes = frames[rank].codes();
                           for (std::size_t i = 0; i < values.size(); ++i) {
                             const std::size_t e = first + i;
                             const float magnitude = table[(codes[e / 64 * 2 + 1] >> (e % 64)) & 1];
                             const float value =
                                 ((codes[e / 64 * 2] >> (e % 64)) & 1) != 0 ? -magnitude : magnitude;
                             values[i] = add ? values[i] + value : value;
                           }
                         });
  }

 private:
  Span<const float> values_;
};

std::vector<float> values_of(int rank) {
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    values[i] = std::sin(static_cast<float>(i) + 10 * static_cast<float>(rank)) * 4;
  }
  return values;
}

float coded(float value) {
  const float magnitude = std::fabs(value) > 2 ? 4.0f : 1.0f;
  return value < 0 ? -magnitude : magnitude;
}

TEST(CodedExchange, AveragesInRankOrderAndKeepsTheRest) {
  for (const int world : {1, 2, 3, 5}) {
    run_in_process(world, [&](Communicator& communicator) {
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
      auto gradient = values_of(communicator.rank());
      std::vector<float> residual(kElements, 0.25f);
      auto p = gradient;
      for (float& value : p) value += 0.25f;
      TwoMagnitudes coder(p);
      average_coded(0, gradient, residual, step, kShape, coder);
      EXPECT_EQ(communicator.traffic().sent_bytes,
                coded_bytes(kElements, kShape, world) + step.report.frame_header_bytes);
      for (std::size_t i = 0; i < kElements; ++i) {
        float sum = 0;
        for (int rank = 0; rank < world; ++rank) sum += coded(values_of(rank)[i] + 0.25f);
        EXPECT_FLOAT_EQ(gradient[i], sum / static_cast<float>(world));
        EXPECT_FLOAT_EQ(residual[i], p[i] - coded(p[i]));
      }
    });
  }
}

struct Forged {
  FrameHeader header;
  std::vector<float> table = {1, 4};
  bool flipped = false;  // a bit on the way
};

/// Rank 1 of two sends a forged frame instead of its own; what rank 0 says to it.
std::string complaint_about(const std::function<void(Forged&)>& spoil) {
  std::string complaint = "accepted";
  try {
    run_in_process(2, [&](Communicator& communicator) {
      Workspace workspace;
      if (communicator.rank() == 1) {
        Forged forged;
        forged.header.type = FrameType::codes;
        forged.header.bucket = 4;
        forged.header.step = 9;
        forged.header.source = 1;
        forged.header.count = kElements;
        forged.header.width = 2;
        forged.header.payload_bytes = 8 + kElements / 4;
        spoil(forged);
        const CodedFrame frame(workspace, 2, kElements, 2);
        std::copy(forged.table.begin(), forged.table.end(), frame.table().begin());
        std::fill(frame.codes().begin(), frame.codes().end(), 0);
        write_frame_header(frame.message(), forged.header);
        if (forged.flipped) frame.message()[70] ^= std::byte{16};
        Pending sending = communicator.send(0, kCodesTag, frame.message());
        const CodedFrame other(workspace, 2, kElements, 2);
        communicator.receive(0, kCodesTag, other.message()).wait();
        sending.wait();
        return;
      }
      const auto executor = make_cpu_executor(1);
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = 9};
      auto gradient = values_of(0);
      TwoMagnitudes coder(gradient);
      try {
        average_coded(4, gradient, {}, step, kShape, coder);
      } catch (const CorruptFrame& error) {
        complaint = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {  // the other rank's message was not taken: its end of the story
  }
  return complaint;
}

TEST(CodedExchange, ForgedFramesAreRefused) {
  EXPECT_EQ(complaint_about([](Forged&) {}), "accepted");
  const std::vector<std::pair<std::function<void(Forged&)>, std::string>> cases = {
      {[](Forged& f) { f.header.bucket = 5; }, "bucket is 5, expected 4"},
      {[](Forged& f) { f.header.step = 8; }, "step is 8, expected 9"},
      {[](Forged& f) { f.header.source = 0; }, "source rank is 0, expected 1"},
      {[](Forged& f) { f.header.workers = 2; }, "workers is 2, expected 1"},
      {[](Forged& f) { f.header.first = 64; }, "first element is 64, expected 0"},
      {[](Forged& f) { f.header.count = 99; }, "count is 99, expected 100"},
      {[](Forged& f) { f.header.width = 3; }, "payload length for the count"},
      {[](Forged& f) { f.header.type = FrameType::sign_bits; }, "row width is 2, expected 0"},
      {[](Forged& f) { f.table[1] = std::numeric_limits<float>::infinity(); }, "not finite"},
      {[](Forged& f) { f.table[0] = std::numeric_limits<float>::quiet_NaN(); }, "not finite"},
      {[](Forged& f) {
         f.table = {4, 1};
       },
       "magnitudes descend"},
      {[](Forged& f) { f.flipped = true; }, "bytes changed on the way"},
      {[](Forged& f) { f.flipped = true; }, "(rank 1, bucket 4, step 9)"},
  };
  for (const auto& [spoil, wanted] : cases) {
    const std::string complaint = complaint_about(spoil);
    EXPECT_NE(complaint.find(wanted), std::string::npos) << complaint << "; wanted: " << wanted;
  }
}

TEST(CodedExchange, WhatIsNotFiniteOnOneRankOrInTheSumIsToldToAll) {
  for (const bool overflow : {false, true}) {
    run_in_process(3, [&](Communicator& communicator) {
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
      auto gradient = values_of(communicator.rank());
      if (!overflow && communicator.rank() == 1) gradient[7] = std::numeric_limits<float>::infinity();
      class Large final : public Coder {
       public:
        bool encode(Span<float> table, Span<std::uint64_t> codes) override {
          std::fill(table.begin(), table.end(), 3e38f);
          std::fill(codes.begin(), codes.end(), 0);
          return true;
        }
        double average(Executor&, Span<const CodedFrame>, std::size_t, Span<float>,
                       ResidualSpan) const override {
          ADD_FAILURE() << "the sum of three such values is not finite";
          return 0;
        }
      } large;
      TwoMagnitudes two(gradient);
      std::vector<float> residual(kElements, 0.5f);
      average_coded(0, gradient, residual, step, kShape, overflow ? static_cast<Coder&>(large) : two);
      EXPECT_FALSE(step.report.finite);
      for (const float value : residual) EXPECT_EQ(value, 0.5f);
    });
  }
}

}  // namespace
}  // namespace thinwire::coded_exchange_test

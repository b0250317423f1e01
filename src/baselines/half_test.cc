// What an owner sends that does not keep to the rules.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "baselines/baselines.h"
#include "comm/message_tags.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/registry.h"
#include "thinwire/synchronizer.h"
#include "wire/frame.h"

namespace thinwire::half_test {
namespace {

std::vector<std::byte> frame_of(FrameType type, std::uint64_t first, std::uint32_t workers,
                                std::uint16_t flags, std::vector<std::uint16_t> values) {
  FrameHeader header;
  header.type = type;
  header.flags = flags;
  header.bucket = 4;
  header.step = 9;
  header.source = 1;
  header.workers = workers;
  header.first = first;
  header.count = values.size();
  header.payload_bytes = 2 * values.size();
  std::vector<std::byte> frame(FrameHeader::kBytes + 2 * values.size());
  std::copy_n(reinterpret_cast<const std::byte*>(values.data()), 2 * values.size(),
              frame.begin() + FrameHeader::kBytes);
  write_frame_header(frame, header);
  return frame;
}

/// Rank 1 of two owns elements 2 and 3 and sends their mean as given. What rank 0 says, and what it then
/// holds.
std::string outcome_of(const std::string& format, std::uint16_t flags, std::uint16_t second_value) {
  const FrameType type = format == "fp16" ? FrameType::half_fp16 : FrameType::half_bf16;
  std::string outcome;
  try {
    run_in_process(2, [&](Communicator& communicator) {
      if (communicator.rank() == 1) {
        const auto up = frame_of(type, 0, 1, 0, {0, 0});
        const auto down = frame_of(type, 2, 2, flags, {0, second_value});
        std::vector<std::byte> from_peer(up.size());
        Pending first = communicator.send(0, kHalfUpTag, up);
        Pending second = communicator.send(0, kHalfDownTag, down);
        communicator.receive(0, kHalfUpTag, from_peer).wait();
        communicator.receive(0, kHalfDownTag, from_peer).wait();
        first.wait();
        second.wait();
        return;
      }
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = 9};
      Registry registry;
      registry.add(half_info());
      const auto half = registry.make("half:feedback=on:format=" + format);
      std::vector<float> gradient = {1, 2, 3, 4};
      std::vector<float> residual(4, 0.0f);
      try {
        half.synchronizer->synchronize(4, gradient, residual, step);
        outcome = step.report.finite ? "mean" : "left out";
      } catch (const CorruptFrame& error) {
        outcome = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
    // outcome has it.
  }
  return outcome;
}

TEST(Half, AMeanThatIsNotFiniteIsRefusedUnlessItsFlagsSaySo) {
  const std::vector<std::pair<std::string, std::vector<std::uint16_t>>> not_finite = {
      {"fp16", {0x7C00, 0xFC00, 0x7E01}}, {"bf16", {0x7F80, 0xFF80, 0x7FC1}}};
  for (const auto& [format, values] : not_finite) {
    EXPECT_EQ(outcome_of(format, 0, 0x3C00), "mean");
    EXPECT_EQ(outcome_of(format, FrameHeader::kNonFinite, 0x3C00), "left out");
    for (const std::uint16_t value : values) {
      EXPECT_EQ(outcome_of(format, FrameHeader::kNonFinite, value), "left out");
      const std::string refusal = outcome_of(format, 0, value);
      EXPECT_NE(refusal.find("rank 1 for bucket 4 in step 9 holds inf or NaN"), std::string::npos) << refusal;
    }
  }
}

}  // namespace
}  // namespace thinwire::half_test

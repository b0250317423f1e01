// What arrives from a rank that does not keep to the rules: an error that names the field, never a wrong sum.

#include "exchange/push_pull.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "wire/crc32c.h"
#include "wire/payloads.h"

namespace thinwire::push_pull_test {
namespace {

constexpr std::size_t kRows = 100;

struct Forged {
  FrameHeader header;
  std::vector<std::uint32_t> indices;
  std::uint32_t flip = 0;  // of the payload's checksum
};

/// Rank 1 of two sends a forged push instead of its own; what rank 0 says to it.
std::string complaint_about(const std::function<void(Forged&)>& spoil) {
  std::string complaint;
  try {
    run_in_process(2, [&](Communicator& communicator) {
      if (communicator.rank() == 1) {
        Forged forged;
        forged.header.type = FrameType::row_list;
        forged.header.bucket = 4;
        forged.header.step = 9;
        forged.header.source = 1;
        forged.header.width = 1;
        forged.header.first = 5;
        forged.indices = {3, 7};
        spoil(forged);
        if (forged.header.count == 0) forged.header.count = forged.indices.size();
        if (forged.header.payload_bytes == 0) {
          forged.header.payload_bytes = row_list_bytes(forged.header.count, forged.header.width);
        }
        std::vector<float> payload(2 * forged.indices.size(), 1.0f);
        std::copy(forged.indices.begin(), forged.indices.end(),
                  reinterpret_cast<std::uint32_t*>(payload.data()));
        std::vector<std::byte> header(FrameHeader::kBytes);
        forged.header.payload_checksum = crc32c(as_bytes(Span<float>(payload))) ^ forged.flip;
        write_frame_header(header, forged.header);
        Pending first = communicator.send(0, kPushTag, header);
        Pending second = communicator.send(0, kPushTag, as_bytes(Span<float>(payload)));
        std::vector<std::byte> from_peer(FrameHeader::kBytes);
        communicator.receive(0, kPushTag, from_peer).wait();
        first.wait();
        second.wait();
        return;
      }
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = 9};
      const RowSparse none{.row_indices = {}, .values = {}, .rows = kRows, .width = 1};
      try {
        push_pull(4, none, true, {.slots = IndexPermutation::none(kRows)}, step);
      } catch (const CorruptFrame& error) {
        complaint = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {  // the other rank's message was not taken: its end of the story
  }
  return complaint;
}

/// Works on host memory and says that it does not.
class CallsItselfADevice final : public Executor {
 public:
  Memory memory() const override { return Memory::cuda; }
  int concurrency() const override { return 1; }
  void parallel_for(std::size_t count, std::size_t,
                    FunctionRef<void(std::size_t begin, std::size_t end)> body) override {
    body(0, count);
  }
  void wait() override {}
};

/// What a push/pull of two ranks is refused with, whose thresholds are these, by the rank that refuses.
std::string refusal(const std::vector<std::uint32_t>& of_rank_0, const std::vector<std::uint32_t>& of_rank_1,
                    bool rows_as_slots = true, bool on_device = false) {
  std::vector<std::string> refusals(2);
  try {
    run_in_process(2, [&](Communicator& communicator) {
      CallsItselfADevice device;
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      Step step{.communicator = communicator,
                .executor = on_device ? static_cast<Executor&>(device) : *executor,
                .workspace = workspace};
      const std::vector<std::uint32_t> indices = {3, 7, 60};
      const std::vector<float> values = {1, 2, 3};
      const RowSparse own{.row_indices = indices, .values = values, .rows = kRows, .width = 1};
      PushPullScheme scheme{.slots = IndexPermutation::none(kRows),
                            .thresholds = communicator.rank() == 0 ? of_rank_0 : of_rank_1};
      if (!rows_as_slots) {
        scheme.slots = IndexPermutation::make(kRows, random_stream(1, 2, 3, RandomPurpose::ownership));
      }
      try {
        push_pull(4, own, true, scheme, step);
      } catch (const CommError&) {  // the other rank refused and is gone
        throw;
      } catch (const std::exception& error) {
        refusals[static_cast<std::size_t>(communicator.rank())] = error.what();
        throw;
      }
    });
    return "none";
  } catch (const std::exception&) {
    return refusals[0].empty() ? refusals[1] : refusals[0];
  }
}

TEST(PushPull, ThresholdsThatAreNoneAreRefused) {
  EXPECT_EQ(refusal({50}, {50}), "none");
  EXPECT_EQ(refusal({0}, {0}), "none");
  EXPECT_EQ(refusal({100}, {100}), "none");
  const auto refused_with = [](const std::string& text, const std::string& wanted) {
    EXPECT_NE(text.find(wanted), std::string::npos) << "wanted '" << wanted << "', got '" << text << "'";
  };
  refused_with(refusal({101}, {101}), "thresholds of 2 owners of 100 rows: expected 1 of them");
  refused_with(refusal({20, 50}, {20, 50}), "expected 1 of them");
  refused_with(refusal({50}, {50}, false), "rows as slots");
  refused_with(refusal({50}, {50}, true, true), "split=thresholds works on the CPU");
}

TEST(PushPull, ThresholdsOfAnotherRankThatDifferAreRefused) {
  const auto refused = [](std::uint32_t one, std::uint32_t other) {
    const std::string text = refusal({one}, {other});
    const auto says = [&](const std::string& wanted) { return text.find(wanted) != std::string::npos; };
    const std::string a = std::to_string(one), b = std::to_string(other);
    EXPECT_TRUE(says("does not own: do the ranks use one seed, and owners of one history?") ||
                says("first slot is " + a + ", expected " + b) ||
                says("first slot is " + b + ", expected " + a) || says("slots is ") || says("at most "))
        << text;
  };
  refused(7, 8);  // row 7 is rank 1's for one of them and rank 0's for the other
  refused(8, 7);
  refused(40, 41);  // no row lies in between
  refused(0, 100);
}

TEST(PushPull, ForgedFramesAreRefused) {
  const std::vector<std::pair<std::function<void(Forged&)>, std::string>> cases = {
      {[](Forged& f) { f.header.bucket = 5; }, "bucket is 5, expected 4"},
      {[](Forged& f) { f.header.step = 8; }, "step is 8, expected 9"},
      {[](Forged& f) { f.header.source = 0; }, "source rank is 0, expected 1"},
      {[](Forged& f) { f.header.workers = 2; }, "workers is 2, expected 1"},
      {[](Forged& f) { f.header.width = 2; }, "row width is 2, expected 1"},
      {[](Forged& f) { f.header.count = 51; }, "count is 51, at most 50"},
      {[](Forged& f) { f.header.first = 1; }, "1 rows in all, expected at least the 2 listed"},
      {[](Forged& f) { f.header.first = 101; },
       "101 rows in all, expected at least the 2 listed and at most the"},
      {[](Forged& f) { f.flip = 1; }, "bytes changed on the way"},
      {[](Forged& f) { f.flip = 1; }, "(rank 1, bucket 4, step 9)"},
      {[](Forged& f) { f.header.type = FrameType::sign_bits; }, "row width is 1, expected 0"},
      {[](Forged& f) {
         f.indices = {7, 3};
       },
       "row index 3 at position 1"},
      {[](Forged& f) {
         f.indices = {7, 7};
       },
       "row index 7 at position 1"},
      {[](Forged& f) {
         f.indices = {7, 100};
       },
       "row index 100 at position 1"},
      {[](Forged& f) {
         f.indices = {7, 50};
       },
       "does not own"},
  };
  for (const auto& [spoil, wanted] : cases) {
    const std::string complaint = complaint_about(spoil);
    EXPECT_NE(complaint.find(wanted), std::string::npos)
        << "wanted '" << wanted << "', got '" << complaint << "'";
  }
}

/// Rank 1 of two pushes nothing, properly, and then forges its pull: a bitmap of its 50 slots with one row
/// set.
std::string complaint_about_pull(const std::function<void(FrameHeader&, std::vector<std::byte>&)>& spoil,
                                 PullFormat format = PullFormat::smaller) {
  std::string complaint;
  try {
    run_in_process(2, [&](Communicator& communicator) {
      if (communicator.rank() == 1) {
        std::vector<std::byte> from_peer(FrameHeader::kBytes);
        auto swap_headers = [&](Communicator::Tag tag, const FrameHeader& header,
                                Span<const std::byte> payload) {
          std::vector<std::byte> bytes(FrameHeader::kBytes);
          FrameHeader sealed = header;
          sealed.payload_checksum = crc32c(payload);
          write_frame_header(bytes, sealed);
          Pending first = communicator.send(0, tag, bytes);
          Pending second;
          if (!payload.empty()) second = communicator.send(0, tag, payload);
          communicator.receive(0, tag, from_peer).wait();
          const FrameHeader theirs = read_frame_header(from_peer, PayloadPlace::next_message);
          std::vector<std::byte> rest(theirs.payload_bytes);
          if (!rest.empty()) communicator.receive(0, tag, rest).wait();
          first.wait();
          second.wait();
        };
        FrameHeader push;
        push.type = FrameType::row_list;
        push.bucket = 4;
        push.step = 9;
        push.source = 1;
        push.width = 1;
        swap_headers(kPushTag, push, {});
        FrameHeader pull = push;
        pull.type = FrameType::row_bitmap;
        pull.workers = 2;
        pull.first = 50;
        pull.count = 50;
        std::vector<std::byte> payload(row_bitmap_bytes(50, 1, 1), std::byte{0});
        payload[4] = std::byte{1};
        pull.payload_bytes = payload.size();
        spoil(pull, payload);
        swap_headers(kPullTag, pull, payload);
        return;
      }
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = 9};
      const RowSparse none{.row_indices = {}, .values = {}, .rows = kRows, .width = 1};
      try {
        push_pull(4, none, true, {.slots = IndexPermutation::none(kRows), .pull = format}, step);
        complaint = "none";
      } catch (const CorruptFrame& error) {
        complaint = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return complaint;
}

TEST(PushPull, ForgedPullsAreRefused) {
  using Spoil = std::function<void(FrameHeader&, std::vector<std::byte>&)>;
  EXPECT_EQ(complaint_about_pull([](FrameHeader&, std::vector<std::byte>&) {}), "none");
  const std::vector<std::pair<Spoil, std::string>> cases = {
      {[](FrameHeader& h, std::vector<std::byte>&) { h.workers = 1; }, "workers is 1, expected 2"},
      {[](FrameHeader& h, std::vector<std::byte>&) { h.first = 49; }, "first slot is 49, expected 50"},
      {[](FrameHeader& h, std::vector<std::byte>&) { h.count = 49; }, "slots is 49, expected 50"},
      {[](FrameHeader& h, std::vector<std::byte>&) { h.count = 51; }, "count is 51, at most 50"},
      {[](FrameHeader&, std::vector<std::byte>& p) { p[5] = std::byte{1}; }, "2 bits are set for 1 rows"},
      {[](FrameHeader&, std::vector<std::byte>& p) {
         p[4] = std::byte{0};
         p[10] = std::byte{0x80};
       },
       "behind the last of 50 slots"},
  };
  for (const auto& [spoil, wanted] : cases) {
    const std::string complaint = complaint_about_pull(spoil);
    EXPECT_NE(complaint.find(wanted), std::string::npos)
        << "wanted '" << wanted << "', got '" << complaint << "'";
  }
}

TEST(PushPull, PullsOfAnotherFormatThanAgreedAreRefused) {
  const auto as_it_is = [](FrameHeader&, std::vector<std::byte>&) {};
  const auto as_list = [](FrameHeader& header, std::vector<std::byte>& payload) {
    header.type = FrameType::row_list;
    header.count = 0;
    payload.clear();
    header.payload_bytes = 0;
  };
  EXPECT_EQ(complaint_about_pull(as_it_is, PullFormat::bitmap), "none");
  EXPECT_EQ(complaint_about_pull(as_list, PullFormat::list), "none");
  EXPECT_EQ(complaint_about_pull(as_list, PullFormat::smaller), "none");
  const std::string bitmap = std::to_string(static_cast<int>(FrameType::row_bitmap));
  const std::string list = std::to_string(static_cast<int>(FrameType::row_list));
  EXPECT_NE(complaint_about_pull(as_it_is, PullFormat::list).find("type is " + bitmap + ", expected " + list),
            std::string::npos);
  EXPECT_NE(
      complaint_about_pull(as_list, PullFormat::bitmap).find("type is " + list + ", expected " + bitmap),
      std::string::npos);
}

}  // namespace
}  // namespace thinwire::push_pull_test

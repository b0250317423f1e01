// SparCML's switch from lists to whole tables.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "exchange/push_pull.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "wire/crc32c.h"
#include "wire/payloads.h"

namespace thinwire::recursive_doubling_test {
namespace {

struct Outcome {
  std::vector<float> mean;  // of all elements
  std::size_t rows = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t formula_bytes = 0;
};

struct Table {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

/// Of `rows` rows of two values about this share, others on every rank.
Table table_of(int rank, std::size_t rows, double share) {
  std::mt19937 random(static_cast<unsigned>(7 + rank));
  std::uniform_real_distribution<double> unit(0, 1);
  Table table;
  for (std::uint32_t row = 0; row < rows; ++row) {
    if (share < 1 && unit(random) >= share) continue;
    table.indices.push_back(row);
    for (int k = 0; k < 2; ++k) table.values.push_back(static_cast<float>(unit(random)) - 0.5f);
  }
  return table;
}

std::vector<Outcome> means_of(int world, std::size_t rows, double share, bool dense_switch) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world));
  run_in_process(world, [&](Communicator& communicator) {
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = 3};
    const Table own = table_of(communicator.rank(), rows, share);
    const RowMean mean = recursive_doubling(2, {own.indices, own.values, rows, 2}, true, step, dense_switch);
    Outcome& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    outcome.mean.assign(2 * rows, 0.0f);
    outcome.rows = mean.rows.size();
    for (std::size_t i = 0; i < mean.rows.size(); ++i) {
      for (std::size_t k = 0; k < 2; ++k) {
        outcome.mean[2 * mean.rows.row_indices[i] + k] = mean.rows.values[2 * i + k];
      }
    }
    outcome.formula_bytes = step.report.formula_bytes;
    outcome.sent_bytes = communicator.traffic().sent_bytes - step.report.frame_header_bytes;
    communicator.barrier();
  });
  return outcomes;
}

TEST(RecursiveDoubling, ATableGivesTheMeanOfLists) {
  constexpr std::size_t kRows = 300;
  for (const int world : {2, 3, 4, 5, 7, 8}) {
    for (const double share : {0.0, 0.05, 0.3, 0.6, 0.9, 1.0}) {
      SCOPED_TRACE(std::to_string(world) + " ranks, " + std::to_string(share));
      const auto lists = means_of(world, kRows, share, false);
      const auto tables = means_of(world, kRows, share, true);
      for (std::size_t rank = 0; rank < lists.size(); ++rank) {
        EXPECT_EQ(tables[rank].mean, lists[rank].mean);
        EXPECT_EQ(tables[rank].sent_bytes, tables[rank].formula_bytes);
        EXPECT_LE(tables[rank].sent_bytes, lists[rank].sent_bytes);
        EXPECT_EQ(tables[rank].rows, tables[0].rows);
      }
    }
  }
}

TEST(RecursiveDoubling, SwitchesWhereAListWouldBeLonger) {
  // Lists of 12 bytes a row, tables of 8: from two thirds of the rows on.
  constexpr std::size_t kRows = 300;
  EXPECT_EQ(means_of(2, kRows, 0.6, true)[0].sent_bytes, means_of(2, kRows, 0.6, false)[0].sent_bytes);
  EXPECT_EQ(means_of(2, kRows, 0.9, true)[0].sent_bytes, 8 * kRows);
  EXPECT_EQ(means_of(2, kRows, 0.6, true)[0].rows, kRows) << "the union is longer than the table";
  EXPECT_EQ(means_of(8, kRows, 1.0, true)[0].sent_bytes, 3 * 8 * kRows);
  EXPECT_EQ(recursive_doubling_bytes(kRows, kRows, 8, 0, 2, kRows), 3 * 8 * kRows);
  EXPECT_EQ(recursive_doubling_bytes(kRows, kRows, 8, 0, 2), 3 * 12 * kRows);
  // A rank that is folded into another one sends what it has once.
  EXPECT_EQ(means_of(5, kRows, 1.0, true)[4].sent_bytes, 8 * kRows);
  EXPECT_EQ(recursive_doubling_bytes(kRows, kRows, 5, 4, 2, kRows), 8 * kRows);
}

/// What rank 0 of two says to a table that is none.
std::string complaint_about(std::uint64_t count, bool dense_switch, std::uint32_t flip) {
  std::string complaint;
  const auto forge = [&](Communicator& communicator) {
    const std::vector<float> payload(count, 1.0f);
    FrameHeader header{.type = FrameType::floats, .bucket = 2, .step = 3, .source = 1, .count = count};
    header.payload_bytes = 4 * count;
    header.payload_checksum = crc32c(as_bytes(Span<const float>(payload))) ^ flip;
    std::vector<std::byte> bytes(FrameHeader::kBytes);
    write_frame_header(bytes, header);
    Pending first = communicator.send(0, kDoublingTag, bytes);
    Pending second = communicator.send(0, kDoublingTag, as_bytes(Span<const float>(payload)));
    std::vector<std::byte> from_peer(FrameHeader::kBytes);
    communicator.receive(0, kDoublingTag, from_peer).wait();
    first.wait();
    second.wait();
  };
  try {
    run_in_process(2, [&](Communicator& communicator) {
      if (communicator.rank() == 1) return forge(communicator);
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = 3};
      try {
        recursive_doubling(2, {{}, {}, 50, 2}, true, step, dense_switch);
      } catch (const CorruptFrame& error) {
        complaint = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {  // the other rank's message was not taken: its end of the story
  }
  return complaint;
}

TEST(RecursiveDoubling, ForgedTablesAreRefused) {
  EXPECT_EQ(complaint_about(100, true, 0), "");
  EXPECT_NE(complaint_about(101, true, 0).find("count is 101, expected 100"), std::string::npos);
  EXPECT_NE(complaint_about(99, true, 0).find("count is 99, expected 100"), std::string::npos);
  EXPECT_NE(complaint_about(100, true, 1).find("bytes changed on the way"), std::string::npos);
  EXPECT_NE(complaint_about(100, false, 0).find("type is 9, expected 6"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::recursive_doubling_test

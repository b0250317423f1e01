// Row-sparse gradients through a session: what goes in, what is refused, what comes out.

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <map>
#include <random>
#include <sstream>

#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::rows_test {
namespace {

using Table = std::map<std::uint32_t, std::vector<float>>;

Table table_of(const RowSparse& rows) {
  Table table;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const auto row = rows.row(k);
    EXPECT_TRUE(table.emplace(rows.row_indices[k], std::vector<float>(row.begin(), row.end())).second);
    if (k > 0) {
      EXPECT_LT(rows.row_indices[k - 1], rows.row_indices[k]);
    }
  }
  return table;
}

TEST(SessionRows, RepeatedRowsAreAddedAndTheMeanIsListedInOrder) {
  for (const char* spec : {"dense", "rows=dense,dense=marsit"}) {
    run_in_process(2, [&](Communicator& communicator) {
      Session session(spec, communicator);
      const BucketId bucket = session.add_rows("table", 10, 2);
      const bool first = communicator.rank() == 0;
      const std::vector<std::uint32_t> indices =
          first ? std::vector<std::uint32_t>{7, 2, 7} : std::vector<std::uint32_t>{2};
      const std::vector<float> values =
          first ? std::vector<float>{1, 2, 3, 4, 5, 6} : std::vector<float>{10, 20};
      const RowSparse mean = session.synchronize_rows(
          bucket, {.row_indices = indices, .values = values, .rows = 10, .width = 2});
      EXPECT_EQ(table_of(mean), (Table{{2, {6.5f, 12}}, {7, {3, 4}}}));
      EXPECT_DOUBLE_EQ(session.report(bucket).density_in, first ? 0.2 : 0.1);
      EXPECT_DOUBLE_EQ(session.report(bucket).density_out, 0.2);
    });
  }
}

TEST(SessionRows, ATableInBlocksHasTheSameMeanAndSendsWholeBlocks) {
  // A block is 4 rows, 3.5 rows, or more than the table of 10.
  for (const char* block : {"8", "7", "256"}) {
    SCOPED_TRACE(block);
    run_in_process(3, [&](Communicator& communicator) {
      const auto rank = static_cast<std::uint32_t>(communicator.rank());
      // Row 9 is in the last block, which the table does not fill; row 0 is in one that no other rank has.
      const std::vector<std::uint32_t> indices =
          rank == 0 ? std::vector<std::uint32_t>{0, 9} : std::vector<std::uint32_t>{9};
      const std::vector<float> values =
          rank == 0 ? std::vector<float>{3, -6, 1, 0} : std::vector<float>{1, 3};
      const auto outcome = [&](const std::string& spec) {
        Session session(spec, communicator);
        const BucketId table = session.add_rows("table", 10, 2);
        const RowSparse mean = session.synchronize_rows(
            table, {.row_indices = indices, .values = values, .rows = 10, .width = 2});
        return std::pair(table_of(mean), session.report(table).formula_bytes);
      };
      const auto [rows, bytes_of_rows] = outcome("omnireduce");
      const auto [blocks, bytes_of_blocks] = outcome(std::string("omnireduce:rows=block:block=") + block);
      EXPECT_EQ(rows, (Table{{0, {1, -2}}, {9, {1, 2}}}));
      EXPECT_EQ(blocks, rows);
      EXPECT_GE(bytes_of_blocks, bytes_of_rows);
      if (rank == 0 && block == std::string("256")) {
        EXPECT_GT(bytes_of_blocks, 4u * 256);
      }
    });
  }
}

TEST(SessionRows, AMixedModelGoesThroughOneCall) {
  run_in_process(3, [&](Communicator& communicator) {
    Session session("rows=dense,dense=half", communicator);
    const BucketId weights = session.add_bucket({{"weights", 4}});
    const BucketId table = session.add_rows("table", 5, 1);
    std::vector<float> dense = {1, 2, 3, 4};
    const std::vector<std::uint32_t> indices = {static_cast<std::uint32_t>(communicator.rank())};
    const std::vector<float> values = {3};
    std::array<BucketGradient, 2> gradients = {
        BucketGradient{.bucket = table,
                       .rows = {.row_indices = indices, .values = values, .rows = 5, .width = 1}},
        BucketGradient{.bucket = weights, .dense = dense}};
    session.synchronize(gradients);
    EXPECT_EQ(table_of(gradients[0].mean_rows), (Table{{0, {1}}, {1, {1}}, {2, {1}}}));
    EXPECT_EQ(dense, (std::vector<float>{1, 2, 3, 4}));
    EXPECT_EQ(session.spec(), "rows=dense:sum=type:feedback=off,dense=half:format=fp16:feedback=off");
  });
}

TEST(SessionRows, BadInputIsRefusedWithTheValue) {
  run_in_process(1, [&](Communicator& communicator) {
    Session session("dense", communicator);
    const BucketId table = session.add_rows("table", 5, 2);
    const BucketId weights = session.add_bucket({{"weights", 4}});
    auto complaint = [&](std::vector<std::uint32_t> indices, std::vector<float> values, std::size_t rows,
                         std::size_t width) -> std::string {
      try {
        session.synchronize_rows(table,
                                 {.row_indices = indices, .values = values, .rows = rows, .width = width});
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_NE(complaint({1, 5}, {1, 2, 3, 4}, 5, 2).find("row index 5 at position 1"), std::string::npos);
    EXPECT_NE(complaint({1}, {1, 2, 3}, 5, 2).find("need 2 values, got 3"), std::string::npos);
    EXPECT_NE(complaint({1}, {1, 2, 3}, 5, 3).find("5 rows of width 2"), std::string::npos);
    EXPECT_EQ(complaint({}, {}, 5, 2), "");
    std::vector<float> dense(10);
    EXPECT_THROW(session.synchronize(table, dense), std::invalid_argument);
    EXPECT_THROW(session.synchronize_rows(weights, RowSparse{}), std::invalid_argument);
    EXPECT_THROW(Session("rows=dense", communicator), std::invalid_argument);
    EXPECT_THROW(Session("dense,half", communicator), std::invalid_argument);
    Session other("dense", communicator);
    EXPECT_THROW(other.add_rows("table", 5, 0), std::invalid_argument);
    EXPECT_THROW(other.add_rows("table", std::size_t{1} << 32, 1), std::invalid_argument);
  });
}

TEST(SessionRows, ABadIndexOnOneRankStopsTheOthersWithAnError) {
  for (const char* spec : {"zen", "agsparse", "s2_reducer"}) {
    std::string of_the_other;
    EXPECT_THROW(run_in_process(2,
                                [&](Communicator& communicator) {
                                  Session session(spec, communicator);
                                  const BucketId table = session.add_rows("table", 5, 1);
                                  session.start();
                                  const bool bad = communicator.rank() == 1;
                                  const std::vector<std::uint32_t> indices = {bad ? 5u : 0u};
                                  const std::vector<float> values = {1};
                                  try {
                                    session.synchronize_rows(
                                        table,
                                        {.row_indices = indices, .values = values, .rows = 5, .width = 1});
                                  } catch (const CommError& error) {
                                    of_the_other = error.what();
                                    throw;
                                  }
                                }),
                 std::exception);
    EXPECT_NE(of_the_other.find("rank 1 failed"), std::string::npos) << spec << ": " << of_the_other;
  }
}

/// A pair whose sides keep state of the same kind: each saves and loads its own buckets only.
TEST(SessionRows, APairOfSystemsResumesAndSavesAgain) {
  const std::string spec = "rows=zen:profile_steps=8,dense=dgc:ratio=0.1+zen:profile_steps=8";
  auto step_of = [](Session& session, int step) {
    std::vector<float> dense(100);
    for (std::size_t i = 0; i < dense.size(); ++i) {
      dense[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(step)) % 11) - 5;
    }
    const std::vector<std::uint32_t> indices = {static_cast<std::uint32_t>(step % 5)};
    const std::vector<float> values = {1, 2};
    std::array<BucketGradient, 2> gradients = {
        BucketGradient{.bucket = 0,
                       .rows = {.row_indices = indices, .values = values, .rows = 5, .width = 2}},
        BucketGradient{.bucket = 1, .dense = dense}};
    session.synchronize(gradients);
    session.next_step();
    return dense;
  };
  std::vector<std::string> saved(2);
  auto save = [&](const Session& session, int rank) {
    StateWriter writer;
    session.save(writer);
    std::ostringstream stream;
    writer.write(stream);
    saved[static_cast<std::size_t>(rank)] = stream.str();
  };
  std::vector<std::vector<float>> straight(2);
  run_in_process(2, [&](Communicator& communicator) {
    Session session(spec, communicator);
    session.add_rows("table", 5, 2);
    session.add_bucket({{"weights", 100}});
    for (int step = 0; step < 6; ++step) {
      if (step == 3) save(session, communicator.rank());
      straight[static_cast<std::size_t>(communicator.rank())] = step_of(session, step);
    }
  });
  for (int resumes = 0; resumes < 2; ++resumes) {
    run_in_process(2, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      Session session(spec, communicator);
      session.add_rows("table", 5, 2);
      session.add_bucket({{"weights", 100}});
      std::istringstream stream(saved[rank]);
      session.load(StateReader(stream));
      std::vector<float> last;
      for (int step = 3 + resumes; step < 6; ++step) {
        last = step_of(session, step);
        if (step == 3) save(session, communicator.rank());
      }
      EXPECT_EQ(last, straight[rank]);
    });
  }
}

TEST(SessionRows, NanInOneRankIsNanInAll) {
  for (const char* spec :
       {"dense", "zen", "zen:scheme=centralization", "agsparse", "omnireduce",
        "omnireduce:block=4:rows=block", "s2_reducer", "s2_reducer:shrink=on:feedback=on"}) {
    run_in_process(2, [&](Communicator& communicator) {
      Session session(spec, communicator);
      const BucketId table = session.add_rows("table", 5, 2);
      const std::vector<std::uint32_t> indices = {3};
      const float bad = communicator.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1;
      const std::vector<float> values = {1, bad};
      const RowSparse mean =
          session.synchronize_rows(table, {.row_indices = indices, .values = values, .rows = 5, .width = 2});
      EXPECT_FALSE(session.report(table).finite);
      ASSERT_EQ(mean.size(), 1u);
      EXPECT_TRUE(std::isnan(mean.values[0]));
    });
  }
}

}  // namespace
}  // namespace thinwire::rows_test

#include "exchange/collectives.h"

#include <gtest/gtest.h>

#include <functional>

#include "thinwire/errors.h"
#include "thinwire/in_process.h"

namespace thinwire::gather_bytes_test {
namespace {

/// What a rank of three is told when something is wrong.
std::vector<std::string> complaints(const std::function<void(Communicator&)>& run) {
  std::vector<std::string> texts(3);
  run_in_process(3, [&](Communicator& communicator) {
    try {
      run(communicator);
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(communicator.rank())] = error.what();
    }
  });
  return texts;
}

TEST(GatherBytes, GivesEveryRankAllOfThem) {
  run_in_process(4, [](Communicator& communicator) {
    const std::string mine(static_cast<std::size_t>(communicator.rank()) * 1000, 'a');
    const auto all = gather_bytes(communicator, {.step = 5, .kind = "texts"}, mine, 3000);
    ASSERT_EQ(all.size(), 4u);
    for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(all[rank], std::string(1000 * rank, 'a'));
  });
}

TEST(GatherBytes, TellsAllRanksWhoCallsSomethingElse) {
  const auto texts = complaints([](Communicator& communicator) {
    const std::uint64_t step = communicator.rank() == 2 ? 6 : 5;
    gather_bytes(communicator, {.step = step, .kind = "texts"}, "mine", 10);
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("rank 2 exchanges texts in step 6, as all ranks do together"), std::string::npos)
        << text;
  }
}

TEST(GatherBytes, RefusesALengthBeforeItTakesMemory) {
  static constexpr std::uint64_t kClaimed = std::uint64_t{1} << 60;
  const auto texts = complaints([](Communicator& communicator) {
    if (communicator.rank() != 1) {
      gather_bytes(communicator, {.step = 5, .kind = "texts"}, "mine", 10);
      return;
    }
    Exchange exchange(communicator, {.step = 5, .kind = "texts"});
    std::vector<std::uint64_t> lengths(3);
    communicator.all_gather(as_bytes(Span<const std::uint64_t>(&kClaimed, 1)),
                            as_writable_bytes(Span<std::uint64_t>(lengths)));
    exchange.finish();
  });
  for (const std::size_t rank : {0, 2}) {
    EXPECT_EQ(texts[rank],
              "rank 1 announces 1152921504606846976 bytes (texts), and 10 are the most that there can be");
  }
}

}  // namespace
}  // namespace thinwire::gather_bytes_test

#include "apps/train/data/text.h"

#include <gtest/gtest.h>

#include <set>

#include "apps/test_folder.h"
#include "apps/train/data/batches.h"
#include "apps/train/data/test_dataset.h"
#include "apps/train/data/text_source.h"

namespace thinwire::train {
namespace {

using Words = std::vector<std::string>;

TEST(Tokenize, WordsAndMarks) {
  EXPECT_EQ(tokenize("In the Beginning, God created (the) heaven-and earth."),
            (Words{"in", "the", "beginning", ",", "god", "created", "the", "heaven", "and", "earth", "."}));
  EXPECT_EQ(tokenize("God's 'word' unto Moses' son: 40 days?!"),
            (Words{"god's", "word", "unto", "moses", "son", ":", "40", "days", "?", "!"}));
  EXPECT_EQ(tokenize("Ölkäse\xE2\x80\x94"), (Words{"Ölkäse\xE2\x80\x94"}));
  EXPECT_EQ(tokenize(" \n\t'\""), Words{});
  EXPECT_EQ(tokenize(""), Words{});
}

TEST(Vocabulary, RanksByFrequencyThenAlphabetically) {
  const Words words = tokenize("b b b c c a a z y x");
  const Vocabulary vocabulary(words, 5);
  EXPECT_EQ(vocabulary.size(), 5u);
  EXPECT_EQ(vocabulary.number("b"), 1u);
  EXPECT_EQ(vocabulary.number("a"), 2u);
  EXPECT_EQ(vocabulary.number("c"), 3u);
  EXPECT_EQ(vocabulary.number("x"), 4u);
  EXPECT_EQ(vocabulary.number("y"), 0u);
  EXPECT_EQ(vocabulary.number("absent"), 0u);
  EXPECT_EQ(vocabulary.word(0), "<unk>");
  EXPECT_EQ(vocabulary.word(3), "c");
  EXPECT_EQ(Vocabulary(words, 100).size(), 7u);
}

TEST(TextDataset, EachWordsLabelIsTheNext) {
  const TextDataset dataset(chain_text(1000), 100);
  EXPECT_EQ(dataset.shape().input, Input::words);
  EXPECT_EQ(dataset.shape().classes, 17);
  EXPECT_EQ(dataset.training_examples(), (950u - 1) / 32);
  EXPECT_EQ(dataset.test_examples(), (50u - 1) / 32);
  const std::vector<std::uint32_t> indices = {3, 0};
  const Batch batch = dataset.training_batch(indices, 1, 0);
  ASSERT_EQ(batch.inputs.sizes(), (std::vector<std::int64_t>{2, 32}));
  ASSERT_EQ(batch.labels.sizes(), (std::vector<std::int64_t>{64}));
  const Words words = tokenize(chain_text(1000));
  for (std::int64_t i = 0; i < 32; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(batch.inputs[0][i].item<std::int64_t>(), dataset.vocabulary().number(words[96 + at]));
    EXPECT_EQ(batch.labels[i].item<std::int64_t>(), dataset.vocabulary().number(words[97 + at]));
    EXPECT_EQ(batch.inputs[1][i].item<std::int64_t>(), dataset.vocabulary().number(words[at]));
  }
  const Batch test = dataset.test_batch(0, 1);
  EXPECT_EQ(test.inputs[0][0].item<std::int64_t>(), dataset.vocabulary().number(words[950]));
  EXPECT_EQ(test.labels[31].item<std::int64_t>(), dataset.vocabulary().number(words[982]));
}

TEST(TextDataset, ExamplesAreAsLongAsAskedFor) {
  const TextDataset dataset(chain_text(1000), 100, 48);
  EXPECT_EQ(dataset.shape().length, 48);
  EXPECT_EQ(dataset.training_examples(), 949u / 48);
  const Batch batch = dataset.test_batch(0, 1);
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<std::int64_t>{1, 48}));
  EXPECT_TRUE(torch::equal(batch.inputs[0].narrow(0, 1, 47), batch.labels.narrow(0, 0, 47)));
}

TEST(TextDataset, RanksTogetherSeeEveryWordOfAnEpochOnce) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += fmt::format("u{} ", i);
  const TextDataset dataset(text, 10'000);
  const auto order = epoch_order(dataset.training_examples(), 1, 0);
  std::set<std::int64_t> seen;
  const std::uint64_t steps = steps_per_epoch(dataset.training_examples(), 3, 4);
  for (std::uint64_t step = 0; step < steps; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      const Batch batch = dataset.training_batch(rank_batch(order, step, rank, 3, 4), 1, 0);
      for (std::int64_t i = 0; i < batch.inputs.numel(); ++i) {
        EXPECT_TRUE(seen.insert(batch.inputs.view({-1})[i].item<std::int64_t>()).second);
      }
    }
  }
  EXPECT_EQ(seen.size(), steps * 3 * 4 * 32);
  EXPECT_EQ(steps, 118u / 12);
}

TEST(TextDataset, TestWordsAreNotCounted) {
  // The last twentieth has words of its own: they are unknown.
  const TextDataset dataset(chain_text(1900) + std::string("x y z ") + chain_text(97), 100);
  EXPECT_EQ(dataset.vocabulary().number("x"), 0u);
  EXPECT_EQ(dataset.test_batch(0, 1).inputs[0][0].item<std::int64_t>(), 0);
}

TEST(TextDataset, RefusesATextTooShort) {
  EXPECT_THROW(TextDataset(chain_text(65), 100), std::runtime_error);
  const TextDataset shortest(chain_text(66), 100);
  EXPECT_EQ(shortest.training_examples(), 1u);
  EXPECT_EQ(shortest.test_examples(), 1u);
  EXPECT_THROW(TextDataset("", 100), std::runtime_error);
}

TEST(TextSource, FindsWhatIsNoText) {
  EXPECT_EQ(first_untextual("plain\tand\r\nsimple"), 17u);
  EXPECT_EQ(first_untextual("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8E\xB5"), 9u);
  EXPECT_EQ(first_untextual(std::string("ab\0c", 4)), 2u);
  EXPECT_EQ(first_untextual("a\x7F\x1B"), 2u);
  EXPECT_EQ(first_untextual("caf\xE9"), 3u);           // Latin-1
  EXPECT_EQ(first_untextual("a\x80"), 1u);             // a tail without a head
  EXPECT_EQ(first_untextual("a\xE2\x82"), 1u);         // cut short
  EXPECT_EQ(first_untextual("\xC0\xAF"), 0u);          // overlong
  EXPECT_EQ(first_untextual("\xE0\x80\xAF"), 0u);      // overlong
  EXPECT_EQ(first_untextual("\xED\xA0\x80"), 0u);      // a surrogate
  EXPECT_EQ(first_untextual("\xF4\x90\x80\x80"), 0u);  // beyond Unicode
  EXPECT_EQ(first_untextual("\xF5\x80\x80\x80"), 0u);
}

std::string complaint_about_file(const std::string& path) {
  try {
    read_text_file(path);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(TextSource, NamesFileAndRemedy) {
  const apps::TestFolder folder;
  folder.write("good", "some text");
  folder.write("empty", "");
  folder.write("garbled", "some \xFF text");
  EXPECT_EQ(read_text_file(folder.file("good")), "some text");
  EXPECT_NE(complaint_about_file(folder.file("absent")).find("absent cannot be opened (No such file"),
            std::string::npos);
  EXPECT_NE(complaint_about_file(folder.file("empty")).find("is empty"), std::string::npos);
  EXPECT_NE(complaint_about_file(folder.file("garbled")).find("byte 5 is 0xff"), std::string::npos);
  EXPECT_NE(complaint_about_file(folder.path()).find("cannot be read"), std::string::npos)
      << complaint_about_file(folder.path());
}

TEST(TextSource, VersesLoseTheirReferences) {
  EXPECT_EQ(without_references("Ge1:1 In the beginning\n1Sa12:30 And so\n"), "In the beginning\nAnd so\n");
  for (const char* wrong :
       {"", "In the beginning\n", "Ge1 In\n", "Ge:1 In\n", "1:1 In\n", "Ge1:x In\n", "Ge1:1\n"}) {
    EXPECT_THROW(without_references(wrong), std::runtime_error) << wrong;
  }
}

}  // namespace
}  // namespace thinwire::train

#include "apps/train/data/adult.h"

#include <gtest/gtest.h>

#include <set>

#include "apps/test_folder.h"
#include "apps/train/data/test_dataset.h"

namespace thinwire::train {
namespace {

const std::string kLine =
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, "
    "40, "
    "United-States, <=50K";

/// What load_adult complains about when adult.data is `text`.
std::string complaint_about_adult(const std::string& text) {
  const apps::TestFolder folder;
  folder.write("adult.data", text);
  folder.write("adult.test", kLine);
  try {
    load_adult(folder.path());
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

std::string replaced(const std::string& what, const std::string& by) {
  std::string line = kLine;
  return line.replace(line.find(what), what.size(), by);
}

TEST(Adult, ReadsTheFieldsOfBothFiles) {
  const apps::TestFolder folder;
  folder.write("adult.data", kLine + "\r\n\n" + replaced("<=50K", ">50K") + "\n");
  folder.write("adult.test", "|1x3 Cross validator\n" + replaced("State-gov", "?") + ".\n");
  const AdultRecords records = load_adult(folder.path());
  ASSERT_EQ(records.train.size(), 2u);
  ASSERT_EQ(records.test.size(), 1u);
  const AdultRecord& first = records.train[0];
  EXPECT_EQ(first.categories,
            (std::array<std::string, 8>{"State-gov", "Bachelors", "Never-married", "Adm-clerical",
                                        "Not-in-family", "White", "Male", "United-States"}));
  EXPECT_EQ(first.numbers, (std::array<double, 6>{39, 77516, 13, 2174, 0, 40}));
  EXPECT_FALSE(first.above_50k);
  EXPECT_TRUE(records.train[1].above_50k);
  EXPECT_EQ(records.test[0].categories[0], "?");
}

TEST(Adult, NamesLineAndField) {
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(complaint_about_adult(text).find(part), std::string::npos)
        << "'" << part << "' is not in: " << complaint_about_adult(text);
  };
  expect("", "adult.data holds no records");
  expect(kLine + "\n39, State-gov\n", "adult.data line 2 has 2 fields, not 15");
  expect(replaced("39", "old"), "line 1 has the age 'old', which is no number");
  expect(replaced("2174", "inf"), "the capital-gain 'inf'");
  expect(replaced("2174", "1x"), "the capital-gain '1x'");
  expect(replaced(" White", ""), "has an empty race");
  expect(replaced("<=50K", "50K"), "ends with '50K'");
  expect(std::string("\0\1\2", 3), "line 1 has 1 fields");
  const apps::TestFolder empty;
  EXPECT_THROW(load_adult(empty.path()), std::runtime_error);
}

TEST(AdultDataset, GivesEveryFieldRowsOfItsOwn) {
  const AdultRecords records{adult_records(300, 1), adult_records(40, 2)};
  const AdultDataset dataset(records);
  EXPECT_EQ(dataset.training_examples(), 300u);
  EXPECT_EQ(dataset.test_examples(), 40u);
  const ModelShape shape = dataset.shape();
  EXPECT_EQ(shape.fields, 17);
  std::vector<std::uint32_t> all(300);
  for (std::uint32_t i = 0; i < 300; ++i) all[i] = i;
  const torch::Tensor rows = dataset.training_batch(all, 1, 0).inputs;
  ASSERT_EQ(rows.sizes(), (std::vector<std::int64_t>{300, 17}));
  EXPECT_LT(rows.max().item<std::int64_t>(), shape.table_rows);
  for (std::int64_t field = 1; field < 17; ++field) {
    EXPECT_LT(rows.select(1, field - 1).max().item<std::int64_t>(),
              rows.select(1, field).min().item<std::int64_t>());
  }
  // Equal categories have equal rows, and no others.
  for (std::int64_t i = 0; i < 300; ++i) {
    const auto& here = records.train[static_cast<std::size_t>(i)];
    EXPECT_EQ(rows[i][3].item<std::int64_t>() == rows[0][3].item<std::int64_t>(),
              here.categories[3] == records.train[0].categories[3]);
    // Larger numbers have no lower buckets.
    EXPECT_LE(here.numbers[0] <= records.train[0].numbers[0],
              rows[i][8].item<std::int64_t>() <= rows[0][8].item<std::int64_t>());
  }
}

TEST(AdultDataset, WhatTrainingNeverSawIsUnknown) {
  AdultRecords records{adult_records(50, 1), adult_records(2, 2)};
  records.test[0].categories[0] = "never seen";
  records.test[1].categories[0] = "nor this";
  records.test[0].numbers[0] = 1e9;
  const AdultDataset dataset(records);
  const torch::Tensor rows = dataset.test_batch(0, 2).inputs;
  EXPECT_EQ(rows[0][0].item<std::int64_t>(), 0);
  EXPECT_EQ(rows[1][0].item<std::int64_t>(), 0);
  EXPECT_LT(rows[0][8].item<std::int64_t>(), dataset.test_batch(0, 2).inputs[0][9].item<std::int64_t>());
  EXPECT_THROW(AdultDataset({adult_records(5, 1), {}}), std::runtime_error);
}

TEST(AdultDataset, LimitKeepsTheFirst) {
  AdultDataset dataset({adult_records(50, 1), adult_records(2, 2)});
  dataset.limit_training(0);
  EXPECT_EQ(dataset.training_examples(), 50u);
  dataset.limit_training(7);
  EXPECT_EQ(dataset.training_examples(), 7u);
}

}  // namespace
}  // namespace thinwire::train

#include "apps/gradients/gradient_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "apps/test_folder.h"

namespace thinwire::apps {
namespace {

RecordedStep step_of(std::uint64_t step) {
  return {.step = step,
          .tensors = {{.name = "embedding.weight",
                       .row_sparse = true,
                       .rows = 10,
                       .width = 2,
                       .indices = {7, 2, 7},
                       .values = {1, 2, 3, 4, 5, -0.0f}},
                      {.name = "fc.weight",
                       .row_sparse = false,
                       .rows = 3,
                       .width = 1,
                       .indices = {},
                       .values = {0.5f, -1, 1e-40f}}}};
}

class GradientFileTest : public testing::Test {
 protected:
  void write(int steps) const {
    GradientFileWriter writer(path_, 1, 4);
    for (int i = 0; i < steps; ++i) writer.append(step_of(static_cast<std::uint64_t>(3 + i)));
  }
  std::string bytes() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }

  TestFolder folder_;
  const std::string path_ = folder_.file("gradients");
};

/// What reading `bytes` complains about; empty if it does not.
std::string complaint(const std::string& bytes) {
  std::istringstream stream(bytes);
  try {
    read_gradients(stream, "FILE");
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("gradient file FILE: ", 0), 0u) << error.what();
    return error.what();
  }
  return "";
}

void expect_same(const RecordedStep& left, const RecordedStep& right) {
  EXPECT_EQ(left.step, right.step);
  ASSERT_EQ(left.tensors.size(), right.tensors.size());
  for (std::size_t i = 0; i < left.tensors.size(); ++i) {
    EXPECT_EQ(left.tensors[i].name, right.tensors[i].name);
    EXPECT_EQ(left.tensors[i].row_sparse, right.tensors[i].row_sparse);
    EXPECT_EQ(left.tensors[i].rows, right.tensors[i].rows);
    EXPECT_EQ(left.tensors[i].width, right.tensors[i].width);
    EXPECT_EQ(left.tensors[i].indices, right.tensors[i].indices);
    EXPECT_EQ(left.tensors[i].values, right.tensors[i].values);
  }
}

TEST_F(GradientFileTest, WhatIsWrittenIsRead) {
  for (const int steps : {0, 1, 3}) {
    write(steps);
    const GradientFile file = read_gradient_file(path_);
    EXPECT_EQ(file.rank, 1);
    EXPECT_EQ(file.world_size, 4);
    ASSERT_EQ(file.steps.size(), static_cast<std::size_t>(steps));
    for (std::size_t i = 0; i < file.steps.size(); ++i) expect_same(file.steps[i], step_of(3 + i));
  }
}

TEST_F(GradientFileTest, EmptyGradientsArePossible) {
  RecordedStep step = step_of(0);
  step.tensors[0].indices.clear();
  step.tensors[0].values.clear();
  step.tensors[1].rows = 0;
  step.tensors[1].values.clear();
  {
    GradientFileWriter writer(path_, 0, 1);
    writer.append(step);
  }
  expect_same(read_gradient_file(path_).steps.at(0), step);
}

TEST_F(GradientFileTest, EveryPrefixButWholeStepsIsCutShort) {
  write(2);
  const std::string whole = bytes();
  const std::size_t step_bytes = (whole.size() - 16) / 2;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const bool between_steps = size >= 16 && (size - 16) % step_bytes == 0;
    const std::string text = complaint(whole.substr(0, size));
    if (between_steps) {
      EXPECT_EQ(text, "") << size;
    } else {
      EXPECT_NE(text.find("it ends inside"), std::string::npos) << size << ": " << text;
    }
  }
}

TEST_F(GradientFileTest, EveryChangedByteOfAStepIsSeen) {
  write(2);
  const std::string whole = bytes();
  for (std::size_t at = 16; at < whole.size(); ++at) {
    for (const int flip : {1, 0x80}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      EXPECT_NE(complaint(damaged), "") << "byte " << at;
    }
  }
}

TEST_F(GradientFileTest, NamesTheFieldThatCannotBe) {
  write(1);
  const std::string whole = bytes();
  // Offsets as docs/wire_formats.md has them: the first tensor begins at 28, its name takes 16 bytes.
  const auto changed = [&](std::size_t at, std::uint64_t value, std::size_t size) {
    std::string damaged = whole;
    for (std::size_t i = 0; i < size; ++i) damaged[at + i] = static_cast<char>(value >> (8 * i));
    return complaint(damaged);
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  };
  expect(changed(0, 'X', 1), "does not begin with TWGRADS1");
  expect(changed(8, 4, 4), "rank 4 of 4");
  expect(changed(12, 0, 4), "rank 1 of 0");
  expect(changed(28, 0, 4), "name of 0 bytes");
  expect(changed(28, 0xFFFFFFFF, 4), "name of 4294967295 bytes");
  expect(changed(48, 2, 4), "tensor 0 of step 3 has the kind 2");
  expect(changed(52, std::uint64_t{1} << 32, 8), "has 4294967296 rows");
  expect(changed(60, 0, 8), "the width 0");
  expect(changed(60, 0xFFFFFFFF, 8), "it ends inside tensor 0");
  expect(changed(68, 0xFFFFFFFF, 8), "it ends inside tensor 0");
  expect(changed(68, std::uint64_t{1} << 40, 8), "the count 1099511627776");
  expect(changed(76, 10, 4), "the index 10 at position 0, outside its 10 rows");
  expect(changed(whole.size() - 1, 0xAB, 1), "the hash of step 3");
  EXPECT_THROW(read_gradient_file(path_ + ".absent"), std::runtime_error);
}

TEST_F(GradientFileTest, TheWriterRefusesWhatAReaderWould) {
  const auto refused = [&](const std::function<void(RecordedStep&)>& spoil) {
    GradientFileWriter writer(path_, 0, 2);
    writer.append(step_of(1));
    RecordedStep step = step_of(2);
    spoil(step);
    try {
      writer.append(step);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused([](RecordedStep&) {}), "");
  EXPECT_NE(refused([](RecordedStep& step) { step.step = 1; }).find("steps ascend"), std::string::npos);
  EXPECT_NE(refused([](RecordedStep& step) { step.tensors.pop_back(); }).find("step 2 has 1 tensors"),
            std::string::npos);
  EXPECT_NE(refused([](RecordedStep& step) { step.tensors[1].name = "other"; }).find("'other'"),
            std::string::npos);
  EXPECT_NE(refused([](RecordedStep& step) { step.tensors[0].indices[1] = 10; }).find("the index 10"),
            std::string::npos);
  EXPECT_NE(refused([](RecordedStep& step) { step.tensors[0].values.pop_back(); }).find("has 5 values"),
            std::string::npos);
  EXPECT_NE(refused([](RecordedStep& step) { step.tensors[1].values.pop_back(); }).find("has 2 values"),
            std::string::npos);
  EXPECT_THROW(GradientFileWriter(path_, 2, 2), std::invalid_argument);
  EXPECT_THROW(GradientFileWriter(path_ + ".absent/x", 0, 2), std::runtime_error);
}

}  // namespace
}  // namespace thinwire::apps

#include "apps/output.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace thinwire::apps {
namespace {

namespace fs = std::filesystem;

class Output : public ::testing::Test {
 protected:
  Output() { fs::create_directories(folder_); }
  ~Output() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::temp_directory_path() / ("thinwire-output-test-" + std::to_string(getpid()));
};

std::string message_of(void (*check)(const std::string&), const std::string& file) {
  try {
    check(file);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_F(Output, CheckingLeavesEverythingAsItWas) {
  const fs::path file = folder_ / "results.json";
  require_writable(file.string());
  EXPECT_FALSE(fs::exists(file));
  std::ofstream(file) << "earlier";
  require_writable(file.string());
  require_picture(file.string());
  EXPECT_EQ(fs::file_size(file), 7u);
  require_writable("");
  require_writable("-");
  require_writable("/dev/stdout");
}

TEST_F(Output, WhatCannotBeWrittenIsSaidWithTheRemedy) {
  EXPECT_THROW(require_writable(folder_.string()), std::invalid_argument);
  EXPECT_EQ(message_of(require_writable, folder_.string()), folder_.string() + " is a folder: name a file");
  EXPECT_EQ(message_of(require_picture, folder_.string()), folder_.string() + " is a folder: name a file");
  const std::string missing = (folder_ / "no" / "x.png").string();
  EXPECT_EQ(message_of(require_picture, missing),
            missing + " cannot be written: there is no folder " + (folder_ / "no").string());
  EXPECT_THROW(require_writable(missing), std::runtime_error);
}

TEST_F(Output, APictureDoesNotReplaceADevice) {
  EXPECT_THROW(require_picture("/dev/null"), std::invalid_argument);
}

TEST(ResultsText, HasOneRunToALine) {
  using Json = nlohmann::ordered_json;
  const Json runs = {{{"spec", "dense"}, {"steps", {1, 2}}}, {{"spec", "half"}, {"failure", nullptr}}};
  EXPECT_EQ(results_text(runs),
            "[\n{\"spec\":\"dense\",\"steps\":[1,2]},\n{\"spec\":\"half\",\"failure\":null}\n]");
  EXPECT_EQ(Json::parse(results_text(runs)), runs);
  EXPECT_EQ(Json::parse(results_text(Json::array())), Json::array());
}

}  // namespace
}  // namespace thinwire::apps

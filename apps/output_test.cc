#include "apps/output.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/test_folder.h"

namespace thinwire::apps {
namespace {

namespace fs = std::filesystem;

std::string message_of(void (*check)(const std::string&), const std::string& file) {
  try {
    check(file);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Output, CheckingLeavesEverythingAsItWas) {
  const TestFolder folder;
  const fs::path file = folder.file("results.json");
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

TEST(Output, WhatCannotBeWrittenIsSaidWithTheRemedy) {
  const TestFolder folder;
  EXPECT_THROW(require_writable(folder.path()), std::invalid_argument);
  EXPECT_EQ(message_of(require_writable, folder.path()), folder.path() + " is a folder: name a file");
  EXPECT_EQ(message_of(require_picture, folder.path()), folder.path() + " is a folder: name a file");
  const std::string missing = folder.file("no/x.png");
  EXPECT_EQ(message_of(require_picture, missing),
            missing + " cannot be written: there is no folder " + folder.file("no"));
  EXPECT_THROW(require_writable(missing), std::runtime_error);
}

TEST(Output, APictureDoesNotReplaceADevice) {
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

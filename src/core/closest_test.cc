#include "core/closest.h"

#include <gtest/gtest.h>

namespace thinwire::closest_test {
namespace {

const std::vector<std::string> kNames = {"casq", "power_sgd", "dense", "dgc", "top_k", "half"};

TEST(Closest, FindsWhatWasMeant) {
  EXPECT_EQ(closest_to("powersgd", kNames), "power_sgd") << "a letter left out";
  EXPECT_EQ(closest_to("casqq", kNames), "casq") << "one too many";
  EXPECT_EQ(closest_to("dence", kNames), "dense") << "another one";
  EXPECT_EQ(closest_to("power_sdg", kNames), "power_sgd") << "two changed places";
  EXPECT_EQ(closest_to("Power-SGD", kNames), "power_sgd") << "case does not count";
  EXPECT_EQ(closest_to("topk", kNames), "top_k");
  EXPECT_EQ(closest_to("csaq", kNames), "casq") << "a short name";
  EXPECT_EQ(closest_to("esqc", {"acp_sgd", "ecsq"}), "ecsq") << "one letter that went two places on";
}

TEST(Closest, OfWhatIsLikeNothingThereIsNone) {
  EXPECT_EQ(closest_to("", kNames), "");
  EXPECT_EQ(closest_to("x", kNames), "");
  EXPECT_EQ(closest_to("gradient", kNames), "");
  EXPECT_EQ(closest_to(std::string(100000, 'a'), kNames), "");
  EXPECT_EQ(closest_to("casq", {}), "");
}

TEST(Closest, TheNearestOfSeveralIsTaken) {
  const std::vector<std::string> alike = {"bits", "bins", "bit"};
  EXPECT_EQ(closest_to("bitt", alike), "bits") << "of two as near, the first";
  EXPECT_EQ(closest_to("bit", alike), "bit");
}

TEST(Closest, IsAHintBehindAnError) {
  EXPECT_EQ(did_you_mean("casqq", kNames), " (did you mean 'casq'?)");
  EXPECT_EQ(did_you_mean("gradient", kNames), "");
}

}  // namespace
}  // namespace thinwire::closest_test

#include "stages/name_patterns.h"

#include <gtest/gtest.h>

namespace thinwire::name_patterns_test {
namespace {

TEST(NamePatterns, AStarIsAnyText) {
  const NamePatterns patterns("embedding.weight|*.bias|block*.norm*.weight");
  for (const char* name :
       {"embedding.weight", "fc.bias", ".bias", "block1.norm2.weight", "block.norm.weight"}) {
    EXPECT_TRUE(patterns.match(name)) << name;
  }
  for (const char* name :
       {"", "embedding.weights", "my.embedding.weight", "bias", "fc.bias2", "block1.weight"}) {
    EXPECT_FALSE(patterns.match(name)) << name;
  }
}

TEST(NamePatterns, LaterTextMayNeedAnEarlierStarToTakeMore) {
  EXPECT_TRUE(NamePatterns("*ab*ab").match("abxabab"));
  EXPECT_FALSE(NamePatterns("*ab*ab").match("ab"));
  EXPECT_TRUE(NamePatterns("**").match(""));
}

TEST(NamePatterns, TellsWhichFitNoName) {
  const NamePatterns patterns("emb.*|*.bias|head");
  EXPECT_EQ(patterns.unmatched({"embedding.weight", "a.bias"}), (std::vector<std::string>{"emb.*", "head"}));
  EXPECT_TRUE(patterns.unmatched({"emb.weight", "a.bias", "head"}).empty());
}

TEST(NamePatterns, NothingMatchesNothing) {
  EXPECT_FALSE(NamePatterns("").match(""));
  EXPECT_FALSE(NamePatterns("").match("x"));
  EXPECT_FALSE(NamePatterns("||").match("x"));
  EXPECT_FALSE(NamePatterns("-").match("-"));
}

}  // namespace
}  // namespace thinwire::name_patterns_test

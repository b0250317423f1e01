#include "apps/codec.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace thinwire::apps {
namespace {

TEST(Codec, OneOrOnePerSystem) {
  EXPECT_EQ(parse_codec("off", 3).size(), 1u);
  EXPECT_EQ(parse_codec("off", 3)[0].elements_per_second, 0);
  EXPECT_TRUE(parse_codec("measured", 3)[0].measured);
  EXPECT_DOUBLE_EQ(parse_codec("300M", 3)[0].elements_per_second, 3e8);
  EXPECT_FALSE(parse_codec("300M", 3)[0].measured);
  const auto models = parse_codec("off:1.5G:20000", 3);
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0].elements_per_second, 0);
  EXPECT_DOUBLE_EQ(models[1].elements_per_second, 1.5e9);
  EXPECT_DOUBLE_EQ(models[2].elements_per_second, 2e4);
}

TEST(Codec, AnythingElseIsRefused) {
  for (const char* text : {"", "fast", "0", "-1M", "1m", "1M ", "1M:", ":1M", "1M:2M", "off:measured:1M",
                           "nan", "inf", "1e400", "1M:2M:3M:4M"}) {
    EXPECT_THROW(parse_codec(text, 3), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace thinwire::apps

#include "planner/link_text.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace thinwire::link_text_test {
namespace {

TEST(Link, RatesAndLatencies) {
  EXPECT_DOUBLE_EQ(parse_link("25Gbit:20us").bytes_per_second, 25e9 / 8);
  EXPECT_DOUBLE_EQ(parse_link("25Gbit:20us").latency_seconds, 20e-6);
  EXPECT_DOUBLE_EQ(parse_link("0.5Mbit:1ms").bytes_per_second, 0.5e6 / 8);
  EXPECT_DOUBLE_EQ(parse_link("100Kbit:0s").latency_seconds, 0);
}

TEST(Link, AnythingElseIsRefused) {
  for (const char* text : {"", "1Gbit", "Gbit:1us", "1Gbit:", "1GBit:1us", "-1Gbit:1us", "1Gbit:-1us",
                           "1Gbit:1m", "1Gbit:1us ", "infGbit:1us", "1Gbit:infs", "nanGbit:1us"}) {
    EXPECT_THROW(parse_link(text), std::invalid_argument) << text;
  }
}

TEST(Link, ARateAloneIsToldOfItsLatency) {
  try {
    parse_link("25Gbit");
    ADD_FAILURE();
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    for (const char* words :
         {"link '25Gbit' is not RATE:LATENCY, as in 25Gbit:50us",
          "python3 -m thinwire.doctor prints the latency", "50us where it is not known"}) {
      EXPECT_NE(message.find(words), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace thinwire::link_text_test

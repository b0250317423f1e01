#include "thinwire/report.h"

#include <gtest/gtest.h>

namespace thinwire::report_test {
namespace {

TEST(StepReport, JsonHasEveryFieldAndNullForWhatWasNotMeasured) {
  StepReport report;
  report.bucket = 3;
  report.step = 7;
  report.wire = {100, 200, 1, 2};
  report.seconds_total = 0.25;
  report.finite = false;
  const std::string json = to_json(report);
  EXPECT_EQ(json.front(), '{');
  EXPECT_EQ(json.back(), '}');
  for (const char* part :
       {"\"bucket\": 3", "\"step\": 7", "\"wire_bytes_sent\": 100", "\"wire_bytes_received\": 200",
        "\"messages_sent\": 1", "\"messages_received\": 2", "\"seconds_total\": 0.25", "\"finite\": false",
        "\"relative_error\": null", "\"cosine\": null", "\"residual_norm\": null", "\"scale\": null"}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
  }
  report.cosine = -1;  // the mean has the opposite direction
  EXPECT_NE(to_json(report).find("\"cosine\": -1"), std::string::npos) << to_json(report);
}

TEST(StepReport, AccumulateAddsCostsAndRemembersTrouble) {
  StepReport total;
  StepReport one;
  one.raw_bytes = 40;
  one.wire = {10, 20, 1, 1};
  one.seconds_wait = 0.5;
  total.accumulate(one);
  one.finite = false;
  total.accumulate(one);
  EXPECT_EQ(total.raw_bytes, 80u);
  EXPECT_EQ(total.wire.sent_bytes, 20u);
  EXPECT_EQ(total.wire.received_bytes, 40u);
  EXPECT_DOUBLE_EQ(total.seconds_wait, 1.0);
  EXPECT_FALSE(total.finite);
}

}  // namespace
}  // namespace thinwire::report_test

#include "apps/train/results.h"

#include <gtest/gtest.h>

#include <cmath>

namespace thinwire::train {
namespace {

RunResult result_of(const std::string& label, std::uint64_t bytes) {
  RunResult result;
  result.label = label;
  result.system = system_name(label);
  result.spec = label;
  result.epochs = {{.epoch = 1,
                    .steps = 10,
                    .loss = 0.5,
                    .test_accuracy = 0.8,
                    .seconds = 2,
                    .wire_bytes = 7,
                    .wire_bytes_so_far = 10 * bytes}};
  result.costs = {{.steps = 10, .bytes_sent = 10 * bytes, .messages_sent = 60},
                  {.steps = 10, .bytes_sent = 5 * bytes, .bytes_received = 30}};
  result.seconds_median = 0.25;
  result.ranks_agree = true;
  return result;
}

TEST(Results, JsonGivesBytesPerRankAndStep) {
  const auto json = to_json(result_of("marsit:full_every=100", 400), Options{});
  EXPECT_EQ(json["system"], "marsit");
  EXPECT_EQ(json["wire_bytes_sent_max"], 400.0);
  EXPECT_EQ(json["wire_bytes_sent_mean"], 300.0);
  EXPECT_EQ(json["wire_bytes_received_max"], 3.0);
  EXPECT_EQ(json["messages_max"], 6.0);
  EXPECT_EQ(json["steps"], 10);
  EXPECT_EQ(json["test_accuracy"], 0.8);
  EXPECT_EQ(json["epochs"][0]["wire_bytes_so_far"], 4000);
  EXPECT_TRUE(json.contains("perplexity") && json["perplexity"].is_null());
  EXPECT_TRUE(json.contains("relative_error") && json["relative_error"].is_null());
  EXPECT_TRUE(json["residual_norm"].is_null());
  EXPECT_TRUE(json["failure"].is_null());
  EXPECT_TRUE(json["ranks_agree"]);
}

TEST(Results, TheRelativeErrorIsTheMeanOverWhatWasMeasured) {
  RunResult result = result_of("casq", 400);
  for (Costs& rank : result.costs) {
    rank.relative_errors = 1.5;
    rank.measured = 6;
  }
  EXPECT_EQ(to_json(result, Options{})["relative_error"], 0.25);
}

TEST(Results, JsonOfADivergedRunHoldsNoNumberThatIsNone) {
  RunResult result = result_of("cascading_sign", 400);
  result.failure = "diverged: x";
  result.epochs[0].loss = NAN;
  const auto json = to_json(result, Options{});
  EXPECT_TRUE(json["epochs"][0]["loss"].is_null());
  EXPECT_TRUE(json["test_accuracy"].is_null());
  EXPECT_EQ(json["failure"], "diverged: x");
}

TEST(Results, TableComparesWithDense) {
  RunResult failed = result_of("cascading_sign", 100);
  failed.failure = "diverged";
  const std::string text = table({result_of("marsit", 40000), result_of("dense", 1000000), failed});
  EXPECT_NE(text.find("1,000,000"), std::string::npos) << text;
  EXPECT_NE(text.find("4.00 %"), std::string::npos) << text;
  EXPECT_NE(text.find("0.8000"), std::string::npos) << text;
  EXPECT_NE(text.find("diverged"), std::string::npos) << text;
  EXPECT_NE(text.find("of dense"), std::string::npos) << text;
  EXPECT_NE(table({failed, result_of("marsit", 50)}).find("of first"), std::string::npos);
  EXPECT_EQ(table({}), "");
  const std::string alone = table({result_of("marsit", 40000)});
  EXPECT_EQ(alone.find("of first"), std::string::npos) << alone;
  EXPECT_EQ(alone.find("100.00 %"), std::string::npos) << alone;
}

TEST(Results, EmbeddingsAndPerplexityAreShownWhereThereAreSome) {
  RunResult result = result_of("rows=dense,dense=marsit:full_every=7", 400);
  result.epochs[0].perplexity = 123.456;
  result.epochs[0].wire_bytes_rows = 3;
  result.epochs[0].wire_bytes_dense = 4;
  result.costs[0].bytes_sent_rows = 2500;
  result.costs[0].row_elements = 100;
  result.costs[0].row_elements_in = 10;
  result.costs[0].row_elements_out = 30;
  const auto json = to_json(result, Options{});
  EXPECT_EQ(json["system"], "rows=dense,dense=marsit");
  EXPECT_EQ(json["perplexity"], 123.456);
  EXPECT_EQ(json["epochs"][0]["perplexity"], 123.456);
  EXPECT_EQ(json["epochs"][0]["wire_bytes_rows"], 3.0);
  EXPECT_EQ(json["epochs"][0]["wire_bytes_dense"], 4.0);
  EXPECT_EQ(json["wire_bytes_rows"], 250.0);
  EXPECT_EQ(json["wire_bytes_dense"], 200.0);  // rank 1 sent none of its 200 for embeddings, rank 0 150
  EXPECT_EQ(json["density_in"], 0.1);
  EXPECT_EQ(json["density_out"], 0.3);
  const std::string text = table({result});
  EXPECT_NE(text.find("perplexity"), std::string::npos) << text;
  EXPECT_NE(text.find("123.46"), std::string::npos) << text;
  EXPECT_NE(text.find("of embeddings"), std::string::npos) << text;
  EXPECT_NE(text.find(" 250 "), std::string::npos) << text;
  const std::string plain = table({result_of("dense", 4)});
  EXPECT_EQ(plain.find("embeddings"), std::string::npos) << plain;
  EXPECT_NE(plain.find("test accuracy"), std::string::npos) << plain;
  EXPECT_TRUE(to_json(result_of("dense", 4), Options{})["density_in"].is_null());
}

TEST(Results, PerplexitiesStayShort) {
  EXPECT_EQ(perplexity_text(107.1217), "107.12");
  EXPECT_EQ(perplexity_text(1.629e302), "1.6e+302");
  EXPECT_EQ(perplexity_text(INFINITY), "inf");
}

TEST(Results, SystemNameLeavesOptionsOut) {
  EXPECT_EQ(system_name("mc:momentum=0.9+sketched_sgd:k=10"), "mc+sketched_sgd");
}

}  // namespace
}  // namespace thinwire::train

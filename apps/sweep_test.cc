#include "apps/sweep.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace thinwire::apps {
namespace {

using Json = nlohmann::ordered_json;

SweepOptions small() {
  SweepOptions options;
  options.gradient.elements = 2000;
  options.workers = {2, 4};
  return options;
}

TEST(Sweep, HoldsEverySystemAgainstDenseAtEveryPoint) {
  SweepOptions options = small();
  options.sync = "half,marsit";
  options.densities = {0.1, 0.2};
  options.gammas = {1.2, 1.7};
  std::size_t shown = 0;
  const Json results = run_sweep(options, [&](const Json&) { ++shown; });
  ASSERT_EQ(results.size(), 2u * 2 * 2 * 3);
  EXPECT_EQ(shown, results.size());
  EXPECT_EQ(results[0]["spec"], "dense");
  EXPECT_EQ(results[0]["time_vs_dense"], 1);
  for (const auto& result : results) {
    EXPECT_NEAR(result["density_in"].get<double>(), result["density_wanted"].get<double>(), 1e-9);
    EXPECT_NEAR(result["gamma"].get<double>(), result["gamma_wanted"].get<double>(), 0.15);
  }
  EXPECT_DOUBLE_EQ(
      results[1]["time_vs_dense"].get<double>(),
      results[1]["modelled_seconds"].get<double>() / results[0]["modelled_seconds"].get<double>());
}

TEST(Sweep, DenseIsTheYardstickWhereverItStands) {
  SweepOptions options = small();
  options.workers = {3};
  options.sync = "half,dense";
  const Json results = run_sweep(options, [](const Json&) {});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[1]["time_vs_dense"], 1);
  EXPECT_NE(results[0]["time_vs_dense"], 1);
}

TEST(Sweep, ARateForAllIsNotForDense) {
  SweepOptions options = small();
  options.workers = {2};
  options.sync = "dense,half,marsit";
  options.codec = "1M";
  Json results = run_sweep(options, [](const Json&) {});
  EXPECT_EQ(results[0]["codec"], "off");
  EXPECT_EQ(results[1]["codec"], 1e6);
  EXPECT_GT(results[1]["modelled_seconds"].get<double>(), 2000 / 1e6);
  options.codec = "2M:off:1M";
  results = run_sweep(options, [](const Json&) {});
  EXPECT_EQ(results[0]["codec"], 2e6);
  EXPECT_EQ(results[1]["codec"], "off");
}

TEST(Sweep, HostsAreInTheResults) {
  SweepOptions options = small();
  options.workers = {4};
  options.sync = "half";
  options.scale = 10;
  const Json flat = run_sweep(options, [](const Json&) {});
  options.ranks_per_host = 2;
  options.inside = "1000Gbit:0us";
  const Json hosts = run_sweep(options, [](const Json&) {});
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(flat[0]["ranks_per_host"], 1);
  EXPECT_TRUE(flat[0]["inside"].is_null());
  EXPECT_EQ(hosts[1]["ranks_per_host"], 2);
  EXPECT_EQ(hosts[1]["inside"], "1000Gbit:0us");
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(flat[i]["host_bytes_sent_max"], 0);
    EXPECT_GT(hosts[i]["host_bytes_sent_max"].get<double>(), 0);
    EXPECT_LT(hosts[i]["wire_bytes_sent_max"].get<double>(), flat[i]["wire_bytes_sent_max"].get<double>());
  }
}

TEST(Sweep, RefusesWhatCannotBeBeforeAnythingRuns) {
  const auto refused = [](auto change) {
    SweepOptions options = small();
    change(options);
    EXPECT_THROW(run_sweep(options, [](const Json&) { FAIL() << "something ran"; }), std::invalid_argument);
  };
  refused([](SweepOptions& options) { options.sync = "dense,nonsense"; });
  refused([](SweepOptions& options) { options.codec = "fast"; });
  refused([](SweepOptions& options) { options.link = "fast"; });
  refused([](SweepOptions& options) { options.scale = 0; });
  refused([](SweepOptions& options) { options.workers = {2, 0}; });
  refused([](SweepOptions& options) { options.densities = {0.5, 1.5}; });
  refused([](SweepOptions& options) { options.steps = 0; });
  refused([](SweepOptions& options) { options.ranks_per_host = 2; });
  refused([](SweepOptions& options) { options.inside = "100Gbit:1us"; });
  refused([](SweepOptions& options) {
    options.ranks_per_host = 2;
    options.inside = "fast";
  });
  refused([](SweepOptions& options) {
    options.ranks_per_host = 4;
    options.inside = "100Gbit:1us";  // there are 2 workers as well as 4
  });
  refused([](SweepOptions& options) {
    options.densities = {0.5};
    options.gammas = {3};
  });
}

}  // namespace
}  // namespace thinwire::apps

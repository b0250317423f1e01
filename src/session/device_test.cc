// Sessions whose gradients lie on a CUDA device: they keep the same contract, and agree with sessions on the
// host where no sum is rounded in another order.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>

#include "exchange/host_groups.h"
#include "session/contract_specs.h"
#include "session/device_vector.h"
#include "thinwire/cuda.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"
#include "thinwire/virtual_network.h"

namespace thinwire::device_test {
namespace {

constexpr std::size_t kElements = 1511;
constexpr int kSteps = 4;

std::vector<float> values_of(int step, int rank, std::size_t elements = kElements) {
  std::mt19937 random(static_cast<std::uint32_t>(100 * step + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(elements, 0.0f);
  for (auto& value : values) {
    if (random() % 5 != 0) value = normal(random);
  }
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct Trace {
  /// [rank][step]
  std::vector<std::vector<std::vector<float>>> inputs, before, means, after;
  std::vector<std::vector<StepReport>> reports;
  bool conserves = false;
};

/// Ranks that are threads; the virtual engine does not reach the device.
enum class Engine { threads, virtual_network };

Trace run(const std::string& spec, int world, bool on_device, std::size_t elements = kElements,
          int bad_step = -1, Engine engine = Engine::threads) {
  Trace result;
  const auto ranks = static_cast<std::size_t>(world);
  for (auto* part : {&result.inputs, &result.before, &result.means, &result.after}) part->resize(ranks);
  result.reports.resize(ranks);
  const auto body = [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    SessionOptions options;
    options.seed = 5;
    if (on_device) options.cuda_device = 0;
    Session session(spec, communicator, options);
    session.add_bucket({{"a", elements / 3}, {"b", elements - elements / 3}});
    if (rank == 0) result.conserves = session.pipeline(0).conserves;
    DeviceVector memory(std::max<std::size_t>(elements, 1));
    const auto residual = [&] {
      const auto span = session.residual(0);
      return on_device ? memory.read(span) : std::vector<float>(span.begin(), span.end());
    };
    for (int step = 0; step < kSteps; ++step) {
      auto gradient = values_of(step, communicator.rank(), elements);
      if (step == bad_step && rank + 1 == ranks)
        gradient[elements / 2] = std::numeric_limits<float>::infinity();
      result.inputs[rank].push_back(gradient);
      result.before[rank].push_back(residual());
      if (on_device && elements > 0) {
        memory.write(gradient);
        result.reports[rank].push_back(session.synchronize(0, memory.span()));
        gradient = memory.read();
      } else {
        result.reports[rank].push_back(session.synchronize(0, gradient));
      }
      session.next_step();
      result.means[rank].push_back(gradient);
      result.after[rank].push_back(residual());
    }
  };
  if (engine == Engine::threads) {
    run_in_process(world, body);
  } else {
    run_virtual(world, {}, body);
  }
  return result;
}

class OnDevice : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

class InBriefOnDevice : public OnDevice {};

TEST_P(OnDevice, RanksAgreeAndSumsAreConserved) {
  for (const int world : {1, 3}) {
    for (const std::size_t elements : {std::size_t{65}, kElements}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << " elements");
      const Trace trace = run(GetParam(), world, true, elements);
      for (std::size_t step = 0; step < trace.means[0].size(); ++step) {
        std::vector<double> delivered(elements, 0.0), magnitude(elements, 1e-6);
        for (std::size_t rank = 0; rank < trace.means.size(); ++rank) {
          ASSERT_TRUE(same_bits(trace.means[rank][step], trace.means[0][step])) << "rank " << rank;
          const StepReport& report = trace.reports[rank][step];
          ASSERT_TRUE(report.finite);
          ASSERT_EQ(report.wire.sent_bytes, report.formula_bytes + report.frame_header_bytes);
          if (trace.after[rank][step].empty()) continue;
          for (std::size_t i = 0; i < elements; ++i) {
            const double in = static_cast<double>(trace.inputs[rank][step][i]) +
                              static_cast<double>(trace.before[rank][step][i]);
            const auto left = static_cast<double>(trace.after[rank][step][i]);
            delivered[i] += in - left;
            magnitude[i] +=
                std::fabs(in) + std::fabs(left) + std::fabs(static_cast<double>(trace.means[0][step][i]));
          }
        }
        if (trace.after[0][step].empty() || !trace.conserves) continue;
        for (std::size_t i = 0; i < elements; ++i) {
          ASSERT_NEAR(delivered[i], world * static_cast<double>(trace.means[0][step][i]), 1e-5 * magnitude[i])
              << i;
        }
      }
    }
  }
}

/// Step sizes and norms are sums, which the device adds in another order; everything else is the same.
std::uint64_t payload_sent(const StepReport& report) {
  return report.wire.sent_bytes - report.frame_header_bytes;
}

TEST_P(OnDevice, AgreesWithTheHost) {
  const Trace host = run(GetParam(), 2, false);
  const Trace device = run(GetParam(), 2, true);
  for (std::size_t step = 0; step < 2; ++step) {
    const auto& a = host.means[0][step];
    const auto& b = device.means[0][step];
    // Values may be differences of larger ones.
    float largest = 0;
    for (const float value : a) largest = std::max(largest, std::fabs(value));
    std::size_t apart = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::fabs(a[i] - b[i]) > 1e-5f * largest) ++apart;
    }
    // A sum rounded otherwise moves a threshold, and with it single elements.
    ASSERT_LE(apart, a.size() / 250) << "step " << step;
    // Sums on a device have no checksums behind their messages.
    ASSERT_GE(host.reports[0][step].wire.sent_messages, device.reports[0][step].wire.sent_messages);
    ASSERT_EQ(payload_sent(host.reports[0][step]), payload_sent(device.reports[0][step]));
  }
}

TEST_P(InBriefOnDevice, BadValuesAreToldToEveryRankAndChangeNoState) {
  const Trace trace = run(GetParam(), 3, true, kElements, 2);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t step = 0; step < kSteps; ++step) {
      ASSERT_EQ(trace.reports[rank][step].finite, step != 2) << "rank " << rank << " step " << step;
      const auto& mean = trace.means[rank][step];
      ASSERT_EQ(std::all_of(mean.begin(), mean.end(), [](float x) { return std::isfinite(x); }), step != 2);
      ASSERT_TRUE(same_bits(mean, trace.means[0][step]));
    }
    ASSERT_TRUE(same_bits(trace.after[rank][2], trace.before[rank][2]));
  }
}

TEST_P(InBriefOnDevice, ResumesBitForBit) {
  std::vector<std::vector<float>> straight(2), resumed(2);
  std::vector<std::string> saved(2);
  for (const bool second : {false, true}) {
    run_in_process(2, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      SessionOptions options;
      options.cuda_device = 0;
      Session session(GetParam(), communicator, options);
      session.add_bucket({{"a", kElements}});
      if (second) {
        std::istringstream stream(saved[rank]);
        session.load(StateReader(stream));
      }
      DeviceVector memory(kElements);
      for (int step = second ? 3 : 0; step < 6; ++step) {
        memory.write(values_of(step, communicator.rank()));
        session.synchronize(0, memory.span());
        session.next_step();
        const auto mean = memory.read();
        auto& all = (second ? resumed : straight)[rank];
        all.insert(all.end(), mean.begin(), mean.end());
        if (!second && step == 2) {
          all.clear();
          StateWriter writer;
          session.save(writer);
          std::ostringstream stream;
          writer.write(stream);
          saved[rank] = stream.str();
        }
      }
    });
  }
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(same_bits(straight[rank], resumed[rank]));
}

INSTANTIATE_TEST_SUITE_P(Systems, OnDevice, testing::ValuesIn(kDeviceSpecs),
                         [](const auto& parameter) { return test_name(parameter.param); });
INSTANTIATE_TEST_SUITE_P(Systems, InBriefOnDevice, testing::ValuesIn(in_brief(kDeviceSpecs)),
                         [](const auto& parameter) { return test_name(parameter.param); });

/// Sums go from device to device where the engine reaches it, and through the host elsewhere.
TEST(DeviceSession, SumsAreTheSameByEveryWay) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* spec : {"dense", "marsit:full_every=2", "global_top_k:ratio=0.1", "s2_reducer",
                           "sketched_sgd:ratio=0.05:p=2:columns_ratio=0.1"}) {
    SCOPED_TRACE(spec);
    for (const std::size_t elements : {std::size_t{2}, kElements}) {
      const Trace direct = run(spec, 3, true, elements);
      const Trace copied = run(spec, 3, true, elements, -1, Engine::virtual_network);
      for (std::size_t rank = 0; rank < 3; ++rank) {
        for (std::size_t step = 0; step < kSteps; ++step) {
          ASSERT_TRUE(same_bits(direct.means[rank][step], copied.means[rank][step])) << "step " << step;
          ASSERT_EQ(payload_sent(direct.reports[rank][step]), payload_sent(copied.reports[rank][step]));
        }
      }
    }
  }
}

TEST(DeviceSession, SaysWhereGradientsMustLie) {
  run_in_process(1, [](Communicator& communicator) {
    std::vector<float> gradient(4);
    Session host("dense", communicator);
    host.add_bucket({{"a", 4}});
    EXPECT_THROW(host.synchronize(0, Span<float>(gradient.data(), 4, Memory::cuda)), std::invalid_argument);
    SessionOptions options;
    options.cuda_device = 0;
    if (cuda_devices() == 0) {
      EXPECT_ANY_THROW(Session("dense", communicator, options));
      return;
    }
    Session device("dense", communicator, options);
    device.add_bucket({{"a", 4}});
    EXPECT_THROW(device.synchronize(0, gradient), std::invalid_argument);
  });
}

TEST(DeviceSession, StepsAreUndoneAndWhatWasLeftIsDelivered) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  run_in_process(2, [](Communicator& communicator) {
    SessionOptions options;
    options.cuda_device = 0;
    DeviceVector memory(3);
    const auto step = [&](Session& session, float scale) {
      memory.write({scale, -2 * scale, 3 * scale});
      session.synchronize(0, memory.span());
      if (scale == 7) {
        EXPECT_FALSE(session.next_step(false));
      } else {
        EXPECT_TRUE(session.next_step());
      }
    };
    Session session("ef_signsgd", communicator, options);
    session.add_bucket({{"a", 3}});
    step(session, 1);
    const auto first = memory.read(session.residual(0));
    step(session, 7);
    EXPECT_EQ(memory.read(session.residual(0)), first);

    StateWriter state;
    session.save(state);
    Session dense("dense", communicator, options);
    dense.add_bucket({{"a", 3}});
    dense.take_over(StateReader(std::move(state)));
    EXPECT_EQ(memory.read(dense.residual(0)), first);
    step(dense, 1);
    EXPECT_TRUE(dense.residual(0).empty());
    EXPECT_EQ(memory.read(), (std::vector<float>{1 + first[0], -2 + first[1], 3 + first[2]}));
  });
}

TEST(DeviceSession, RanksOfAHostAddUpAsOnTheHost) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  const std::size_t elements = 40'000;
  for (const char* spec : {"half", "top_k:ratio=0.1+zen", "dense"}) {
    std::vector<std::vector<float>> on_host(4), on_device(4);
    for (const bool device : {false, true}) {
      run_in_process(4, [&](Communicator& communicator) {
        SessionOptions options;
        options.ranks_per_host = 2;
        if (device) options.cuda_device = 0;
        Session session(spec, communicator, options);
        session.add_bucket({{"a", 300}, {"b", elements - 400, 400}, {"c", 100}});
        DeviceVector memory(elements);
        auto& means = (device ? on_device : on_host)[static_cast<std::size_t>(communicator.rank())];
        for (int step = 0; step < kSteps; ++step) {
          auto gradient = values_of(step, communicator.rank(), elements);
          const bool bad = step == 1;
          if (bad && communicator.rank() == 2) gradient[350] = std::numeric_limits<float>::infinity();
          memory.write(gradient);
          const StepReport& report = session.synchronize(0, device ? memory.span() : Span<float>(gradient));
          EXPECT_EQ(report.finite, !bad);
          if (device) gradient = memory.read();
          EXPECT_EQ(std::ranges::any_of(gradient, [](float x) { return std::isnan(x); }), bad);
          EXPECT_EQ(session.next_step(), !bad);
          if (!bad) means.insert(means.end(), gradient.begin(), gradient.end());
        }
      });
    }
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(same_bits(on_device[rank], on_device[0])) << spec;
      EXPECT_TRUE(same_bits(on_device[rank], on_host[rank])) << spec;
    }
  }
}

/// As host_groups_test.cc has it on the host. Samples differ there, so bits do, too.
TEST(DeviceSession, PartsOfAHostAreSelectedByOneThreshold) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  const BucketLayout layout = {{"first", 9000}, {"second", 9000}, {"third", 9000}, {"fourth", 9000}};
  constexpr std::size_t kEach = 9000;
  constexpr std::size_t kAll = 4 * kEach;
  constexpr std::size_t kUnion = 3510;  // of two hosts that choose a twentieth apart: 0.0975 of all
  for (const std::string threshold : {"own", "shards"}) {
    for (const bool with_residual : {false, true}) {
      SCOPED_TRACE(threshold + (with_residual ? ", second step" : ", first step"));
      std::array<std::size_t, 2> by_place{};
      run_in_process(4, [&](Communicator& communicator) {
        SessionOptions options;
        options.ranks_per_host = 2;
        options.cuda_device = 0;
        Session session("dgc:ratio=0.05:momentum=0:threshold=" + threshold, communicator, options);
        session.add_bucket(layout);
        // Whole parameters lie at one place or the other. Those of place 0 are large.
        std::array<bool, 4> at_place_0{};
        const HostGroups::Parts parts = HostGroups(communicator, 2).parts(layout);
        for (const VectorChunk& slice : parts.slices[0]) at_place_0[slice.begin / kEach] = true;
        DeviceVector memory(kAll);
        std::vector<float> gradient;
        for (int step = 0; step <= (with_residual ? 1 : 0); ++step) {
          std::mt19937 random(static_cast<std::uint32_t>(10 * step + communicator.rank()));
          std::normal_distribution<float> normal;
          gradient.resize(kAll);
          for (std::size_t i = 0; i < kAll; ++i) {
            gradient[i] = normal(random) * (at_place_0[i / kEach] ? 100.0f : 1.0f);
          }
          memory.write(gradient);
          EXPECT_TRUE(session.synchronize(0, memory.span()).finite);
          EXPECT_TRUE(session.next_step());
          gradient = memory.read();
        }
        if (communicator.rank() != 0) return;
        for (std::size_t i = 0; i < kAll; ++i) {
          if (gradient[i] != 0) ++by_place[at_place_0[i / kEach] ? 0 : 1];
        }
      });
      EXPECT_NEAR(static_cast<double>(by_place[0] + by_place[1]), kUnion, 0.2 * kUnion);
      if (threshold == "shards") {
        EXPECT_LT(by_place[1], 20u);
      } else {
        EXPECT_GT(by_place[1], 500u);  // of one parameter alone 878 are expected
      }
    }
  }
}

TEST(DeviceSession, RowsStayOnTheHost) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  run_in_process(2, [](Communicator& communicator) {
    SessionOptions options;
    options.cuda_device = 0;
    Session session("rows=zen,dense=dense", communicator, options);
    const auto table = session.add_rows("table", 10, 2);
    std::vector<std::uint32_t> rows = {3};
    std::vector<float> values = {2, 4};
    const RowSparse mean =
        session.synchronize_rows(table, {.row_indices = rows, .values = values, .rows = 10, .width = 2});
    ASSERT_EQ(mean.size(), 1u);
    EXPECT_EQ(mean.row_indices[0], 3u);
    EXPECT_EQ(mean.values[1], 4.0f);
  });
}

}  // namespace
}  // namespace thinwire::device_test

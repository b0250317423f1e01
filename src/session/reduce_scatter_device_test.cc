// Sessions that leave each rank its part of the mean alone, with gradients on a CUDA device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "session/device_vector.h"
#include "tests/random_values.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::reduce_scatter_device_test {
namespace {

constexpr std::size_t kWorld = 3;
constexpr std::size_t kSteps = 4;
constexpr std::size_t kBadStep = 2;

struct Ended {
  std::vector<float> input, before, part, after;
  StepReport report;
};
using Ranks = std::vector<std::vector<Ended>>;  // [rank][step]

/// Parts of two parameters. In kBadStep the last rank has inf in what rank 0 owns, where `spoilt`.
Ranks run(const std::string& spec, bool on_device, std::size_t part, bool spoilt = false) {
  Ranks ranks(kWorld);
  const std::size_t elements = kWorld * part;
  run_in_process(static_cast<int>(kWorld), [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    SessionOptions options;
    options.seed = 5;
    options.reduce_scatter = true;
    if (on_device) options.cuda_device = 0;
    Session session(spec, communicator, options);
    BucketLayout layout;
    for (const char* owner : {"@0", "@1", "@2"}) {
      layout.push_back({std::string("a") + owner, part / 3});
      layout.push_back({std::string("b") + owner, part - part / 3});
    }
    session.add_bucket(layout);
    DeviceVector memory(elements);
    const auto read = [&](Span<const float> span) {
      return on_device ? memory.read(span) : std::vector<float>(span.begin(), span.end());
    };
    for (std::size_t step = 0; step < kSteps; ++step) {
      Ended ended;
      std::vector<float> gradient = normal_values(elements, static_cast<std::uint32_t>(100 * step + rank));
      if (spoilt && step == kBadStep && rank + 1 == kWorld)
        gradient[part / 2] = std::numeric_limits<float>::infinity();
      ended.input = gradient;
      ended.before = read(session.residual(0));
      const Span<float> span = on_device ? memory.span() : Span<float>(gradient);
      if (on_device) memory.write(gradient);
      ended.report = session.synchronize(0, span);
      session.next_step();
      ended.part = read(span.subspan(rank * part, part));
      ended.after = read(session.residual(0));
      ranks[rank].push_back(std::move(ended));
    }
  });
  return ranks;
}

class ReduceScatterOnDevice : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

/// What one element of the bucket has brought into a step and left in the residuals, over ranks.
struct Balance {
  double delivered = 0;
  double magnitude = 1e-5;
};

Balance balance_of(const Ranks& ranks, std::size_t step, std::size_t element) {
  Balance balance;
  for (const auto& rank : ranks) {
    const Ended& ended = rank[step];
    const auto residual = [&](const std::vector<float>& values) {
      return values.empty() ? 0.0 : static_cast<double>(values[element]);
    };
    const double in = static_cast<double>(ended.input[element]) + residual(ended.before);
    balance.delivered += in - residual(ended.after);
    balance.magnitude += std::fabs(in) + std::fabs(residual(ended.after));
  }
  return balance;
}

TEST_P(ReduceScatterOnDevice, SumsAreConserved) {
  for (const std::size_t part : {std::size_t{1}, std::size_t{65}, std::size_t{1511}}) {
    const Ranks ranks = run(GetParam(), true, part);
    const bool keeps = !ranks[0][0].after.empty() || GetParam() == "dense" || GetParam() == "zen";
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (const auto& rank : ranks) {
        const StepReport& report = rank[step].report;
        ASSERT_TRUE(report.finite);
        ASSERT_EQ(report.wire.sent_bytes, report.formula_bytes + report.frame_header_bytes);
      }
      for (std::size_t i = 0; i < kWorld * part && keeps; ++i) {
        const double mean = static_cast<double>(ranks[i / part][step].part[i % part]);
        const Balance balance = balance_of(ranks, step, i);
        ASSERT_NEAR(balance.delivered, kWorld * mean, 1e-5 * (balance.magnitude + std::fabs(mean)))
            << "step " << step << ", " << i << " in parts of " << part;
      }
    }
  }
}

TEST_P(ReduceScatterOnDevice, AgreesWithTheHost) {
  const Ranks host = run(GetParam(), false, 1511);
  const Ranks device = run(GetParam(), true, 1511);
  for (std::size_t rank = 0; rank < kWorld; ++rank) {
    for (std::size_t step = 0; step < 2; ++step) {
      const std::vector<float>& a = host[rank][step].part;
      const std::vector<float>& b = device[rank][step].part;
      float largest = 0;
      for (const float value : a) largest = std::max(largest, std::fabs(value));
      std::size_t apart = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        if (std::fabs(a[i] - b[i]) > 1e-5f * largest) ++apart;
      }
      // A sum that is rounded otherwise moves a threshold, and with it single elements.
      ASSERT_LE(apart, a.size() / 250) << "rank " << rank << " step " << step;
      ASSERT_EQ(host[rank][step].report.wire.sent_bytes, device[rank][step].report.wire.sent_bytes);
    }
  }
}

TEST_P(ReduceScatterOnDevice, BadValuesAreToldToEveryRankAndChangeNoState) {
  for (const auto& rank : run(GetParam(), true, 100, true)) {
    for (std::size_t step = 0; step < kSteps; ++step) {
      const std::vector<float>& part = rank[step].part;
      ASSERT_EQ(rank[step].report.finite, step != kBadStep);
      ASSERT_EQ(std::all_of(part.begin(), part.end(), [](float x) { return std::isnan(x); }),
                step == kBadStep);
    }
    EXPECT_EQ(rank[kBadStep].after, rank[kBadStep].before);
  }
}

INSTANTIATE_TEST_SUITE_P(Systems, ReduceScatterOnDevice,
                         testing::Values("dense", "dense:feedback=on", "half", "half:format=bf16:feedback=on",
                                         "ef_signsgd", "qsgd:bits=2:chunk=128:feedback=on",
                                         "nuqsgd:feedback=on", "casq:interval=3", "casq:scope=bucket", "zen",
                                         "top_k:ratio=0.05+zen"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace thinwire::reduce_scatter_device_test

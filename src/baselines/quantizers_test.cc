// QSGD, TernGrad, NUQSGD, ALQ and AMQ: that they are unbiased, how much they vary, and what adapts.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "baselines/baselines.h"
#include "baselines/stochastic_quantizer.h"
#include "tests/random_values.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"

namespace thinwire::quantizers_test {
namespace {

const Registry& quantizers() {
  static const Registry registry = [] {
    Registry all;
    for (const auto& info : {qsgd_info(), terngrad_info(), nuqsgd_info(), alq_info(), amq_info()})
      all.add(info);
    return all;
  }();
  return registry;
}

/// One rank that calls a system as often as a test wants.
void alone(const std::string& spec,
           const std::function<void(Synchronizer&, Workspace&, Communicator&, Executor&)>& body) {
  run_in_process(1, [&](Communicator& communicator) {
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    body(*quantizers().make(spec).synchronizer, workspace, communicator, *executor);
  });
}

/// Q(p) of `draws` steps, one after the other, to visit(). Steps count from 1, so that adaptive systems fit
/// once and keep their levels.
void each_draw(const std::string& spec, const std::vector<float>& gradient, int draws,
               const std::function<void(const std::vector<float>&)>& visit) {
  alone(spec,
        [&](Synchronizer& system, Workspace& workspace, Communicator& communicator, Executor& executor) {
          for (int draw = 1; draw <= draws; ++draw) {
            workspace.reset();
            Step step{.communicator = communicator,
                      .executor = executor,
                      .workspace = workspace,
                      .index = static_cast<std::uint64_t>(draw),
                      .seed = 5};
            std::vector<float> mean = gradient;
            system.synchronize(0, mean, {}, step);
            ASSERT_TRUE(step.report.finite);
            visit(mean);
          }
        });
}

double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

/// The mean over draws of |Q(p) - p|^2.
double mean_squared_error(const std::string& spec, const std::vector<float>& gradient, int draws) {
  double sum = 0;
  each_draw(spec, gradient, draws, [&](const std::vector<float>& q) {
    for (std::size_t i = 0; i < q.size(); ++i) {
      sum += std::pow(static_cast<double>(q[i]) - static_cast<double>(gradient[i]), 2);
    }
  });
  return sum / draws;
}

// z-tests at 5 sigma with fixed seeds: sums of Q(p) - p under several weights have mean 0.
TEST(Quantizers, AreUnbiased) {
  const auto gradient = heavy_tailed(500, 2);
  constexpr int kDraws = 3000;
  for (const std::string spec :
       {"qsgd:bits=2:chunk=128", "qsgd:bits=3:norm=l2", "qsgd:bits=8", "terngrad", "terngrad:scale=bucket",
        "nuqsgd:bits=3", "nuqsgd:bits=7:norm=max:chunk=256", "alq:bits=3", "alq:bits=4:norm=max:chunk=128",
        "alq:bits=6:normalised=on", "amq:bits=3", "amq:bits=4:norm=max", "alq:bits=2:zero=off",
        "amq:bits=3:zero=off:norm=max"}) {
    std::array<double, 3> sums{};
    std::array<double, 3> sums_of_squares{};
    each_draw(spec, gradient, kDraws, [&](const std::vector<float>& q) {
      std::array<double, 3> weighted{};
      for (std::size_t i = 0; i < q.size(); ++i) {
        const auto p = static_cast<double>(gradient[i]);
        const double error = static_cast<double>(q[i]) - p;
        weighted[0] += error;
        weighted[1] += error * (p < 0 ? -1 : 1);
        weighted[2] += error * p;
      }
      for (std::size_t k = 0; k < 3; ++k) {
        sums[k] += weighted[k];
        sums_of_squares[k] += weighted[k] * weighted[k];
      }
    });
    for (std::size_t k = 0; k < 3; ++k) {
      EXPECT_LT(std::fabs(sums[k]), 5 * std::sqrt(sums_of_squares[k])) << spec << " weights " << k;
    }
  }
}

TEST(Quantizers, VaryLessThanTheirPapersBounds) {
  const auto gradient = heavy_tailed(1024, 3);
  const double length = squares(gradient);
  double largest = 0;
  double magnitudes = 0;
  for (const float g : gradient) {
    largest = std::max(largest, std::fabs(static_cast<double>(g)));
    magnitudes += std::fabs(static_cast<double>(g));
  }
  constexpr int kDraws = 400;
  constexpr double kNoise = 1.05;
  for (const int bits : {2, 3, 4, 6}) {
    const double m = 1024;
    const double s = std::pow(2, bits - 1) - 1;
    const std::string with_bits = ":bits=" + std::to_string(bits);
    // QSGD, lemma 3.1; each element's variance is at most a quarter of a step's square.
    EXPECT_LT(mean_squared_error("qsgd:norm=l2" + with_bits, gradient, kDraws),
              kNoise * std::min(m / (s * s), std::sqrt(m) / s) * length);
    EXPECT_LT(mean_squared_error("qsgd" + with_bits, gradient, kDraws), m / (4 * s * s) * largest * largest);
    // Between powers of two (c - r) (r - a) is at most r^2 / 8, below the first level at most its quarter
    // square.
    const double first = std::pow(2, 1 - s);
    EXPECT_LT(mean_squared_error("nuqsgd" + with_bits, gradient, kDraws),
              kNoise * (0.125 + m * first * first / 4) * length);
  }
  const double ternary = largest * magnitudes - length;
  EXPECT_NEAR(mean_squared_error("terngrad", gradient, kDraws), ternary, 0.05 * ternary);
  EXPECT_LT(mean_squared_error("terngrad:clip=2.5", gradient, kDraws), ternary);
}

TEST(Quantizers, AdaptedLevelsHaveSmallerErrors) {
  const auto gradient = heavy_tailed(50'000, 4);
  constexpr int kDraws = 5;
  for (const std::string norm : {":norm=max", ":norm=l2"}) {
    for (const std::string bits : {":bits=3", ":bits=4", ":bits=5"}) {
      const double adapted = mean_squared_error("alq" + norm + bits, gradient, kDraws);
      const double multiples = mean_squared_error("amq" + norm + bits, gradient, kDraws);
      EXPECT_LT(adapted, 0.95 * mean_squared_error("qsgd" + norm + bits, gradient, kDraws)) << norm << bits;
      EXPECT_LT(adapted, mean_squared_error("nuqsgd" + norm + bits, gradient, kDraws)) << norm << bits;
      EXPECT_LT(adapted, 1.02 * multiples) << norm << bits;
      EXPECT_LT(multiples, 1.02 * mean_squared_error("nuqsgd" + norm + bits, gradient, kDraws))
          << norm << bits;
    }
  }
}

TEST(Quantizers, DeliverWhatIsEasy) {
  for (const std::string spec : {"qsgd", "terngrad", "nuqsgd:norm=max", "alq:norm=max", "amq:norm=max"}) {
    for (const float value : {0.0f, -0.0f, 1.5f, -0.25f, 1e-30f}) {
      for (const std::size_t count : {1u, 64u, 300u}) {
        const std::vector<float> gradient(count, value);
        each_draw(spec, gradient, 2, [&](const std::vector<float>& q) {
          for (const float one : q) EXPECT_NEAR(one, value, 1e-6f * std::fabs(value)) << spec;
        });
      }
    }
    // Denormal values are as good as 0, and one sign stays one sign.
    each_draw(spec, std::vector<float>(100, 1e-40f), 1, [&](const std::vector<float>& q) {
      for (const float one : q) EXPECT_EQ(one, 0) << spec;
    });
    auto positive = heavy_tailed(3000, 5);
    for (auto& value : positive) value = std::fabs(value);
    each_draw(spec, positive, 2, [&](const std::vector<float>& q) {
      for (const float one : q) EXPECT_GE(one, 0) << spec;
    });
  }
}

TEST(Quantizers, FloatsOrCodesAreNamedWhereNeitherIsGiven) {
  for (const std::string spec : {"power_sgd:bits=9", "power_sgd:bits=1", "acp_sgd:bits=31",
                                 "power_sgd:bits=4.5", "acp_sgd:bits=-8", "acp_sgd:bits=8bit"}) {
    try {
      builtin_registry().make(spec);
      ADD_FAILURE() << spec;
    } catch (const std::invalid_argument& error) {
      const std::string system = spec.substr(0, spec.find(':'));
      EXPECT_EQ(error.what(), system + ": " + spec.substr(system.size() + 1) +
                                  " must be 32 for floats, or 2 to 8 for codes");
    }
  }
}

TEST(Quantizers, ElementsThatShareAScaleAreAMultipleOf128) {
  for (const std::string spec : {"blocks:block=7", "qsgd:chunk=100", "power_sgd:bits=8:block=129"}) {
    try {
      builtin_registry().make(spec);
      ADD_FAILURE() << spec;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(" must be a multiple of 128 up to 4294967296"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(Quantizers, RefuseOptionsThatCannotBe) {
  for (const std::string name : {"qsgd", "nuqsgd", "alq", "amq"}) {
    for (const std::string bits : {"0", "1", "9", "-1"}) {
      try {
        quantizers().make(name + ":bits=" + bits);
        ADD_FAILURE() << name << " took bits=" << bits;
      } catch (const std::invalid_argument& error) {
        EXPECT_NE(std::string(error.what()).find("bits"), std::string::npos) << error.what();
      }
    }
    EXPECT_THROW(quantizers().make(name + ":chunk=100"), std::invalid_argument);
    EXPECT_THROW(quantizers().make(name + ":chunk=0"), std::invalid_argument);
    EXPECT_THROW(quantizers().make(name + ":norm=l1"), std::invalid_argument);
  }
  EXPECT_THROW(quantizers().make("terngrad:bits=3"), std::invalid_argument);
  EXPECT_THROW(quantizers().make("alq:every=0"), std::invalid_argument);
}

TEST(Quantizers, SendWhatTheFormulaSays) {
  const auto bytes = [](const std::string& spec, std::uint64_t step, int rank) {
    return quantizers().make(spec).synchronizer->payload_bytes(
        {.elements = 1000, .world_size = 4, .rank = rank, .step = step});
  };
  EXPECT_EQ(bytes("qsgd:bits=3", 0, 0), 3u * (375 + 4));
  EXPECT_EQ(bytes("qsgd:bits=3:chunk=128", 0, 0), 3u * (375 + 4 * 8));
  EXPECT_EQ(bytes("terngrad", 7, 1), 3u * (250 + 4));
  // Two inner levels of 4 bytes; rank 0 sends them twice, rank 1 once, as a binomial tree has it.
  EXPECT_EQ(bytes("alq:bits=3", 0, 0), 3u * (375 + 4) + 16);
  EXPECT_EQ(bytes("alq:bits=3", 200, 1), 3u * (375 + 4) + 8);
  EXPECT_EQ(bytes("alq:bits=3", 200, 2), 3u * (375 + 4));
  EXPECT_EQ(bytes("alq:bits=3", 1, 0), 3u * (375 + 4));
  EXPECT_EQ(bytes("alq:bits=2", 0, 0), 3u * (250 + 4));
  EXPECT_EQ(bytes("amq:bits=2:zero=off", 0, 1), 3u * (250 + 4) + 4);
}

// With 4 values per code instead of 3, at 2 bits.
TEST(Quantizers, LeavingOutZeroHelpsAtTwoBits) {
  const auto gradient = heavy_tailed(50'000, 6);
  for (const std::string name : {"alq", "amq"}) {
    EXPECT_LT(mean_squared_error(name + ":bits=2:norm=max:chunk=512:zero=off", gradient, 5),
              0.8 * mean_squared_error(name + ":bits=2:norm=max:chunk=512", gradient, 5));
  }
}

// What cannot be fitted to (zeros, inf) leaves the levels alone, and the next step tries again.
TEST(AdaptiveQuantization, FitsAtTheFirstStepThatHasData) {
  run_in_process(2, [&](Communicator& communicator) {
    const auto system = quantizers().make("alq:bits=3").synchronizer;
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    const std::uint64_t codes = 375 + 4;
    auto sent = [&](std::uint64_t index, std::vector<float> gradient) {
      workspace.reset();
      Step step{.communicator = communicator,
                .executor = *executor,
                .workspace = workspace,
                .index = index,
                .seed = 1};
      system->synchronize(0, gradient, {}, step);
      return step.report.formula_bytes - codes;
    };
    const std::uint64_t fit = communicator.rank() == 0 ? 8 : 0;
    std::vector<float> infinite(1000, std::numeric_limits<float>::infinity());
    EXPECT_EQ(sent(0, infinite), fit);
    EXPECT_EQ(sent(1, std::vector<float>(1000, 0.0f)), fit);
    // Data on rank 0, inf on the other: not kept.
    EXPECT_EQ(sent(2, communicator.rank() == 0 ? heavy_tailed(1000, 1) : infinite), fit);
    EXPECT_EQ(sent(3, heavy_tailed(1000, 1)), fit);
    EXPECT_EQ(sent(4, heavy_tailed(1000, 1)), 0u);
    EXPECT_EQ(sent(100, heavy_tailed(1000, 1)), fit);
  });
}

TEST(StochasticQuantizer, RefusesNegativeNorms) {
  const std::vector<float> right = {0, 1};
  require_norms(right);
  const std::vector<float> wrong = {1, -1};
  EXPECT_THROW(require_norms(wrong), CorruptFrame);
}

}  // namespace
}  // namespace thinwire::quantizers_test

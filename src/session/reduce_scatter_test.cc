// Sessions that leave each rank its part of the mean alone, with every system that can.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <sstream>

#include "comm/message_tags.h"
#include "session/count_allocations.h"
#include "tests/random_values.h"
#include "tests/tapped_communicator.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::reduce_scatter_test {
namespace {

// Lengths of a rank's parts of two parameters: ends at words, and anywhere else.
struct Parts {
  std::size_t a;
  std::size_t b;
  std::size_t all() const { return a + b; }
};

BucketLayout layout_of(const Parts& parts, int world) {
  BucketLayout layout;
  for (int owner = 0; owner < world; ++owner) {
    layout.push_back({"a@" + std::to_string(owner), parts.a});
    layout.push_back({"b@" + std::to_string(owner), parts.b});
  }
  return layout;
}

std::vector<float> gradient_of(std::size_t elements, int step, int rank) {
  return normal_values(elements, static_cast<std::uint32_t>(step * 100 + rank));
}

class ReduceScatter : public testing::TestWithParam<std::string> {};

struct Ended {
  std::vector<float> before, input, part, after;
  StepReport report;
};

/// What each rank has after each step: [rank][step].
std::vector<std::vector<Ended>> run(const std::string& spec, int world, const Parts& parts, int steps,
                                    int threads = 1) {
  std::vector<std::vector<Ended>> ranks(static_cast<std::size_t>(world));
  run_in_process(world, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    Session session(spec, communicator, {.threads = threads, .reduce_scatter = true});
    session.add_bucket(layout_of(parts, world));
    const auto residual = [&] {
      const auto span = session.residual(0);
      return std::vector<float>(span.begin(), span.end());
    };
    for (int step = 0; step < steps; ++step) {
      Ended ended;
      auto gradient = ended.input =
          gradient_of(parts.all() * static_cast<std::size_t>(world), step, communicator.rank());
      ended.before = residual();
      ended.report = session.synchronize(0, gradient);
      EXPECT_TRUE(session.next_step());
      ended.after = residual();
      ended.part.assign(gradient.begin() + static_cast<std::ptrdiff_t>(rank * parts.all()),
                        gradient.begin() + static_cast<std::ptrdiff_t>((rank + 1) * parts.all()));
      ranks[rank].push_back(std::move(ended));
    }
  });
  return ranks;
}

TEST_P(ReduceScatter, DeliversWhatTheResidualsLoseAndSendsWhatTheFormulaSays) {
  for (const int world : {1, 2, 3, 4, 5}) {
    for (const Parts parts : {Parts{0, 1}, Parts{64, 64}, Parts{7, 100}, Parts{4000, 11}}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, parts of " << parts.a << " and " << parts.b);
      const auto ranks = run(GetParam(), world, parts, 4);
      const std::size_t elements = parts.all() * static_cast<std::size_t>(world);
      for (std::size_t step = 0; step < 4; ++step) {
        std::vector<double> delivered(elements), magnitude(elements, 1e-5);
        for (const auto& rank : ranks) {
          const Ended& ended = rank[step];
          ASSERT_TRUE(ended.report.finite);
          ASSERT_EQ(ended.report.wire.sent_bytes,
                    ended.report.formula_bytes + ended.report.frame_header_bytes);
          const bool keeps = !ended.after.empty();
          for (std::size_t i = 0; i < elements; ++i) {
            const double in =
                static_cast<double>(ended.input[i]) + (keeps ? static_cast<double>(ended.before[i]) : 0.0);
            delivered[i] += in - (keeps ? static_cast<double>(ended.after[i]) : 0.0);
            magnitude[i] += std::fabs(in) + (keeps ? std::fabs(static_cast<double>(ended.after[i])) : 0.0);
          }
        }
        const bool conserves = !ranks[0][step].after.empty() || GetParam() == "dense" || GetParam() == "zen";
        for (std::size_t i = 0; i < elements && conserves; ++i) {
          const double mean = static_cast<double>(ranks[i / parts.all()][step].part[i % parts.all()]);
          ASSERT_NEAR(delivered[i], world * mean, 1e-5 * (magnitude[i] + std::fabs(mean)))
              << "step " << step << ", " << i;
        }
      }
    }
  }
}

TEST_P(ReduceScatter, ThreadsDoNotChangeABit) {
  const Parts parts{30'000, 3333};
  const auto one = run(GetParam(), 3, parts, 3, 1);
  const auto three = run(GetParam(), 3, parts, 3, 3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t step = 0; step < 3; ++step) {
      EXPECT_EQ(one[rank][step].part, three[rank][step].part);
      EXPECT_EQ(one[rank][step].after, three[rank][step].after);
    }
  }
}

/// All of a session's state but the number of its step.
std::string state_of(const Session& session) {
  StateWriter all;
  session.save(all);
  const StateReader reader(std::move(all));
  StateWriter rest;
  for (const std::string& name : reader.names("")) {
    if (name != "step") rest.copy(reader, name);
  }
  std::ostringstream text;
  rest.write(text);
  return text.str();
}

TEST_P(ReduceScatter, ABadValueInAnyPartUndoesTheStepOnAllRanks) {
  const Parts parts{100, 33};
  const std::size_t elements = 3 * parts.all();
  run_in_process(3, [&](Communicator& communicator) {
    Session session(GetParam(), communicator, {.reduce_scatter = true});
    session.add_bucket(layout_of(parts, 3));
    for (int step = 0; step < 7; ++step) {
      const std::string state = state_of(session);
      auto gradient = gradient_of(elements, step, communicator.rank());
      const bool spoilt = step % 2 == 1;
      // On rank 1, in the part of each owner in turn: also in what it need not send.
      if (spoilt && communicator.rank() == 1) {
        gradient[static_cast<std::size_t>(step / 2) * parts.all() + 50] =
            step == 3 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
      }
      EXPECT_EQ(session.synchronize(0, gradient).finite, !spoilt);
      EXPECT_EQ(std::all_of(gradient.begin(), gradient.end(), [](float x) { return std::isnan(x); }), spoilt);
      EXPECT_EQ(session.next_step(), !spoilt);
      if (spoilt) {
        EXPECT_EQ(state_of(session), state);
      }
    }
  });
}

TEST_P(ReduceScatter, ResumedRunContinuesBitForBit) {
  const Parts parts{400, 77};
  std::vector<std::string> saved(3);
  std::vector<std::vector<float>> straight(3), resumed(3);
  for (const bool resumes : {false, true}) {
    run_in_process(3, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      Session session(GetParam(), communicator, {.reduce_scatter = true});
      session.add_bucket(layout_of(parts, 3));
      if (resumes) {
        std::istringstream stream(saved[rank]);
        session.load(StateReader(stream));
      }
      for (int step = resumes ? 3 : 0; step < 6; ++step) {
        auto gradient = gradient_of(3 * parts.all(), step, communicator.rank());
        session.synchronize(0, gradient);
        session.next_step();
        const auto part = Span<const float>(gradient).subspan(rank * parts.all(), parts.all());
        auto& kept = resumes ? resumed[rank] : straight[rank];
        if (step >= 3) kept.insert(kept.end(), part.begin(), part.end());
        if (step != 2) continue;
        StateWriter writer;
        session.save(writer);
        std::ostringstream stream;
        writer.write(stream);
        saved[rank] = stream.str();
      }
    });
  }
  EXPECT_EQ(straight, resumed);
}

TEST_P(ReduceScatter, NothingAllocatesAfterTheFirstSteps) {
  std::atomic<std::uint64_t> allocated{0};
  run_in_process(3, [&](Communicator& communicator) {
    Session session(GetParam(), communicator, {.reduce_scatter = true});
    session.add_bucket(layout_of({3000, 500}, 3));
    const auto input = gradient_of(10'500, 0, communicator.rank());
    std::vector<float> gradient(input.size());
    std::uint64_t before = 0;
    for (int step = 0; step < 12; ++step) {
      communicator.barrier();
      if (step == 7 && communicator.rank() == 0) before = allocations_so_far();
      communicator.barrier();
      std::copy(input.begin(), input.end(), gradient.begin());
      session.synchronize(0, gradient);
      session.next_step();
    }
    communicator.barrier();
    if (communicator.rank() == 0) allocated = allocations_so_far() - before;
    communicator.barrier();
  });
  EXPECT_EQ(allocated.load(), 0u);
}

TEST_P(ReduceScatter, AMessageThatIsDamagedIsRefused) {
  const Parts parts{70, 30};
  // One message after the other of what rank 2 gets in the second step.
  std::size_t refused = 0;
  for (std::size_t message = 0;; ++message) {
    bool damaged = false;
    std::string error;
    const auto rank = [&](Communicator& plain) {
      std::size_t seen = 0;
      bool armed = false;
      const bool victim = plain.rank() == 2;
      TappedCommunicator communicator(plain, [&](const MessagePlace& place, Span<std::byte> bytes) {
        const bool counts = victim && armed && place.tag < Communicator::kFirstReservedTag && !bytes.empty();
        if (!counts || seen++ != message) return;
        bytes[bytes.size() / 2] ^= std::byte{0x10};
        damaged = true;
      });
      Session session(GetParam(), communicator, {.reduce_scatter = true});
      session.add_bucket(layout_of(parts, 3));
      for (int step = 0; step < 2; ++step) {
        armed = step == 1;
        auto gradient = gradient_of(3 * parts.all(), step, communicator.rank());
        try {
          session.synchronize(0, gradient);
        } catch (const CorruptFrame& refusal) {
          if (victim) error = refusal.what();
          throw;
        }
        session.next_step();
      }
    };
    try {
      run_in_process(3, rank, std::chrono::seconds(20));
    } catch (const std::exception&) {
      ++refused;
    }
    if (!damaged) break;
    EXPECT_NE(error, "") << "message " << message;
    EXPECT_EQ(refused, message + 1);
  }
  EXPECT_GE(refused, 4u);
}

INSTANTIATE_TEST_SUITE_P(Systems, ReduceScatter,
                         testing::Values("dense", "dense:feedback=on", "half", "half:feedback=on",
                                         "half:format=bf16:feedback=on", "ef_signsgd", "qsgd",
                                         "qsgd:bits=2:chunk=128:feedback=on", "nuqsgd:feedback=on",
                                         "casq:interval=3", "casq:bits=4:buckets=0.05:feedback=off",
                                         "casq:scope=bucket", "casq:clusters=own:interval=3", "zen",
                                         "zen:split=hash:feedback=on",
                                         "zen:scheme=push_pull:split=thresholds", "top_k:ratio=0.05+zen"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

TEST(ReduceScatterSums, OfDenseAreTheMeans) {
  const Parts parts{10, 3};
  const auto ranks = run("dense", 4, parts, 1);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    for (std::size_t i = 0; i < parts.all(); ++i) {
      float sum = 0;
      for (const auto& other : ranks) sum += other[0].input[rank * parts.all() + i] / 4;
      EXPECT_EQ(ranks[rank][0].part[i], sum);
    }
    EXPECT_EQ(ranks[rank][0].report.formula_bytes, 3 * 4 * parts.all());
  }
}

/// What a session of these options and this bucket is refused with.
std::string refusal(const std::string& spec, const std::vector<std::size_t>& buckets, bool rows = false) {
  std::string text;
  std::mutex mutex;
  run_in_process(2, [&](Communicator& communicator) {
    try {
      Session session(spec, communicator, {.reduce_scatter = true});
      for (const std::size_t elements : buckets)
        session.add_bucket({{"p" + std::to_string(elements), elements}});
      if (rows) session.add_rows("table", 4, 2);
    } catch (const std::invalid_argument& error) {
      const std::lock_guard lock(mutex);
      text = error.what();
    }
  });
  return text;
}

TEST(ReduceScatterRefuses, SystemsThatSendMeansToAllByName) {
  for (const std::string spec :
       {"marsit", "power_sgd", "top_k", "top_k+s2_reducer", "mc:momentum=0.5+top_k+zen", "auto"}) {
    const std::string text = refusal(spec, {});
    EXPECT_NE(text.find("cannot leave each rank its part"), std::string::npos) << spec << ": " << text;
    EXPECT_NE(text.find("dense, half, ef_signsgd"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal("casq", {2, 0, 4}), "");
  EXPECT_NE(refusal("casq", {2, 5}).find("5 elements has no 2 equal parts"), std::string::npos);
  EXPECT_NE(refusal("zen", {2}, true).find("leave out reduce_scatter"), std::string::npos);
}

TEST(ReduceScatterRefuses, RanksOfWhichSomeWantTheWholeMean) {
  std::array<std::string, 3> errors;
  run_in_process(3, [&](Communicator& communicator) {
    Session session("half", communicator, {.reduce_scatter = communicator.rank() == 1});
    session.add_bucket({{"p", 30}});
    std::vector<float> gradient(30, 1.0f);
    try {
      session.synchronize(0, gradient);
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(communicator.rank())] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("reduce-scatter"), std::string::npos) << error;
}

}  // namespace
}  // namespace thinwire::reduce_scatter_test

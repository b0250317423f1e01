#pragma once
// What tests of `auto` share: a training on a network whose time is computed, so every run decides alike.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/session.h"
#include "thinwire/virtual_network.h"

namespace thinwire::auto_test {

inline constexpr std::size_t kElements = 90'000;
inline constexpr int kWorkers = 4;
/// Half for 4 steps and power_sgd for 3. Where half is not far behind, 2, 3 and 3 on the way back, with dense
/// as the last one: the choice is made in step 15 and is used from the next one on.
inline const std::string kSpec = "auto:settle=2:steps=2:interval=4";
inline constexpr int kTrial = 16;

inline constexpr VirtualLink kSlow{.bytes_per_second = 1e6, .latency_seconds = 1e-4};
inline constexpr VirtualLink kFast{.bytes_per_second = 1e12, .latency_seconds = 1e-6};

/// Of this rank; others have another one. Matrices of rank `most` at most: with 16 nothing is left out that
/// the guard would mind.
inline std::vector<float> gradient_of(const Communicator& communicator, std::uint64_t step,
                                      std::size_t elements, std::size_t most) {
  std::vector<float> values(elements);
  std::uint32_t random =
      static_cast<std::uint32_t>(step) * 7919 + static_cast<std::uint32_t>(communicator.rank()) * 104729 + 1;
  for (std::size_t i = 0; i < elements; ++i) {
    random = random * 1664525u + 1013904223u;
    values[i] =
        i < most ? static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31f : values[i - most];
  }
  return values;
}

/// A training whose ranks hold different gradients.
class Training {
 public:
  explicit Training(VirtualCommunicator& communicator, const std::string& spec = kSpec, std::size_t rank = 16)
      : communicator_(communicator), session_(spec, communicator), rank_(rank) {
    session_.add_bucket({{"a", kElements / 3, 100}, {"b", kElements / 3, 300}, {"c", kElements / 3}});
    session_.add_bucket({{"d", 700}});
  }

  /// Of which rank gradients are from now on.
  void become(std::size_t rank) { rank_ = rank; }
  /// What gradients are multiplied by from now on.
  void scale(float factor) { factor_ = factor; }
  /// From now on one value in so many is not 0.
  void keep_one_in(std::size_t few) { few_ = few; }

  /// Steps that take `compute` seconds beside the network.
  void run(int steps, double compute) {
    for (int i = 0; i < steps; ++i) {
      communicator_.advance(compute);
      std::vector<float> large = gradient(kElements);
      std::vector<float> small = gradient(700);
      session_.synchronize(0, large);
      session_.synchronize(1, small);
      ASSERT_TRUE(session_.next_step());
      used_.push_back(session_.report(0).scheme);
    }
  }

  Session& session() { return session_; }
  /// Of each step.
  const std::vector<std::string>& used() const { return used_; }
  /// Steps with this system.
  std::ptrdiff_t count(const std::string& system) const {
    return std::count_if(used_.begin(), used_.end(),
                         [&](const auto& one) { return one.starts_with(system); });
  }
  std::string system() const { return used_.back().substr(0, used_.back().find(':')); }

 private:
  std::vector<float> gradient(std::size_t elements) {
    std::vector<float> values = gradient_of(communicator_, session_.step(), elements, rank_);
    for (std::size_t i = 0; i < elements; ++i) values[i] *= i % few_ == 0 ? factor_ : 0.0f;
    return values;
  }

  VirtualCommunicator& communicator_;
  Session session_;
  std::size_t rank_;
  std::size_t few_ = 1;
  float factor_ = 1;
  std::vector<std::string> used_;
};

/// How often candidates were tried again since something had changed, and not since it was time to.
inline std::size_t trials_for_a_reason(const Session& session) {
  std::size_t trials = 0;
  for (const Change& one : session.changes()) {
    const bool is_test = one.reason.find(" steps ago: ") != std::string::npos;
    trials += one.reason.ends_with("tried again") && !is_test ? 1 : 0;
  }
  return trials;
}

inline StateReader state_of(const Session& session) {
  StateWriter writer;
  session.save(writer);
  return StateReader(std::move(writer));
}

}  // namespace thinwire::auto_test

#pragma once
// What ranks tell each other when they look whether steps still take the time that a choice rests on.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "thinwire/span.h"

namespace thinwire {

constexpr std::size_t kMostInterval = 64;  ///< Steps from one look to the next.

/// Of this rank's steps since the last look.
struct StepTimes {
  std::array<double, kMostInterval> steps{};
  std::array<double, kMostInterval> inside{};  ///< In the exchange, codec included.
  std::size_t count = 0;

  void add(double step, double inside_step) {
    if (count == kMostInterval) return;
    steps[count] = step;
    inside[count++] = inside_step;
  }
};

/// What a rank tells at a look, in seconds of a step.
struct Seen {
  double step = 0;
  double inside = 0;
  double inside_before = 0;  ///< At the first calm look after the choice; negative: not known.
};

/// Of the rank that spends least in the exchange: it waits for no other one.
double least_inside(Span<const Seen> ranks);

/// A step of the chosen system, and its part in the exchange.
struct StepAndInside {
  double step = 0;
  double inside = 0;  ///< 0: not known.
};

/// What a candidate's step would take now that took `seconds` when the chosen one's took `before`. What the
/// exchange takes has changed as the chosen system's has, and the rest as its rest.
double expected_seconds(double seconds, const StepAndInside& before, const StepAndInside& now);

/// The same where only the network has changed: what it takes is `factor` times what it was.
double expected_over(double seconds, const StepAndInside& before, double factor);

/// What a message of a known size takes now and then, where the chosen system sends too little to show how
/// fast the link is.
struct LinkWatch {
  static constexpr int kFirst = 3;  ///< Of which the shortest is what later ones are compared with.
  double usual = 0;
  int seen = 0;     ///< So far, kFirst at most.
  int shorter = 0;  ///< Messages in a row that took less than half of it.

  bool is_known() const { return seen == kFirst; }
  void add(double seconds) {
    if (!is_known()) {
      usual = seen++ == 0 ? seconds : std::min(usual, seconds);
    } else {
      shorter = 2 * seconds < usual ? shorter + 1 : 0;
    }
  }
};

/// Whether steps take `change` seconds more or less and no rank spends more or less time in the exchange:
/// what training computes takes another time. False where the exchange's time is not known.
bool is_computing_alone(Span<const Seen> ranks, double change);

/// The rank that alone explains why steps take `change` seconds more or less: the others spend more or less
/// time in the exchange as they wait for it, and it does not.
std::optional<std::size_t> rank_that_changed(Span<const Seen> ranks, double change);

}  // namespace thinwire

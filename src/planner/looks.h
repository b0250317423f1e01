#pragma once
// What ranks tell each other when they look whether steps still take the time that a choice rests on.

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
  double inside_before = 0;  ///< At the choice; negative: not known.
};

/// The rank that alone explains why steps take `change` seconds more or less: the others spend more or less
/// time in the exchange as they wait for it, and it does not.
std::optional<std::size_t> rank_that_changed(Span<const Seen> ranks, double change);

}  // namespace thinwire

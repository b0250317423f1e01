#pragma once
// Levels that suit the data: where stochastic rounding of magnitudes r in [0, 1] to a few levels has the
// least expected variance,
//
//   V(levels) = sum over j of the integral of (c - r) (r - a) dF(r),  a = levels[j], c = levels[j + 1],
//
// F the distribution of r. Where levels leave out 0, levels[0] is rounded to with either sign, which adds the
// integral from 0 to levels[0] of levels[0]^2 - r^2. Source: F. Faghri et al., "Adaptive gradient
// quantization for data-parallel SGD", NeurIPS 2020: ALQ (section 3.1, coordinate descent) and AMQ
// (section 3.2, one multiplier). There F is a truncated normal fitted to the data; here it is a histogram of
// the data.

#include <array>

#include "thinwire/span.h"

namespace thinwire {

/// A distribution of magnitudes in [0, 1]: a histogram with 32 bins per power of two down to 2^-32, uniform
/// within a bin. No allocation.
class MagnitudeHistogram {
 public:
  /// magnitude: not negative; above 1 counts as 1. weight: not negative.
  void add(float magnitude, double weight);

  /// Call once after the last add() and before the functions below. Returns false when there is no weight, or
  /// no finite one.
  bool finish();

  /// Share of the weight at magnitudes up to x.
  double share_up_to(double x) const { return moments_up_to(x)[0]; }
  /// The smallest x with share_up_to(x) = share.
  double quantile(double share) const;
  /// The integral over [0, x] of 1, r and r^2 dF(r).
  std::array<double, 3> moments_up_to(double x) const;
  /// Levels whose distances follow density^(-1/3): nearly the best when there are many.
  void compand(Span<double> levels) const;

 private:
  static constexpr int kOctaves = 32;
  static constexpr int kBinsPerOctave = 32;
  /// The first bin is [0, 2^-kOctaves).
  static constexpr std::size_t kBins = kOctaves * kBinsPerOctave + 1;
  static std::size_t bin_of(float magnitude);
  static double edge(std::size_t bin);
  std::array<double, 3> part_of(std::size_t bin, double x) const;

  std::array<double, kBins> weights_{};
  std::array<std::array<double, 3>, kBins + 1> below_{};  // moments of the bins before
};

/// V(levels), levels ascending from 0 or more to 1.
double expected_variance(const MagnitudeHistogram& magnitudes, Span<const double> levels);

/// Whether the first level is 0.
enum class ZeroLevel : bool { without, with };

/// levels: becomes the best levels found by coordinate descent, ascending to 1; at most kMostFitted. Each
/// free level is moved to where V is least given its neighbours, F^-1(F(c) - integral from a to c of
/// (r - a) / (c - a) dF) between two of them, until none moves or a bound on the work is reached, from equal,
/// exponential and companded levels. V is no larger than that of equal levels or of powers of 1/2.
void fit_levels(const MagnitudeHistogram& magnitudes, ZeroLevel zero, Span<double> levels);

/// levels: becomes the powers of the multiplier in [0.01, 0.99] with the least V, which is returned, the
/// first one replaced by 0 if there is one.
double fit_multiplier(const MagnitudeHistogram& magnitudes, ZeroLevel zero, Span<double> levels);

/// multiplier^(s - j) for j = 0 to s; with a zero, that for j = 0.
void exponential_levels(double multiplier, ZeroLevel zero, Span<double> levels);

inline constexpr std::size_t kMostFitted = 128;

}  // namespace thinwire

#include "kernels/codes/level_fit.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace thinwire {
namespace {

void equal_levels(Span<double> levels) {
  const auto last = static_cast<double>(levels.size() - 1);
  for (std::size_t j = 0; j < levels.size(); ++j) levels[j] = static_cast<double>(j) / last;
}

/// Where V is least for the level above 0 when there is no zero, given the next one: the derivative of
/// V, 2 x F(x) - integral from x to c of (c - r) dF, grows with x.
double best_lowest(const MagnitudeHistogram& magnitudes, double c) {
  const auto above = magnitudes.moments_up_to(c);
  double low = 0;
  double high = c;
  for (int i = 0; i < 48; ++i) {
    const double x = (low + high) / 2;
    const auto below = magnitudes.moments_up_to(x);
    const double slope = 2 * x * below[0] - c * (above[0] - below[0]) + above[1] - below[1];
    (slope > 0 ? high : low) = x;
  }
  return (low + high) / 2;
}

/// Where V is least for a level between a and c.
double best_between(const MagnitudeHistogram& magnitudes, double a, double c, double current) {
  const auto below = magnitudes.moments_up_to(a);
  const auto above = magnitudes.moments_up_to(c);
  const double share = above[0] - below[0];
  if (!(share > 0)) return current;  // no data between its neighbours: any place is as good
  const double pulled = (above[1] - below[1] - a * share) / (c - a);
  return magnitudes.quantile(above[0] - pulled);
}

/// Sweeps of coordinate descent over the levels that may move.
void descend(const MagnitudeHistogram& magnitudes, ZeroLevel zero, Span<double> levels) {
  constexpr double kStill = 1e-7;
  const std::size_t sweeps = std::max<std::size_t>(20, 2000 / levels.size());
  const std::size_t first = zero == ZeroLevel::with ? 1 : 0;
  for (std::size_t sweep = 0; sweep < sweeps; ++sweep) {
    bool moved = false;
    for (std::size_t j = first; j + 1 < levels.size(); ++j) {
      const double a = j == 0 ? 0 : levels[j - 1];
      const double c = levels[j + 1];
      const double best = j == 0 ? best_lowest(magnitudes, c) : best_between(magnitudes, a, c, levels[j]);
      // Data at one point would pull neighbours together.
      const double margin = 1e-3 * (c - a);
      const double placed = std::clamp(best, a + margin, c - margin);
      moved = moved || std::fabs(placed - levels[j]) > kStill * levels[j];
      levels[j] = placed;
    }
    if (!moved) return;
  }
}

}  // namespace

std::size_t MagnitudeHistogram::bin_of(float magnitude) {
  if (!(magnitude < 1.0f)) return kBins - 1;
  if (magnitude < 0x1p-32f) return 0;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &magnitude, sizeof bits);
  // Exponent and the first 5 digits of the mantissa.
  return (bits >> 18) - (static_cast<std::uint32_t>(127 - kOctaves) << 5) + 1;
}

double MagnitudeHistogram::edge(std::size_t bin) {
  if (bin == 0) return 0;
  const int above = static_cast<int>(bin) - 1;
  const double mantissa = 1 + static_cast<double>(above % kBinsPerOctave) / kBinsPerOctave;
  return std::ldexp(mantissa, above / kBinsPerOctave - kOctaves);
}

void MagnitudeHistogram::add(float magnitude, double weight) {
  weights_[bin_of(magnitude)] += weight;
}

bool MagnitudeHistogram::finish() {
  double total = 0;
  for (const double weight : weights_) total += weight;
  if (!std::isfinite(total) || !(total > 0)) return false;
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    weights_[bin] /= total;
    const auto whole = part_of(bin, edge(bin + 1));
    for (std::size_t k = 0; k < 3; ++k) below_[bin + 1][k] = below_[bin][k] + whole[k];
  }
  return true;
}

std::array<double, 3> MagnitudeHistogram::part_of(std::size_t bin, double x) const {
  const double low = edge(bin);
  const double share = weights_[bin] * (x - low) / (edge(bin + 1) - low);
  return {share, share * (low + x) / 2, share * (low * low + low * x + x * x) / 3};
}

std::array<double, 3> MagnitudeHistogram::moments_up_to(double x) const {
  if (x >= 1) return below_[kBins];
  std::size_t bin = bin_of(static_cast<float>(x));
  while (bin > 0 && x < edge(bin)) --bin;  // x may have been rounded up
  const auto part = part_of(bin, x);
  const auto& below = below_[bin];
  return {below[0] + part[0], below[1] + part[1], below[2] + part[2]};
}

double MagnitudeHistogram::quantile(double share) const {
  const auto after = std::lower_bound(below_.begin() + 1, below_.end(), share,
                                      [](const auto& moments, double s) { return moments[0] < s; });
  if (after == below_.end()) return 1;
  const auto bin = static_cast<std::size_t>(after - below_.begin()) - 1;
  if (!(weights_[bin] > 0)) return edge(bin);
  const double inside = std::clamp((share - below_[bin][0]) / weights_[bin], 0.0, 1.0);
  return edge(bin) + inside * (edge(bin + 1) - edge(bin));
}

void MagnitudeHistogram::compand(Span<double> levels) const {
  // The integral of density^(1/3), whose equal shares the levels bound.
  auto grown = [&](std::size_t bin) {
    const double width = edge(bin + 1) - edge(bin);
    return std::cbrt(weights_[bin] / width) * width;
  };
  double total = 0;
  for (std::size_t bin = 0; bin < kBins; ++bin) total += grown(bin);
  const double step = total / static_cast<double>(levels.size() - 1);
  double sum = 0;
  std::size_t j = 1;
  levels[0] = 0;
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    const double more = grown(bin);
    while (j + 1 < levels.size() && static_cast<double>(j) * step <= sum + more && more > 0) {
      const double inside = (static_cast<double>(j) * step - sum) / more;
      levels[j++] = edge(bin) + inside * (edge(bin + 1) - edge(bin));
    }
    sum += more;
  }
  for (; j < levels.size(); ++j) levels[j] = 1;
}

double expected_variance(const MagnitudeHistogram& magnitudes, Span<const double> levels) {
  auto below = magnitudes.moments_up_to(levels[0]);
  double sum = levels[0] * levels[0] * below[0] - below[2];
  for (std::size_t j = 0; j + 1 < levels.size(); ++j) {
    const double a = levels[j];
    const double c = levels[j + 1];
    const auto above = magnitudes.moments_up_to(c);
    sum += (a + c) * (above[1] - below[1]) - (above[2] - below[2]) - a * c * (above[0] - below[0]);
    below = above;
  }
  return sum;
}

void exponential_levels(double multiplier, ZeroLevel zero, Span<double> levels) {
  double power = 1;
  for (std::size_t j = levels.size(); j-- > 0; power *= multiplier) levels[j] = power;
  if (zero == ZeroLevel::with) levels[0] = 0;
}

void fit_levels(const MagnitudeHistogram& magnitudes, ZeroLevel zero, Span<double> levels) {
  std::array<double, kMostFitted + 1> storage{};
  // Starts are made with a zero, which is then left out.
  const std::size_t extra = zero == ZeroLevel::with ? 0 : 1;
  const Span<double> start(storage.data(), levels.size() + extra);
  const Span<double> tried = start.subspan(extra, levels.size());
  double least = 0;
  for (int from = 0; from < 3; ++from) {
    if (from == 0) equal_levels(start);
    if (from == 1) exponential_levels(0.5, ZeroLevel::with, start);
    if (from == 2) magnitudes.compand(start);
    descend(magnitudes, zero, tried);
    const double variance = expected_variance(magnitudes, tried);
    if (from != 0 && !(variance < least)) continue;
    least = variance;
    std::ranges::copy(tried, levels.begin());
  }
}

double fit_multiplier(const MagnitudeHistogram& magnitudes, ZeroLevel zero, Span<double> levels) {
  auto variance = [&](double multiplier) {
    exponential_levels(multiplier, zero, levels);
    return expected_variance(magnitudes, levels);
  };
  // V need not have one valley only: the best of a grid first, then golden section around it.
  constexpr int kSteps = 98;
  int best = 1;
  double least = variance(0.01);
  for (int i = 2; i <= kSteps + 1; ++i) {
    const double v = variance(0.01 * i);
    if (v < least) {
      least = v;
      best = i;
    }
  }
  double low = std::max(0.01, 0.01 * (best - 1));
  double high = std::min(0.99, 0.01 * (best + 1));
  const double golden = (std::sqrt(5.0) - 1) / 2;
  for (int i = 0; i < 30; ++i) {
    const double left = high - golden * (high - low);
    const double right = low + golden * (high - low);
    if (variance(left) <= variance(right)) {
      high = right;
    } else {
      low = left;
    }
  }
  const double found = (low + high) / 2;
  const double multiplier = variance(found) <= least ? found : 0.01 * best;
  variance(multiplier);
  return multiplier;
}

}  // namespace thinwire

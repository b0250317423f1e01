#include "kernels/codes/kmeans.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/codes/level_fit.h"
#include "kernels/device/on_device.h"

namespace thinwire {
namespace {

constexpr std::size_t kEntropyBins = 256;
/// Elements whose norm ALQ scales by, unless told otherwise.
constexpr double kAlqChunk = 8192;

}  // namespace

/// Non-empty bins of one sign by ascending magnitude, as prefix sums: [size + 1].
struct ClusterFinder::Prefixes {
  Span<double> count;
  Span<double> sum;
  Span<double> squares;
  std::size_t size = 0;

  double counted(std::size_t first, std::size_t last) const { return count[last] - count[first]; }
  double magnitude(std::size_t bin) const { return (sum[bin + 1] - sum[bin]) / counted(bin, bin + 1); }
  /// Sum of squared distances of bins [first, last) to their mean.
  double spread(std::size_t first, std::size_t last) const {
    const double s = sum[last] - sum[first];
    return std::max(0.0, squares[last] - squares[first] - s * s / counted(first, last));
  }
};

namespace {

/// Best cuts of sorted bins into clusters. best[j]: least spread of the first j bins in one cluster fewer.
/// The best last cut moves up with j, so halving the range of j halves that of the cuts.
template <class Prefixes>
class Cuts {
 public:
  Cuts(const Prefixes& prefixes, Span<const double> best, Span<double> next, Span<std::uint32_t> cut)
      : prefixes_(prefixes), best_(best), next_(next), cut_(cut) {}

  void find(std::size_t first, std::size_t last, std::size_t least_cut, std::size_t most_cut) {
    if (first > last) return;
    const std::size_t j = first + (last - first) / 2;
    double least = std::numeric_limits<double>::infinity();
    std::size_t chosen = least_cut;
    for (std::size_t c = least_cut; c <= std::min(most_cut, j - 1); ++c) {
      const double spread = best_[c] + prefixes_.spread(c, j);
      if (spread < least) {
        least = spread;
        chosen = c;
      }
    }
    next_[j] = least;
    cut_[j] = static_cast<std::uint32_t>(chosen);
    if (j > first) find(first, j - 1, least_cut, chosen);
    find(j + 1, last, chosen, most_cut);
  }

 private:
  const Prefixes& prefixes_;
  Span<const double> best_;
  Span<double> next_;
  Span<std::uint32_t> cut_;
};

/// Entropy of bins [first, last) over bins of equal width; width 0: all are in one.
template <class Prefixes>
double entropy_of(const Prefixes& prefixes, std::size_t first, std::size_t last, double width) {
  if (width <= 0) return 0;
  const double total = prefixes.counted(first, last);
  double entropy = 0;
  std::size_t begin = first;
  auto place = [&](std::size_t bin) {
    return std::floor((prefixes.sum[bin + 1] - prefixes.sum[bin]) / prefixes.counted(bin, bin + 1) / width);
  };
  for (std::size_t bin = first; bin < last; ++bin) {
    if (bin + 1 < last && place(bin + 1) == place(bin)) continue;
    const double share = prefixes.counted(begin, bin + 1) / total;
    entropy -= share * std::log2(share);
    begin = bin + 1;
  }
  return entropy;
}

/// ends[level]: one behind the last bin that is nearest to this centre.
template <class Prefixes>
void cut_between(const Prefixes& prefixes, Span<const double> centres, Span<std::size_t> ends) {
  std::size_t bin = 0;
  for (std::size_t level = 0; level + 1 < centres.size(); ++level) {
    const double middle = (centres[level] + centres[level + 1]) / 2;
    while (bin < prefixes.size && prefixes.magnitude(bin) < middle) ++bin;
    ends[level] = bin;
  }
  ends[centres.size() - 1] = prefixes.size;
}

}  // namespace

ClusterFinder::ClusterFinder(Executor& executor, Workspace& workspace)
    : executor_(executor),
      bins_(workspace.take<Bin>(2 * kBins)),
      sums_(workspace.take<double>(6 * (kBins + 1))),
      best_(workspace.take<double>(2 * (kBins + 1))),
      cuts_(workspace.take<std::uint32_t>(kMostClusters / 2 * (kBins + 1))) {
  std::fill(bins_.begin(), bins_.end(), Bin{0, 0.0});
}

/// Returns whether all sampled elements are finite.
bool ClusterFinder::fill(Span<const float> gradient, Span<const float> residual, const Sample& sample) {
  used_ = {};
  if (any_on_device(gradient, residual)) {
    count_on_device(gradient, residual, sample);
  } else {
    count(gradient, residual, sample);
  }
  // The bins of infinity and NaN come last.
  constexpr std::size_t kInfinity = 0x7f800000u >> kBinShift;
  return used_[0].last <= kInfinity && used_[1].last <= kInfinity;
}

void ClusterFinder::count(Span<const float> gradient, Span<const float> residual, const Sample& sample) {
  const std::size_t n = sample.elements;
  const std::size_t strata = sample.strata();
  std::array<std::uint32_t, 2> least = {kBins, kBins};
  std::array<std::uint32_t, 2> most{};
  // Where the samples of a few strata lie is worked out ahead, so that their cache lines arrive together.
  std::array<std::size_t, 16> begins{};
  for (std::size_t first = 0; first < strata; first += begins.size()) {
    const std::size_t runs = std::min(begins.size(), strata - first);
    for (std::size_t k = 0; k < runs; k += 4) {
      const PhiloxCounter words = sample.random_of((first + k) / 4);
      for (std::size_t w = 0; w < 4; ++w) {
        begins[k + w] = sample.begin(first + k + w, words[w]);
        if (begins[k + w] >= n) continue;
        __builtin_prefetch(gradient.data() + begins[k + w]);
        if (!residual.empty()) __builtin_prefetch(residual.data() + begins[k + w]);
      }
    }
    for (std::size_t k = 0; k < runs; ++k) {
      for (std::size_t i = begins[k]; i < std::min(n, begins[k] + kSampleRun); ++i) {
        const float p = residual.empty() ? gradient[i] : gradient[i] + residual[i];
        const float magnitude = std::fabs(p);
        const std::uint32_t bin = std::bit_cast<std::uint32_t>(magnitude) >> kBinShift;
        const std::size_t sign = p < 0 ? 1 : 0;
        least[sign] = std::min(least[sign], bin);
        most[sign] = std::max(most[sign], bin + 1);
        ++bins_[sign * kBins + bin].count;
        bins_[sign * kBins + bin].sum += static_cast<double>(magnitude);
      }
    }
  }
  for (std::size_t sign = 0; sign < 2; ++sign) {
    if (most[sign] != 0) used_[sign] = {least[sign], most[sign]};
  }
}

void ClusterFinder::count_on_device(Span<const float> gradient, Span<const float> residual,
                                    const Sample& sample) {
#ifdef THINWIRE_HAS_CUDA
  cuda::count_sample(executor_, gradient, residual, sample,
                     [&](std::size_t sign, std::size_t first, Span<const cuda::BinCount> counts) {
                       used_[sign] = {first, first + counts.size()};
                       for (std::size_t i = 0; i < counts.size(); ++i) {
                         // What the magnitudes of a bin are as integers, less their low bits, and the power
                         // of two that belongs to it.
                         constexpr std::uint64_t kMantissaBits = 23 - kBinShift;
                         const std::uint64_t bin = first + i;
                         const std::uint64_t exponent = bin >> kMantissaBits;
                         const std::uint64_t hidden = exponent == 0 ? 0 : 1;
                         const std::uint64_t least =
                             ((hidden << kMantissaBits) + (bin & ((1 << kMantissaBits) - 1))) << kBinShift;
                         const auto sum = static_cast<double>(counts[i].count * least + counts[i].low);
                         const int power = static_cast<int>(exponent + (1 - hidden)) - 150;
                         bins_[sign * kBins + bin] = {counts[i].count, std::ldexp(sum, power)};
                       }
                     });
#else
  (void)executor_, (void)gradient, (void)residual, (void)sample;
  throw_without_cuda();
#endif
}

/// Turns a sign's bins into sums and empties them.
ClusterFinder::Prefixes ClusterFinder::drain(std::size_t sign) {
  const auto bins = bins_.subspan(sign * kBins + used_[sign].first, used_[sign].last - used_[sign].first);
  Prefixes prefixes;
  for (const Bin& bin : bins) prefixes.size += bin.count != 0;
  const auto own = sums_.subspan(3 * sign * (kBins + 1), 3 * (kBins + 1));
  prefixes.count = own.first(kBins + 1);
  prefixes.sum = own.subspan(kBins + 1, kBins + 1);
  prefixes.squares = own.subspan(2 * (kBins + 1), kBins + 1);
  prefixes.count[0] = prefixes.sum[0] = prefixes.squares[0] = 0;
  std::size_t i = 0;
  for (Bin& bin : bins) {
    if (bin.count == 0) continue;
    const auto count = static_cast<double>(bin.count);
    prefixes.count[i + 1] = prefixes.count[i] + count;
    prefixes.sum[i + 1] = prefixes.sum[i] + bin.sum;
    prefixes.squares[i + 1] = prefixes.squares[i] + bin.sum * bin.sum / count;
    ++i;
    bin = {0, 0.0};
  }
  return prefixes;
}

/// ends[level]: one behind the last bin of each level, `levels` of them, at most as many as there are bins.
void ClusterFinder::cut_into_levels(const Prefixes& prefixes, std::size_t levels, Span<std::size_t> ends) {
  const std::size_t n = prefixes.size;
  auto best = best_.first(n + 1);
  auto next = best_.subspan(kBins + 1, n + 1);
  const auto cuts = cuts_.first(levels * (n + 1));
  for (std::size_t j = 1; j <= n; ++j) best[j] = prefixes.spread(0, j);
  for (std::size_t level = 1; level < levels; ++level) {
    Cuts(prefixes, best, next, cuts.subspan(level * (n + 1), n + 1)).find(level + 1, n, level, n - 1);
    std::swap(best, next);
  }
  std::size_t end = n;
  for (std::size_t level = levels; level-- > 0;) {
    ends[level] = end;
    if (level > 0) end = cuts[level * (n + 1) + end];
  }
}

/// levels: ascending, of p and not of p over its norm.
void ClusterFinder::find_alq_levels(const std::array<Prefixes, 2>& signs, Span<double> levels) {
  double count = 0;
  double squares = 0;
  for (const Prefixes& prefixes : signs) {
    if (prefixes.size == 0) continue;
    count += prefixes.count[prefixes.size];
    squares += prefixes.squares[prefixes.size];
  }
  const double norm = std::sqrt(squares / count * kAlqChunk);
  MagnitudeHistogram magnitudes;
  for (const Prefixes& prefixes : signs) {
    for (std::size_t bin = 0; bin < prefixes.size; ++bin) {
      magnitudes.add(static_cast<float>(prefixes.magnitude(bin) / norm), prefixes.counted(bin, bin + 1));
    }
  }
  magnitudes.finish();
  fit_levels(magnitudes, ZeroLevel::without, levels);
  for (double& level : levels) level *= norm;
}

SampleKind ClusterFinder::find(Span<const float> gradient, Span<const float> residual, std::size_t bits,
                               double fraction, std::uint32_t seed, PerCluster<Cluster>& clusters,
                               CentreKind kind) {
  const bool finite = fill(gradient, residual, Sample(gradient.size(), fraction, seed));
  const std::array<Prefixes, 2> signs = {drain(0), drain(1)};
  if (!finite) return SampleKind::not_finite;
  std::array<double, 2> largest{};
  double total = 0;
  for (std::size_t sign = 0; sign < 2; ++sign) {
    const Prefixes& prefixes = signs[sign];
    if (prefixes.size == 0) continue;
    const std::size_t last = prefixes.size;
    largest[sign] = (prefixes.sum[last] - prefixes.sum[last - 1]) / prefixes.counted(last - 1, last);
    total += prefixes.count[last];
  }
  if (largest[0] == 0 && largest[1] == 0) return SampleKind::all_zero;
  const double bin_width = (largest[0] + largest[1]) / kEntropyBins;
  const std::size_t levels = std::size_t{1} << (bits - 1);
  std::array<double, kMostClusters / 2> given{};
  if (kind == CentreKind::alq) find_alq_levels(signs, Span<double>(given).first(levels));
  for (std::size_t sign = 0; sign < 2; ++sign) {
    const Prefixes& prefixes = signs[sign];
    if (largest[sign] == 0) continue;
    const std::size_t used = kind == CentreKind::alq ? levels : std::min(levels, prefixes.size);
    std::array<std::size_t, kMostClusters / 2> ends{};
    if (kind == CentreKind::alq) {
      cut_between(prefixes, Span<const double>(given).first(levels), ends);
    } else {
      cut_into_levels(prefixes, used, ends);
    }
    std::size_t first = 0;
    for (std::size_t level = 0; level < levels; ++level) {
      Cluster& cluster = clusters[2 * level + sign];
      if (level >= used) {
        cluster = {clusters[2 * (used - 1) + sign].centre, 0, 0, 0};
        continue;
      }
      const double count = prefixes.counted(first, ends[level]);
      if (kind == CentreKind::alq && count == 0) {
        cluster = {sign == 0 ? given[level] : -given[level], 0, 0, 0};
        continue;
      }
      const double mean = (prefixes.sum[ends[level]] - prefixes.sum[first]) / count;
      cluster = {sign == 0 ? mean : -mean, count / total, prefixes.spread(first, ends[level]) / count,
                 entropy_of(prefixes, first, ends[level], bin_width)};
      if (kind == CentreKind::alq) cluster.centre = sign == 0 ? given[level] : -given[level];
      first = ends[level];
    }
  }
  for (std::size_t sign = 0; sign < 2; ++sign) {
    // Zeros alone say nothing of what may come on their side.
    if (largest[sign] != 0) continue;
    for (std::size_t level = 0; level < levels; ++level) {
      const Cluster& other = clusters[2 * level + 1 - sign];
      clusters[2 * level + sign] = {-other.centre, 0, other.variance, other.entropy};
    }
  }
  return SampleKind::usable;
}

}  // namespace thinwire

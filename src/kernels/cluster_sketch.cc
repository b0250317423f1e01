#include "kernels/cluster_sketch.h"

#include <algorithm>
#include <cmath>

#include "kernels/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cluster_sketch.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/bits-inl.h"

#ifndef THINWIRE_KERNELS_CLUSTER_SKETCH_ONCE
#define THINWIRE_KERNELS_CLUSTER_SKETCH_ONCE
namespace thinwire {

inline constexpr std::size_t kClusterRun = 64;

/// The place in each cluster's array where a run starts.
class RunStarts {
 public:
  explicit RunStarts(const ClusterSketch& sketch) : sketch_(sketch) {}

  void of(std::size_t run, PerCluster<std::uint32_t>& starts) {
    if (run / 4 != block_ || !known_) {
      words_ = sketch_.stream.block(static_cast<std::uint32_t>(run / 4), 0);
      block_ = run / 4;
      known_ = true;
    }
    const std::uint64_t x = words_[run % 4];
    for (std::size_t c = 0; c < sketch_.clusters(); ++c) {
      starts[c] = static_cast<std::uint32_t>((x * sketch_.sizes[c]) >> 32);
    }
  }

 private:
  const ClusterSketch& sketch_;
  PhiloxCounter words_{};
  std::size_t block_ = 0;
  bool known_ = false;
};

/// Sums and counts of the buckets, each cluster's array followed by room for the end of a run that starts in
/// its last bucket.
struct ClusterSums {
  float* sums;
  float* counts;
  PerCluster<std::size_t> begins;
};

}  // namespace thinwire
#endif

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Planes of the codes of one run, p [64].
template <std::size_t kBits>
void CodeRun(const ClusterSketch& sketch, const float* HWY_RESTRICT p, std::uint64_t* HWY_RESTRICT planes) {
  constexpr std::size_t kLevels = (std::size_t{1} << kBits) / 2;
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  std::uint64_t words[kBits] = {};
  for (std::size_t t = 0; t < kClusterRun; t += hn::Lanes(d)) {
    const auto value = hn::Load(d, p + t);
    const auto negative = hn::Lt(value, hn::Zero(d));
    const auto magnitude = hn::Abs(value);
    words[0] |= mask_to_word(d, negative, t);
    auto reaches = [&](std::size_t j) HWY_ATTR {
      return hn::Ge(magnitude, hn::IfThenElse(negative, hn::Set(d, sketch.thresholds[1][j]),
                                              hn::Set(d, sketch.thresholds[0][j])));
    };
    if constexpr (kBits == 2) {
      words[1] |= mask_to_word(d, reaches(0), t);
    } else if constexpr (kBits > 2) {
      auto level = hn::Zero(du);
      for (std::size_t j = 0; j + 1 < kLevels; ++j) {
        // A mask is all ones, which is -1.
        level = hn::Sub(level, hn::BitCast(du, hn::VecFromMask(d, reaches(j))));
      }
      for (std::size_t k = 1; k < kBits; ++k) {
        const auto bit = hn::TestBit(level, hn::Set(du, 1u << (k - 1)));
        words[k] |= mask_to_word(d, hn::RebindMask(d, bit), t);
      }
    }
  }
  for (std::size_t k = 0; k < kBits; ++k) planes[k] = words[k];
}

/// Elements [begin, end); begin is a multiple of 64.
template <std::size_t kBits>
void EncodeRange(const ClusterSketch& sketch, const float* HWY_RESTRICT gradient,
                 const float* HWY_RESTRICT residual, std::size_t begin, std::size_t end,
                 std::uint64_t* HWY_RESTRICT codes, const ClusterSums& target) {
  constexpr std::size_t kClusters = std::size_t{1} << kBits;
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(d, 1.0f);
  RunStarts starts_of(sketch);
  PerCluster<std::uint32_t> starts{};
  HWY_ALIGN float p[kClusterRun];
  for (std::size_t at = begin; at < end; at += kClusterRun) {
    starts_of.of(at / kClusterRun, starts);
    const std::size_t valid = std::min(kClusterRun, end - at);
    const float* g = gradient + at;
    const float* r = residual == nullptr ? nullptr : residual + at;
    if (valid < kClusterRun) {
      for (std::size_t t = 0; t < kClusterRun; ++t) p[t] = 0;
      for (std::size_t t = 0; t < valid; ++t) p[t] = r == nullptr ? g[t] : g[t] + r[t];
    } else {
      for (std::size_t t = 0; t < kClusterRun; t += lanes) {
        const auto value = hn::LoadU(d, g + t);
        hn::Store(r == nullptr ? value : hn::Add(value, hn::LoadU(d, r + t)), d, p + t);
      }
    }
    std::uint64_t planes[kBits];
    CodeRun<kBits>(sketch, p, planes);
    for (std::size_t k = 0; k < kBits; ++k) codes[at / kClusterRun * kBits + k] = planes[k];
    const std::uint64_t present = valid == kClusterRun ? ~std::uint64_t{0} : (std::uint64_t{1} << valid) - 1;
    for (std::size_t c = 0; c < kClusters; ++c) {
      std::uint64_t members = present;
      for (std::size_t k = 0; k < kBits; ++k) members &= ((c >> k) & 1) != 0 ? planes[k] : ~planes[k];
      if (members == 0) continue;
      float* sums = target.sums + target.begins[c] + starts[c];
      float* counts = target.counts + target.begins[c] + starts[c];
      for (std::size_t t = 0; t < kClusterRun; t += lanes) {
        const auto member = word_to_mask(d, members, t);
        const auto sum = hn::LoadU(d, sums + t);
        const auto count = hn::LoadU(d, counts + t);
        hn::StoreU(hn::Add(sum, hn::IfThenElseZero(member, hn::Load(d, p + t))), d, sums + t);
        hn::StoreU(hn::Add(count, hn::IfThenElseZero(member, one)), d, counts + t);
      }
    }
  }
}

template <std::size_t kBits>
void DecodeRange(const ClusterSketch& sketch, const float* HWY_RESTRICT means,
                 const std::uint64_t* HWY_RESTRICT codes, std::size_t first, bool add, std::size_t count,
                 float* HWY_RESTRICT values) {
  constexpr std::size_t kClusters = std::size_t{1} << kBits;
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  RunStarts starts_of(sketch);
  PerCluster<std::uint32_t> starts{};
  PerCluster<std::size_t> begins{};
  for (std::size_t c = 1; c < kClusters; ++c) begins[c] = begins[c - 1] + sketch.sizes[c - 1];
  HWY_ALIGN float wrapped[kClusters][kClusterRun];
  HWY_ALIGN float rest[kClusterRun];
  for (std::size_t at = 0; at < count; at += kClusterRun) {
    starts_of.of((first + at) / kClusterRun, starts);
    const float* window[kClusters];
    for (std::size_t c = 0; c < kClusters; ++c) {
      const std::size_t size = sketch.sizes[c];
      window[c] = means + begins[c] + starts[c];
      if (starts[c] + kClusterRun <= size) continue;
      std::size_t place = starts[c];
      for (std::size_t t = 0; t < kClusterRun; ++t) {
        wrapped[c][t] = means[begins[c] + place];
        place = place + 1 == size ? 0 : place + 1;
      }
      window[c] = wrapped[c];
    }
    const std::uint64_t* planes = codes + at / kClusterRun * kBits;
    const std::size_t valid = std::min(kClusterRun, count - at);
    float* out = values + at;
    if (valid < kClusterRun) {
      for (std::size_t t = 0; t < valid; ++t) rest[t] = out[t];
      for (std::size_t t = valid; t < kClusterRun; ++t) rest[t] = 0;
      out = rest;
    }
    for (std::size_t t = 0; t < kClusterRun; t += lanes) {
      hn::Vec<FloatTag> choice[kClusters];
      for (std::size_t c = 0; c < kClusters; ++c) choice[c] = hn::LoadU(d, window[c] + t);
      std::size_t left = kClusters;
      for (std::size_t k = 0; k < kBits; ++k) {
        const auto set = word_to_mask(d, planes[k], t);
        left /= 2;
        for (std::size_t c = 0; c < left; ++c) {
          choice[c] = hn::IfThenElse(set, choice[2 * c + 1], choice[2 * c]);
        }
      }
      const auto mean = add ? hn::Add(hn::LoadU(d, out + t), choice[0]) : choice[0];
      hn::StoreU(mean, d, out + t);
    }
    if (valid < kClusterRun) std::copy_n(rest, valid, values + at);
  }
}

void EncodeClusters(const ClusterSketch& sketch, const float* HWY_RESTRICT gradient,
                    const float* HWY_RESTRICT residual, std::size_t begin, std::size_t end,
                    std::uint64_t* HWY_RESTRICT codes, const ClusterSums& target) {
  switch (sketch.bits) {
    case 1:
      return EncodeRange<1>(sketch, gradient, residual, begin, end, codes, target);
    case 2:
      return EncodeRange<2>(sketch, gradient, residual, begin, end, codes, target);
    case 3:
      return EncodeRange<3>(sketch, gradient, residual, begin, end, codes, target);
    default:
      return EncodeRange<4>(sketch, gradient, residual, begin, end, codes, target);
  }
}

void DecodeClusters(const ClusterSketch& sketch, const float* HWY_RESTRICT means,
                    const std::uint64_t* HWY_RESTRICT codes, std::size_t first, bool add, std::size_t count,
                    float* HWY_RESTRICT values) {
  switch (sketch.bits) {
    case 1:
      return DecodeRange<1>(sketch, means, codes, first, add, count, values);
    case 2:
      return DecodeRange<2>(sketch, means, codes, first, add, count, values);
    case 3:
      return DecodeRange<3>(sketch, means, codes, first, add, count, values);
    default:
      return DecodeRange<4>(sketch, means, codes, first, add, count, values);
  }
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {
namespace {

/// Buckets are summed apart for each slab of the elements, so that threads need not agree on an order. Their
/// number depends on the size alone. Counts are floats: a slab is short enough for them to stay exact.
std::size_t slab_elements(std::size_t elements) {
  constexpr std::size_t kShortest = std::size_t{1} << 20;
  constexpr std::size_t kLongest = std::size_t{1} << 28;
  const std::size_t eighth = (elements / 8 + kClusterRun) / kClusterRun * kClusterRun;
  return std::clamp(eighth, kShortest, kLongest);
}

}  // namespace

HWY_EXPORT(EncodeClusters);
HWY_EXPORT(DecodeClusters);

std::size_t ClusterSketch::buckets() const {
  std::size_t total = 0;
  for (std::size_t c = 0; c < clusters(); ++c) total += sizes[c];
  return total;
}

void set_thresholds(ClusterSketch& sketch, const PerCluster<float>& centres) {
  for (std::size_t sign = 0; sign < 2; ++sign) {
    for (std::size_t level = 0; level + 1 < sketch.levels(); ++level) {
      const float lower = std::fabs(centres[2 * level + sign]);
      const float upper = std::fabs(centres[2 * (level + 1) + sign]);
      sketch.thresholds[sign][level] = lower + (upper - lower) / 2;
    }
  }
}

bool encode_clusters(Executor& executor, Workspace& workspace, const ClusterSketch& sketch,
                     Span<const float> gradient, Span<const float> residual, Span<std::uint64_t> codes,
                     Span<float> means) {
  const std::size_t n = gradient.size();
  const std::size_t slab = slab_elements(n);
  const std::size_t slabs = (n + slab - 1) / slab;
  const std::size_t clusters = sketch.clusters();
  PerCluster<std::size_t> begins{};
  std::size_t cells = 0;
  for (std::size_t c = 0; c < clusters; ++c) {
    begins[c] = cells;
    cells += sketch.sizes[c] + kClusterRun;
  }
  const auto sums = workspace.take<float>(slabs * cells);
  const auto counts = workspace.take<float>(slabs * cells);
  executor.parallel_for(slabs, 1, [&](std::size_t from, std::size_t to) {
    for (std::size_t s = from; s < to; ++s) {
      std::fill_n(sums.data() + s * cells, cells, 0.0f);
      std::fill_n(counts.data() + s * cells, cells, 0.0f);
      HWY_DYNAMIC_DISPATCH(EncodeClusters)
      (sketch, gradient.data(), residual.empty() ? nullptr : residual.data(), s * slab,
       std::min(n, (s + 1) * slab), codes.data(),
       {sums.data() + s * cells, counts.data() + s * cells, begins});
    }
  });
  bool finite = true;
  std::size_t mean = 0;
  for (std::size_t c = 0; c < clusters; ++c) {
    const std::size_t size = sketch.sizes[c];
    for (std::size_t bucket = 0; bucket < size; ++bucket, ++mean) {
      double sum = 0;
      double count = 0;
      for (std::size_t s = 0; s < slabs; ++s) {
        // A run that starts near the end goes on at the beginning.
        for (std::size_t place = bucket; place < size + kClusterRun; place += size) {
          sum += static_cast<double>(sums[s * cells + begins[c] + place]);
          count += static_cast<double>(counts[s * cells + begins[c] + place]);
        }
      }
      means[mean] = count > 0 ? static_cast<float>(sum / count) : 0.0f;
      finite = finite && std::isfinite(means[mean]);
    }
  }
  return finite;
}

void decode_clusters(const ClusterSketch& sketch, Span<const float> means, Span<const std::uint64_t> codes,
                     std::size_t first, bool add, Span<float> values) {
  HWY_DYNAMIC_DISPATCH(DecodeClusters)
  (sketch, means.data(), codes.data(), first, add, values.size(), values.data());
}

}  // namespace thinwire
#endif

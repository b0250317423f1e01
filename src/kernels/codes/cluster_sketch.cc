#include "kernels/codes/cluster_sketch.h"

#include <algorithm>
#include <cmath>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codes/cluster_sketch.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

#ifndef THINWIRE_KERNELS_CLUSTER_SKETCH_ONCE
#define THINWIRE_KERNELS_CLUSTER_SKETCH_ONCE
namespace thinwire {

/// A random number for each run.
class RunRandoms {
 public:
  explicit RunRandoms(const RandomStream& stream) : stream_(stream) {}

  std::uint64_t of(std::size_t run) {
    if (run / 4 != block_ || !known_) {
      words_ = stream_.block(static_cast<std::uint32_t>(run / 4), 0);
      block_ = run / 4;
      known_ = true;
    }
    return words_[run % 4];
  }

 private:
  const RandomStream& stream_;
  PhiloxCounter words_{};
  std::size_t block_ = 0;
  bool known_ = false;
};

/// Sums and counts of a group's cells, each cluster's array followed by room for the end of a run that starts
/// in its last cell.
struct ClusterSums {
  float* sums;
  float* counts;

  ClusterSums behind(std::size_t before) const { return {sums + before, counts + before}; }
};

/// Elements [begin, end) of one group.
struct ClusterRange {
  const ClusterGroup* group;
  std::size_t begin;
  std::size_t end;
};

/// Which elements of the run at `base` lie in the range.
inline std::uint64_t members_of_run(const ClusterRange& range, std::size_t base) {
  std::uint64_t present = ~std::uint64_t{0};
  if (range.begin > base) present <<= range.begin - base;
  if (range.end < base + kClusterRun) present &= (std::uint64_t{1} << (range.end - base)) - 1;
  return present;
}

}  // namespace thinwire
#endif

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// Planes of the codes of one run, p [64].
template <std::size_t kBits>
void CodeRun(const ClusterGroup& group, Reads<float> p, Writes<std::uint64_t> planes) {
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
      return hn::Ge(magnitude, hn::IfThenElse(negative, hn::Set(d, group.thresholds[1][j]),
                                              hn::Set(d, group.thresholds[0][j])));
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

/// gradient, residual and codes are those of the run that holds range.begin.
template <std::size_t kBits>
void EncodeRange(const RandomStream& stream, const ClusterRange& range, Reads<float> gradient,
                 Reads<float> residual, Writes<std::uint64_t> codes, const ClusterSums& target) {
  constexpr std::size_t kClusters = std::size_t{1} << kBits;
  const ClusterGroup& group = *range.group;
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(d, 1.0f);
  RunRandoms randoms(stream);
  std::size_t begins[kClusters] = {};
  for (std::size_t c = 1; c < kClusters; ++c) begins[c] = begins[c - 1] + group.sizes[c - 1] + kClusterRun;
  HWY_ALIGN float p[kClusterRun];
  const std::size_t origin = range.begin / kClusterRun * kClusterRun;
  for (std::size_t base = origin; base < range.end; base += kClusterRun) {
    const std::uint64_t random = randoms.of(base / kClusterRun);
    const std::uint64_t present = members_of_run(range, base);
    const float* g = gradient + (base - origin);
    const float* r = residual == nullptr ? nullptr : residual + (base - origin);
    if (present != ~std::uint64_t{0}) {
      for (std::size_t t = 0; t < kClusterRun; ++t) {
        const bool in_range = ((present >> t) & 1) != 0;
        p[t] = in_range ? sum_at(g, r, t) : 0.0f;
      }
    } else {
      for (std::size_t t = 0; t < kClusterRun; t += lanes) {
        hn::Store(load_sum(d, g, r, t), d, p + t);
      }
    }
    std::uint64_t planes[kBits];
    CodeRun<kBits>(group, p, planes);
    // The group that holds a run's first element writes its words, those behind it add to them.
    std::uint64_t* words = codes + (base - origin) / kClusterRun * kBits;
    for (std::size_t k = 0; k < kBits; ++k) {
      words[k] = (planes[k] & present) | ((present & 1) != 0 ? 0 : words[k]);
    }
    for (std::size_t c = 0; c < kClusters; ++c) {
      std::uint64_t members = present;
      for (std::size_t k = 0; k < kBits; ++k) members &= ((c >> k) & 1) != 0 ? planes[k] : ~planes[k];
      if (members == 0) continue;
      const std::size_t start = begins[c] + ((random * group.sizes[c]) >> 32);
      float* sums = target.sums + start;
      float* counts = target.counts + start;
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

/// means: the group's, laid out; codes and values are those of the run that holds range.begin.
template <std::size_t kBits>
void DecodeRange(const RandomStream& stream, const ClusterRange& range, Reads<float> means,
                 Reads<std::uint64_t> codes, bool add, Writes<float> values) {
  constexpr std::size_t kClusters = std::size_t{1} << kBits;
  const ClusterGroup& group = *range.group;
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  RunRandoms randoms(stream);
  std::size_t begins[kClusters] = {};
  for (std::size_t c = 1; c < kClusters; ++c) begins[c] = begins[c - 1] + group.sizes[c - 1] + kClusterRun;
  HWY_ALIGN float part[kClusterRun];
  const std::size_t origin = range.begin / kClusterRun * kClusterRun;
  for (std::size_t base = origin; base < range.end; base += kClusterRun) {
    const std::uint64_t random = randoms.of(base / kClusterRun);
    const float* window[kClusters];
    for (std::size_t c = 0; c < kClusters; ++c) {
      window[c] = means + begins[c] + ((random * group.sizes[c]) >> 32);
    }
    const std::uint64_t* planes = codes + (base - origin) / kClusterRun * kBits;
    const bool whole = base >= range.begin && base + kClusterRun <= range.end;
    float* run = values + (base - origin);
    float* out = whole ? run : part;
    const bool add_here = add && whole;
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
      hn::StoreU(add_here ? hn::Add(hn::LoadU(d, out + t), choice[0]) : choice[0], d, out + t);
    }
    if (whole) continue;
    const std::size_t last = std::min(range.end, base + kClusterRun);
    for (std::size_t e = std::max(range.begin, base); e < last; ++e) {
      run[e - base] = add ? run[e - base] + part[e - base] : part[e - base];
    }
  }
}

static_assert(kMostClusterBits == 4, "a function for each number of bits");

void EncodeClusters(std::size_t bits, const RandomStream& stream, const ClusterRange& range,
                    Reads<float> gradient, Reads<float> residual, Writes<std::uint64_t> codes,
                    const ClusterSums& target) {
  constexpr decltype(&EncodeRange<1>) kOfBits[] = {EncodeRange<1>, EncodeRange<2>, EncodeRange<3>,
                                                   EncodeRange<4>};
  kOfBits[bits - 1](stream, range, gradient, residual, codes, target);
}

void DecodeClusters(std::size_t bits, const RandomStream& stream, const ClusterRange& range,
                    Reads<float> means, Reads<std::uint64_t> codes, bool add, Writes<float> values) {
  constexpr decltype(&DecodeRange<1>) kOfBits[] = {DecodeRange<1>, DecodeRange<2>, DecodeRange<3>,
                                                   DecodeRange<4>};
  kOfBits[bits - 1](stream, range, means, codes, add, values);
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {
namespace {

/// Cells are summed apart for each slab of the elements, so that threads need not agree on an order. Their
/// number depends on the size alone. Counts are floats: a slab is short enough for them to stay exact.
std::size_t slab_elements(std::size_t elements) {
  constexpr std::size_t kShortest = std::size_t{1} << 20;
  constexpr std::size_t kLongest = std::size_t{1} << 28;
  const std::size_t eighth = (elements / 8 + kClusterRun) / kClusterRun * kClusterRun;
  return std::clamp(eighth, kShortest, kLongest);
}

std::size_t cells_of(const ClusterGroup& group, std::size_t clusters) {
  std::size_t total = 0;
  for (std::size_t c = 0; c < clusters; ++c) total += group.sizes[c];
  return total;
}

/// One slab's sums: those of every group that it touches.
struct Slab {
  std::size_t begin;  // elements
  std::size_t end;
  std::size_t first_group;
  std::size_t last_group;  // behind the last one
  std::size_t first_sum;   // of all slabs' sums
};

/// Sums lie slab after slab, and in a slab group after group.
struct SlabLayout {
  Span<Slab> slabs;
  Span<std::size_t> sums_before;  // of the groups before, were all of them in one slab
  std::size_t sums = 0;           // of all slabs

  /// Where a group's sums begin in a slab; behind its last one, the slab's end.
  std::size_t first_sum(const Slab& slab, std::size_t group) const {
    return slab.first_sum + sums_before[group] - sums_before[slab.first_group];
  }
};

SlabLayout lay_out_slabs(Workspace& workspace, const ClusterSketch& sketch, std::size_t first,
                         std::size_t elements) {
  const auto groups = sketch.groups;
  const std::size_t length = slab_elements(elements);
  SlabLayout layout{.slabs = workspace.take<Slab>((elements + length - 1) / length),
                    .sums_before = workspace.take<std::size_t>(groups.size() + 1)};
  layout.sums_before[0] = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    layout.sums_before[g + 1] =
        layout.sums_before[g] + cells_of(groups[g], sketch.clusters()) + sketch.clusters() * kClusterRun;
  }
  std::size_t g = 0;
  for (std::size_t s = 0; s < layout.slabs.size(); ++s) {
    const std::size_t begin = first + s * length;
    const std::size_t end = std::min(first + elements, begin + length);
    while (groups[g].end <= begin) ++g;
    Slab& slab = layout.slabs[s];
    slab = {begin, end, g, g + 1, layout.sums};
    while (groups[slab.last_group - 1].end < end) ++slab.last_group;
    layout.sums = layout.first_sum(slab, slab.last_group);
  }
  return layout;
}

/// Means of a group's cells, added up over the slabs from `first_slab` on. Returns whether all are finite.
bool write_means(const ClusterSketch& sketch, const SlabLayout& layout, std::size_t first_slab,
                 std::size_t group, const ClusterSums& all, Span<float> means) {
  const ClusterGroup& own = sketch.groups[group];
  bool finite = true;
  std::size_t mean = own.first_cell;
  std::size_t begin = 0;
  for (std::size_t c = 0; c < sketch.clusters(); ++c) {
    const std::size_t size = own.sizes[c];
    for (std::size_t cell = 0; cell < size; ++cell, ++mean) {
      double sum = 0;
      double count = 0;
      for (std::size_t s = first_slab; s < layout.slabs.size() && layout.slabs[s].first_group <= group; ++s) {
        const ClusterSums of_slab = all.behind(layout.first_sum(layout.slabs[s], group) + begin);
        // A run that starts near the end goes on at the beginning.
        for (std::size_t at = cell; at < size + kClusterRun; at += size) {
          sum += static_cast<double>(of_slab.sums[at]);
          count += static_cast<double>(of_slab.counts[at]);
        }
      }
      means[mean] = count > 0 ? static_cast<float>(sum / count) : 0.0f;
      finite = finite && std::isfinite(means[mean]);
    }
    begin += size + kClusterRun;
  }
  return finite;
}

}  // namespace

HWY_EXPORT(EncodeClusters);
HWY_EXPORT(DecodeClusters);

std::size_t ClusterSketch::cells() const {
  if (groups.empty()) return 0;
  const ClusterGroup& last = groups[groups.size() - 1];
  return last.first_cell + cells_of(last, clusters());
}

ClusterSketch ClusterSketch::for_rank(std::size_t rank) const {
  ClusterSketch own = *this;
  own.stream.rank = static_cast<std::uint32_t>(rank);
  return own;
}

void set_thresholds(ClusterGroup& group, std::size_t bits, const PerCluster<float>& centres) {
  const std::size_t levels = (std::size_t{1} << bits) / 2;
  for (std::size_t sign = 0; sign < 2; ++sign) {
    for (std::size_t level = 0; level + 1 < levels; ++level) {
      const float lower = std::fabs(centres[2 * level + sign]);
      const float upper = std::fabs(centres[2 * (level + 1) + sign]);
      group.thresholds[sign][level] = lower + (upper - lower) / 2;
    }
  }
}

bool encode_clusters(Executor& executor, Workspace& workspace, const ClusterSketch& sketch, std::size_t first,
                     Span<const float> gradient, Span<const float> residual, Span<std::uint64_t> codes,
                     Span<float> means) {
  THINWIRE_ON_DEVICE(encode_clusters, executor, workspace, sketch, first, gradient, residual, codes, means);
  const SlabLayout layout = lay_out_slabs(workspace, sketch, first, gradient.size());
  const ClusterSums all{workspace.take<float>(layout.sums).data(), workspace.take<float>(layout.sums).data()};
  executor.parallel_for(layout.slabs.size(), 1, [&](std::size_t from, std::size_t to) {
    for (std::size_t s = from; s < to; ++s) {
      const Slab& slab = layout.slabs[s];
      const ClusterSums sums = all.behind(slab.first_sum);
      const std::size_t count = layout.first_sum(slab, slab.last_group) - slab.first_sum;
      std::fill_n(sums.sums, count, 0.0f);
      std::fill_n(sums.counts, count, 0.0f);
      for (std::size_t g = slab.first_group; g < slab.last_group; ++g) {
        const std::size_t begin = g == 0 ? first : sketch.groups[g - 1].end;
        const ClusterRange range{&sketch.groups[g], std::max(begin, slab.begin),
                                 std::min(sketch.groups[g].end, slab.end)};
        if (range.begin >= range.end) continue;
        const std::size_t run = range.begin / kClusterRun * kClusterRun - first;
        HWY_DYNAMIC_DISPATCH(EncodeClusters)
        (sketch.bits, sketch.stream, range, gradient.data() + run, data_at(residual, run),
         codes.data() + run / kClusterRun * sketch.bits, all.behind(layout.first_sum(slab, g)));
      }
    }
  });
  bool finite = true;
  std::size_t first_slab = 0;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    while (first_slab < layout.slabs.size() && layout.slabs[first_slab].last_group <= g) ++first_slab;
    finite = write_means(sketch, layout, first_slab, g, all, means) && finite;
  }
  return finite;
}

Span<const float> lay_out_means(Workspace& workspace, const ClusterSketch& sketch, Span<const float> means,
                                Memory target) {
  if (target == Memory::cuda) return means;
  const std::size_t clusters = sketch.clusters();
  const auto laid_out = workspace.take<float>(means.size() + sketch.groups.size() * clusters * kClusterRun);
  const float* mean = means.data();
  float* out = laid_out.data();
  for (const ClusterGroup& group : sketch.groups) {
    for (std::size_t c = 0; c < clusters; ++c) {
      const std::size_t size = group.sizes[c];
      std::copy_n(mean, size, out);
      for (std::size_t i = size; i < size + kClusterRun; ++i) out[i] = out[i - size];
      mean += size;
      out += size + kClusterRun;
    }
  }
  return laid_out;
}

void decode_clusters_serially(const ClusterSketch& sketch, Span<const float> means,
                              Span<const std::uint64_t> codes, std::size_t first, bool add,
                              Span<float> values) {
  const std::size_t last = first + values.size();
  const ClusterGroup* group = std::upper_bound(
      sketch.groups.begin(), sketch.groups.end(), first,
      [](std::size_t element, const ClusterGroup& candidate) { return element < candidate.end; });
  for (std::size_t begin = first; begin < last; begin = group->end, ++group) {
    if (group->end <= begin) continue;
    const ClusterRange range{group, begin, std::min(group->end, last)};
    const std::size_t run = begin / kClusterRun * kClusterRun - first;
    const std::size_t gaps =
        static_cast<std::size_t>(group - sketch.groups.begin()) * sketch.clusters() * kClusterRun;
    HWY_DYNAMIC_DISPATCH(DecodeClusters)
    (sketch.bits, sketch.stream, range, means.data() + group->first_cell + gaps,
     codes.data() + run / kClusterRun * sketch.bits, add, values.data() + run);
  }
}

}  // namespace thinwire
#endif

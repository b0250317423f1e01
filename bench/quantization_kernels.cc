// Cluster sketches and K-means beside memory and beside a straightforward loop, on one core, in one run. What
// each figure counts stands in docs/kernels.md.

#include <cmath>
#include <random>
#include <vector>

#include "bench/measure.h"
#include "kernels/codes/kmeans.h"
#include "wire/payloads.h"

namespace thinwire {
namespace {

constexpr double kCellShare = 0.005;

struct Data {
  std::vector<float> gradient, residual, copy;
  std::vector<std::uint64_t> codes;
  Workspace workspace;

  Data() : gradient(kElements), residual(kElements), copy(kElements) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto& value : gradient) value = 1e-3f * normal(random) * std::exp(normal(random));
    for (auto& value : residual) value = 1e-3f * normal(random);
    codes.resize(code_words(kElements, kMostClusterBits));
  }
};

constexpr auto& data = made_once<Data>;

/// One group with as many cells for each cluster.
struct OneGroup {
  ClusterGroup group;
  ClusterSketch sketch;
  std::vector<float> means;

  explicit OneGroup(std::size_t bits) {
    PerCluster<Cluster> clusters{};
    Workspace workspace;
    ClusterFinder(executor(), workspace).find(data().gradient, {}, bits, 0.01, 1, clusters);
    sketch.bits = bits;
    sketch.stream = random_stream(1, 2, 3, RandomPurpose::sketch);
    PerCluster<float> centres{};
    for (std::size_t c = 0; c < sketch.clusters(); ++c) {
      centres[c] = static_cast<float>(clusters[c].centre);
      group.sizes[c] =
          static_cast<std::uint32_t>(kCellShare * kElements) / static_cast<std::uint32_t>(sketch.clusters());
    }
    group.end = kElements;
    set_thresholds(group, bits, centres);
    sketch.groups = {&group, 1};
    means.assign(sketch.cells(), 0.5f);
  }
  OneGroup(const OneGroup&) = delete;
  OneGroup& operator=(const OneGroup&) = delete;
};

/// Reads every element (and its residual), writes its code; sums of cells stay in the cache.
void cluster_encode(benchmark::State& state) {
  OneGroup one(static_cast<std::size_t>(state.range(0)));
  const bool with_residual = state.range(1) != 0;
  const double bytes = (with_residual ? 8.0 : 4.0) * kElements;
  against_read(state, bytes, kElements, [&] {
    data().workspace.reset();
    encode_clusters(executor(), data().workspace, one.sketch, 0, data().gradient,
                    with_residual ? Span<const float>(data().residual) : Span<const float>(), data().codes,
                    one.means);
  });
}

/// Reads a code, writes a value.
void cluster_decode(benchmark::State& state) {
  const OneGroup one(static_cast<std::size_t>(state.range(0)));
  against_copy(state, 8.0 * kElements, kElements, [&] {
    data().workspace.reset();
    const auto means = lay_out_means(data().workspace, one.sketch, one.means);
    decode_clusters_serially(one.sketch, means, data().codes, 0, false, data().copy);
  });
}

/// The definition, one element at a time.
void cluster_encode_loop(benchmark::State& state) {
  const OneGroup one(2);
  const ClusterGroup& group = one.group;
  std::vector<float> sums(one.sketch.cells()), counts(one.sketch.cells());
  against_read(state, 4.0 * kElements, kElements, [&] {
    const auto& gradient = data().gradient;
    for (std::size_t i = 0; i < kElements; ++i) {
      const std::size_t sign = gradient[i] < 0 ? 1 : 0;
      const std::size_t code = 2 * (std::fabs(gradient[i]) >= group.thresholds[sign][0] ? 1u : 0u) + sign;
      const std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761u;
      const std::size_t cell =
          code * group.sizes[0] + static_cast<std::size_t>((std::uint64_t{x} * group.sizes[0]) >> 32);
      sums[cell] += gradient[i];
      counts[cell] += 1;
      data().codes[i / 64 * 2] |= std::uint64_t{sign} << (i % 64);
      data().codes[i / 64 * 2 + 1] |= std::uint64_t{code / 2} << (i % 64);
    }
    benchmark::DoNotOptimize(sums.data());
  });
}

/// Clusters of a tenth of the elements.
void kmeans(benchmark::State& state) {
  PerCluster<Cluster> clusters{};
  against_read(state, 0.4 * kElements, 0.1 * kElements, [&] {
    data().workspace.reset();
    ClusterFinder(executor(), data().workspace)
        .find(data().gradient, {}, static_cast<std::size_t>(state.range(0)), 0.1, 1, clusters);
  });
}

BENCHMARK(measure_copy<data>)->Name("copy")->UseManualTime()->Iterations(5);
BENCHMARK(measure_read<data>)->Name("read")->UseManualTime()->Iterations(5);
BENCHMARK(cluster_encode)
    ->ArgNames({"bits", "residual"})
    ->ArgsProduct({{1, 2, 3, 4}, {0, 1}})
    ->UseManualTime()
    ->Iterations(5);
BENCHMARK(cluster_encode_loop)->UseManualTime()->Iterations(5);
BENCHMARK(cluster_decode)->ArgName("bits")->DenseRange(1, 4)->UseManualTime()->Iterations(5);
BENCHMARK(kmeans)->ArgName("bits")->Arg(2)->Arg(4)->UseManualTime()->Iterations(5);

}  // namespace
}  // namespace thinwire

BENCHMARK_MAIN();

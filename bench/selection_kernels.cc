// Sketches, block norms and top-k beside memory and beside a straightforward loop, on one core, in one run.
// What each figure counts stands in docs/kernels.md.

#include <cmath>
#include <random>
#include <vector>

#include "bench/measure.h"
#include "kernels/rows/bitmap.h"
#include "kernels/selection/block_norms.h"
#include "kernels/selection/select.h"
#include "kernels/sketches/count_sketch.h"
#include "kernels/sketches/sketch_select.h"

namespace thinwire {
namespace {

constexpr auto& data = made_once<RandomVectors>;

/// lambda = 0.5: half a cell per element. An insertion reads every element, and per row of the table fetches
/// and writes a cell for it; a query reads a cell per row and writes an estimate.
constexpr std::size_t kColumns = kElements / 2;

CountSketch sketch_of(std::size_t rows, std::size_t run) {
  return make_count_sketch(random_stream(1, 2, 3, RandomPurpose::sketch), rows, kColumns / rows, run);
}

void sketch_insert(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const CountSketch sketch = sketch_of(rows, static_cast<std::size_t>(state.range(1)));
  const auto table = Span<float>(data().copy).first(sketch.cells());
  against_copy(state, 4.0 * kElements + static_cast<double>(rows) * 8 * kElements, kElements,
               [&] { insert(executor(), sketch, data().gradient, {}, table); });
}

void sketch_query(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const CountSketch sketch = sketch_of(rows, static_cast<std::size_t>(state.range(1)));
  const auto table = Span<const float>(data().gradient).first(sketch.cells());
  against_copy(state, 4.0 * static_cast<double>(rows + 1) * kElements, kElements,
               [&] { query(executor(), sketch, table, data().copy); });
}

/// Blocks of 256, one in 32, from a bucket: what block_top_k hands to a sketch. The table stays in the cache.
void sketch_sparse(benchmark::State& state) {
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t block = 7; block < kElements / 256; block += 32) blocks.push_back(block);
  const BlockList list{blocks, 256, kElements};
  const auto listed = static_cast<double>(list.listed());
  const CountSketch sketch =
      make_count_sketch(random_stream(1, 2, 3, RandomPurpose::sketch), 1, list.listed() / 2, 64);
  const auto table = Span<float>(data().copy).first(sketch.cells());
  against_copy(state, 12 * listed, listed, [&] {
    insert_blocks(executor(), sketch, list, BlockLayout::in_bucket, data().gradient, {}, table);
  });
}

/// The plain loop: every element by itself, a multiplicative hash for column and sign.
void scalar_sketch(benchmark::State& state) {
  against_copy(state, 12.0 * kElements, kElements, [] {
    for (std::size_t i = 0; i < kElements; ++i) {
      const std::uint64_t hash = (i + 1) * 0x9E3779B97F4A7C15u;
      const std::size_t column = ((hash >> 32) * kColumns) >> 32;
      data().copy[column] += (hash & 0x80000000u) != 0 ? -data().gradient[i] : data().gradient[i];
    }
  });
}

void norms_of_blocks(benchmark::State& state) {
  std::vector<float> norms(block_count(kElements, 256));
  against_read(state, 8.0 * kElements, kElements,
               [&] { block_norms(executor(), data().gradient, data().residual, 256, norms); });
}

void flags_of_blocks(benchmark::State& state) {
  std::vector<std::uint64_t> flags(bitmap_words(block_count(kElements, 256)));
  against_read(state, 4.0 * kElements, kElements, [&] {
    benchmark::DoNotOptimize(flag_nonzero_blocks(executor(), data().gradient, {}, 256, flags));
  });
}

void scalar_norms(benchmark::State& state) {
  std::vector<float> norms(block_count(kElements, 256));
  against_read(state, 8.0 * kElements, kElements, [&] {
    for (std::size_t b = 0; b < norms.size(); ++b) {
      float sum = 0;
      for (std::size_t i = b * 256; i < std::min(kElements, (b + 1) * 256); ++i) {
        const float p = data().gradient[i] + data().residual[i];
        sum += p * p;
      }
      norms[b] = sum;
    }
  });
}

/// A table far smaller than the bucket, of a gradient with a power-law tail; [columns, rows].
struct SketchedData {
  CountSketch sketch;
  std::vector<float> table;

  SketchedData(std::size_t elements, std::size_t rows, std::size_t columns)
      : sketch(make_count_sketch(random_stream(1, 2, 3, RandomPurpose::sketch), rows, columns, 64)),
        table(sketch.cells()) {
    std::mt19937 random(2);
    for (std::size_t i = 0; i < elements; ++i) {
      const float uniform = (static_cast<float>(random()) + 1) * 0x1p-32f;
      data().copy[i] = ((random() & 1) != 0 ? 1.0f : -1.0f) / std::sqrt(uniform);
    }
    insert(executor(), sketch, Span<const float>(data().copy).first(elements), {}, table);
  }
};

/// Arguments: million elements, rows, columns, 1 in so many is a candidate.
struct Candidates {
  std::size_t elements, rows, columns, wanted;

  explicit Candidates(const benchmark::State& state)
      : elements(static_cast<std::size_t>(state.range(0)) * 100'000),
        rows(static_cast<std::size_t>(state.range(1))),
        columns(static_cast<std::size_t>(state.range(2))),
        wanted(elements / static_cast<std::size_t>(state.range(3))) {}
};

/// Bytes: a float per element, as if every estimate were read once.
template <class Select>
void candidates(benchmark::State& state, Select select) {
  static Workspace workspace;
  const Candidates of(state);
  const SketchedData sketched(of.elements, of.rows, of.columns);
  against_copy(state, 4.0 * static_cast<double>(of.elements), static_cast<double>(of.elements), [&] {
    workspace.reset();
    benchmark::DoNotOptimize(select(workspace, of, sketched).size());
  });
}

void largest_estimates(benchmark::State& state) {
  candidates(state, [](Workspace& workspace, const Candidates& of, const SketchedData& sketched) {
    return select_largest_estimates(executor(), workspace, sketched.sketch, of.elements, sketched.table,
                                    of.wanted);
  });
}

/// All estimates, then the largest of them.
void largest_of_all_estimates(benchmark::State& state) {
  candidates(state, [](Workspace& workspace, const Candidates& of, const SketchedData& sketched) {
    const auto estimates = workspace.take<float>(of.elements);
    query(executor(), sketched.sketch, sketched.table, estimates);
    return select_largest(executor(), workspace, estimates, {}, of.wanted);
  });
}

void small_table_insert(benchmark::State& state) {
  const Candidates of(state);
  SketchedData sketched(of.elements, of.rows, of.columns);
  against_copy(state, 4.0 * static_cast<double>(of.elements), static_cast<double>(of.elements), [&] {
    insert(executor(), sketched.sketch, Span<const float>(data().gradient).first(of.elements),
           Span<const float>(data().residual).first(of.elements), sketched.table);
  });
}

std::size_t share_of_elements(const benchmark::State& state) {
  return kElements / static_cast<std::size_t>(state.range(0));
}

void top_k(benchmark::State& state) {
  static Workspace workspace;
  const std::size_t k = share_of_elements(state);
  against_read(state, 8.0 * kElements, kElements, [&] {
    workspace.reset();
    const Selection selection = select_largest(executor(), workspace, data().gradient, data().residual, k);
    benchmark::DoNotOptimize(selection.size());
  });
}

/// Three passes, for data on which no sample can be had.
void top_k_threshold(benchmark::State& state) {
  const std::size_t k = share_of_elements(state);
  against_read(state, 3 * 8.0 * kElements, kElements, [&] {
    benchmark::DoNotOptimize(cut_of_largest(executor(), data().gradient, data().residual, k));
  });
}

/// The plain way: nth_element on magnitudes, then a loop that picks.
void scalar_top_k(benchmark::State& state) {
  const std::size_t k = share_of_elements(state);
  std::vector<float> magnitudes(kElements);
  std::vector<std::uint32_t> indices;
  against_read(state, 8.0 * kElements, kElements, [&] {
    for (std::size_t i = 0; i < kElements; ++i) {
      magnitudes[i] = std::fabs(data().gradient[i] + data().residual[i]);
    }
    const auto nth = magnitudes.end() - static_cast<std::ptrdiff_t>(k);
    std::nth_element(magnitudes.begin(), nth, magnitudes.end());
    indices.clear();
    for (std::uint32_t i = 0; i < kElements; ++i) {
      if (std::fabs(data().gradient[i] + data().residual[i]) >= *nth) indices.push_back(i);
    }
    benchmark::DoNotOptimize(indices.size());
  });
}

BENCHMARK(measure_copy<data>)->Name("copy")->UseManualTime();
BENCHMARK(measure_read<data>)->Name("read")->UseManualTime();
BENCHMARK(sketch_insert)->Name("count_sketch_insert")->Apply([](auto* kernel) {
  take(kernel, {"rows", "run"}, {{1, 64}, {1, 16}, {5, 64}});
});
BENCHMARK(sketch_query)->Name("count_sketch_query")->Apply([](auto* kernel) {
  take(kernel, {"rows", "run"}, {{1, 64}, {1, 16}, {3, 64}, {5, 64}});
});
BENCHMARK(sketch_sparse)->UseManualTime()->Name("count_sketch_insert/blocks_of_256_1_in_32");
BENCHMARK(scalar_sketch)->UseManualTime()->Name("count_sketch_insert/plain_loop");
/// Sketched-SGD: 6.6 and 25 million elements, and the paper's table.
void of_sketched_sgd(benchmark::internal::Benchmark* kernel) {
  take(kernel, {"elements/100K", "rows", "columns", "1_in"},
       {{66, 5, 66'000, 250},
        {66, 5, 66'000, 50},
        {66, 29, 10'000, 33},
        {66, 29, 10'000, 3000},
        {250, 5, 250'000, 250},
        {250, 5, 250'000, 50}});
}
BENCHMARK(small_table_insert)
    ->Name("count_sketch_insert/small_table/gradient+residual")
    ->Apply(of_sketched_sgd);
BENCHMARK(largest_estimates)->Name("select_largest_estimates")->Apply(of_sketched_sgd);
BENCHMARK(largest_of_all_estimates)
    ->Name("select_largest_estimates/by_estimating_all")
    ->Apply(of_sketched_sgd);
BENCHMARK(norms_of_blocks)->UseManualTime()->Name("block_norms/gradient+residual");
BENCHMARK(scalar_norms)->UseManualTime()->Name("block_norms/plain_loop");
BENCHMARK(flags_of_blocks)->UseManualTime()->Name("flag_nonzero_blocks");
BENCHMARK(top_k)->UseManualTime()->Name("select_largest/1_in")->Arg(1000)->Arg(100)->Arg(10);
BENCHMARK(top_k_threshold)->UseManualTime()->Name("cut_of_largest/1_in")->Arg(100);
BENCHMARK(scalar_top_k)->UseManualTime()->Name("select_largest/nth_element_1_in")->Arg(100);

}  // namespace
}  // namespace thinwire

BENCHMARK_MAIN();

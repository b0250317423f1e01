// Kernels of the sparse systems beside memory and beside a straightforward scalar loop, on one core, in one
// run. What each figure counts stands in docs/kernels.md.

#include <algorithm>
#include <bit>
#include <random>
#include <unordered_map>
#include <vector>

#include "bench/measure.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/hash_partition.h"
#include "kernels/rows/index_permutation.h"
#include "kernels/rows/nonzeros.h"
#include "kernels/rows/row_access.h"

namespace thinwire {
namespace {

constexpr std::size_t kOwners = 16;

/// Non-zeros of a gradient in which one element in `every` is not zero, and a second rank's.
struct Sparse {
  std::vector<std::uint32_t> indices, other;
  std::vector<float> values, other_values;
};

struct Data {
  std::vector<float> gradient, copy;
  IndexPermutation permutation =
      IndexPermutation::make(kElements, random_stream(1, 2, 3, RandomPurpose::ownership));
  std::unordered_map<std::int64_t, Sparse> sparse;

  Data() : gradient(kElements, 0.0f), copy(kElements, 0.0f) {}
};

constexpr auto& data = made_once<Data>;

/// Fills the gradient for the benchmark's density and lists its non-zeros.
const Sparse& sparse_of(const benchmark::State& state) {
  const std::int64_t every = state.range(0);
  auto [entry, created] = data().sparse.try_emplace(every);
  Sparse& sparse = entry->second;
  std::mt19937 random(static_cast<std::uint32_t>(every));
  for (auto& value : data().gradient) value = 0;
  for (std::uint32_t i = 0; i < kElements; ++i) {
    const auto draw = static_cast<std::uint32_t>(random());
    const float value = static_cast<float>(draw) * 0x1p-31f - 1.0f;
    if (draw % every == 0) {
      data().gradient[i] = value;
      if (created) {
        sparse.indices.push_back(i);
        sparse.values.push_back(value);
      }
    } else if (created && draw % every == 1) {
      sparse.other.push_back(i);
      sparse.other_values.push_back(value);
    }
  }
  return sparse;
}

double count_of(const std::vector<std::uint32_t>& indices) {
  return static_cast<double>(indices.size());
}

template <auto run>
void with_sparse(benchmark::State& state) {
  run(state, sparse_of(state));
}

/// Reads every element once, writes an index and a value per non-zero.
void nonzeros(benchmark::State& state, const Sparse& sparse) {
  Workspace workspace;
  against_read(state, 4.0 * kElements + 8 * count_of(sparse.indices), kElements, [&] {
    workspace.reset();
    benchmark::DoNotOptimize(find_nonzeros(executor(), data().gradient, {}, workspace));
  });
}

void nonzeros_loop(benchmark::State& state, const Sparse& sparse) {
  std::vector<std::uint32_t> indices(kElements);
  std::vector<float> values(kElements);
  against_read(state, 4.0 * kElements + 8 * count_of(sparse.indices), kElements, [&] {
    std::size_t out = 0;
    for (std::uint32_t i = 0; i < kElements; ++i) {
      if (data().gradient[i] == 0) continue;
      indices[out] = i;
      values[out++] = data().gradient[i];
    }
    benchmark::DoNotOptimize(out);
  });
}

void permutation(benchmark::State& state, const Sparse& sparse) {
  std::vector<std::uint32_t> slots(sparse.indices.size());
  against_copy(state, 8 * count_of(sparse.indices), count_of(sparse.indices),
               [&] { permute(executor(), data().permutation, sparse.indices, slots); });
}

void permutation_loop(benchmark::State& state, const Sparse& sparse) {
  const IndexPermutation& p = data().permutation;
  std::vector<std::uint32_t> slots(sparse.indices.size());
  against_copy(state, 8 * count_of(sparse.indices), count_of(sparse.indices), [&] {
    for (std::size_t k = 0; k < slots.size(); ++k) {
      std::uint32_t x = sparse.indices[k];
      do {
        for (std::size_t r = 0; r < IndexPermutation::kRounds; ++r) {
          x = ((x ^ p.keys[r]) * p.multipliers[r]) & p.mask;
          x ^= x >> p.shift;
        }
      } while (x >= p.size);
      slots[k] = x;
    }
  });
}

/// Owners of slots, their counts, and the split: reads slot, index and value, writes index and value.
void partition(benchmark::State& state, const Sparse& sparse) {
  const std::size_t count = sparse.indices.size();
  std::vector<std::uint32_t> slots(count), out(count);
  std::vector<float> out_values(count);
  std::vector<std::uint16_t> owner_of(count);
  std::vector<std::size_t> counts(kOwners);
  std::vector<RowCursor> cursors(kOwners);
  permute(executor(), data().permutation, sparse.indices, slots);
  against_copy(state, 20 * count_of(sparse.indices), count_of(sparse.indices), [&] {
    find_owners(executor(), slots, kElements, kOwners, owner_of, counts);
    std::size_t at = 0;
    for (std::size_t p = 0; p < kOwners; at += counts[p++])
      cursors[p] = {out.data() + at, out_values.data() + at};
    split_by_owner(executor(), owner_of, sparse.indices, sparse.values, 1, cursors);
  });
}

/// The same by the paper's Algorithm 1, whose memory and number of hashes are given.
void partition_by_hash(benchmark::State& state, const Sparse& sparse, const HierarchicalHashShape& shape) {
  const std::size_t count = sparse.indices.size();
  std::vector<std::uint32_t> slots(count), out(count), positions(count), serial(count);
  std::vector<std::uint32_t> table(shape.owners * shape.slots);
  std::vector<float> out_values(count);
  std::vector<std::uint16_t> owner_of(count);
  std::vector<std::size_t> counts(kOwners), cursors(kOwners);
  permute(executor(), data().permutation, sparse.indices, slots);
  const RandomStream stream = random_stream(1, 2, 3, RandomPurpose::ownership, 0, 1);
  against_copy(state, 20 * count_of(sparse.indices), count_of(sparse.indices), [&] {
    find_owners(executor(), slots, kElements, kOwners, owner_of, counts);
    split_positions_by_hash(executor(), shape, stream, sparse.indices, owner_of, counts,
                            {.slots = table, .serial = serial, .cursors = cursors}, positions);
    for (std::size_t k = 0; k < count; ++k) out[k] = sparse.indices[positions[k]];
    gather_rows(executor(), sparse.values, {}, positions, 1, out_values);
  });
}

/// The paper's memory and number of hashes.
void partition_by_paper(benchmark::State& state, const Sparse& sparse) {
  partition_by_hash(state, sparse, HierarchicalHashParameters{}.shape(sparse.indices.size(), kOwners));
}

/// Of the paper's Figure 14: r1 in percent of the non-zeros, and k.
void partition_by_hash_shape(benchmark::State& state) {
  const Sparse& sparse = sparse_of(state);
  auto shape = HierarchicalHashParameters{}.shape(sparse.indices.size(), kOwners);
  shape.slots = sparse.indices.size() * static_cast<std::size_t>(state.range(1)) / 100 / kOwners;
  shape.rounds = static_cast<int>(state.range(2));
  partition_by_hash(state, sparse, shape);
}

/// Thresholds between indices in place of hashed owners (Zen, section 3.1): the split once they are known.
void partition_by_thresholds(benchmark::State& state, const Sparse& sparse) {
  const std::size_t count = sparse.indices.size();
  std::vector<std::uint32_t> thresholds(kOwners - 1), out(count);
  std::vector<float> out_values(count);
  std::vector<std::uint16_t> owner_of(count);
  std::vector<std::size_t> counts(kOwners);
  std::vector<RowCursor> cursors(kOwners);
  cut_evenly(sparse.other, thresholds);
  against_copy(state, 20 * count_of(sparse.indices), count_of(sparse.indices), [&] {
    find_owners_by_thresholds(sparse.indices, thresholds, owner_of, counts);
    std::size_t at = 0;
    for (std::size_t p = 0; p < kOwners; at += counts[p++])
      cursors[p] = {out.data() + at, out_values.data() + at};
    split_by_owner(executor(), owner_of, sparse.indices, sparse.values, 1, cursors);
  });
}

/// Thresholds as the paper finds them: by sorting indices, here of one rank, which come in no order.
void thresholds_by_sorting(benchmark::State& state, const Sparse& sparse) {
  std::vector<std::uint32_t> shuffled = sparse.indices, sorted(shuffled.size()), thresholds(kOwners - 1);
  std::mt19937 random(1);
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  against_copy(state, 8 * count_of(sparse.indices), count_of(sparse.indices), [&] {
    std::ranges::copy(shuffled, sorted.begin());
    std::ranges::sort(sorted);
    cut_evenly(sorted, thresholds);
    benchmark::DoNotOptimize(thresholds.data());
  });
}

/// The indices of 16 ranks, each with as many non-zeros as `sparse`, at other places: those of the first
/// one, moved on by a share of the range.
std::vector<std::uint32_t> indices_of_all(const Sparse& sparse) {
  std::vector<std::uint32_t> all;
  all.reserve(kOwners * sparse.indices.size());
  for (std::uint32_t rank = 0; rank < kOwners; ++rank) {
    const std::uint32_t shift = rank * (kElements / kOwners / 2 + 1);
    for (const std::uint32_t index : sparse.indices) all.push_back((index + shift) % kElements);
  }
  return all;
}

/// One mapping for all ranks (Zen, section 3.1): the union of their indices, cut into even parts; by sorting.
void mapping_by_sorting(benchmark::State& state, const Sparse& sparse) {
  const std::vector<std::uint32_t> all = indices_of_all(sparse);
  std::vector<std::uint32_t> sorted(all.size()), thresholds(kOwners - 1);
  against_copy(state, 8 * count_of(all), count_of(all), [&] {
    std::ranges::copy(all, sorted.begin());
    std::ranges::sort(sorted);
    const auto rest = std::ranges::unique(sorted);
    cut_evenly(Span<const std::uint32_t>(sorted.data(), sorted.size() - rest.size()), thresholds);
    benchmark::DoNotOptimize(thresholds.data());
  });
}

/// The same by a bit for each element of the tensor: the union's indices come out in order.
void mapping_by_bitmap(benchmark::State& state, const Sparse& sparse) {
  const std::vector<std::uint32_t> all = indices_of_all(sparse);
  std::vector<std::uint64_t> bits(kElements / 64 + 1);
  std::vector<std::uint32_t> in_order(all.size()), thresholds(kOwners - 1);
  against_copy(state, 8 * count_of(all), count_of(all), [&] {
    std::ranges::fill(bits, 0);
    for (const std::uint32_t index : all) bits[index / 64] |= std::uint64_t{1} << (index % 64);
    std::size_t count = 0;
    for (std::size_t word = 0; word < bits.size(); ++word) {
      for (std::uint64_t left = bits[word]; left != 0; left &= left - 1) {
        in_order[count++] =
            static_cast<std::uint32_t>(64 * word) + static_cast<std::uint32_t>(std::countr_zero(left));
      }
    }
    cut_evenly(Span<const std::uint32_t>(in_order.data(), count), thresholds);
    benchmark::DoNotOptimize(thresholds.data());
  });
}

/// Zen's Algorithm 3: one hash into memory that is given in percent of the non-zeros. What it loses is
/// reported as lost_share. Values are then looked up in the gradient, as the paper does.
void partition_by_lossy_hash(benchmark::State& state) {
  const Sparse& sparse = sparse_of(state);
  const std::size_t count = sparse.indices.size();
  std::vector<std::uint32_t> split(count);
  std::vector<std::uint32_t> memory(count * static_cast<std::size_t>(state.range(1)) / 100 / kOwners *
                                    kOwners);
  std::vector<float> out_values(count);
  std::vector<std::size_t> counts(kOwners);
  const RandomStream stream = random_stream(1, 2, 3, RandomPurpose::ownership, 0, 1);
  std::size_t survivors = 0;
  against_copy(state, 20 * count_of(sparse.indices), count_of(sparse.indices), [&] {
    survivors = split_by_lossy_hash(executor(), stream, sparse.indices, memory, split, counts);
    for (std::size_t k = 0; k < survivors; ++k) out_values[k] = data().gradient[split[k]];
  });
  state.counters["lost_share"] = 1 - static_cast<double>(survivors) / static_cast<double>(count);
}

/// The plain way: a vector per owner, grown as rows come, the owner by a 64-bit division.
void partition_loop(benchmark::State& state, const Sparse& sparse) {
  std::vector<std::uint32_t> slots(sparse.indices.size());
  permute(executor(), data().permutation, sparse.indices, slots);
  std::vector<std::vector<std::pair<std::uint32_t, float>>> parts(kOwners);
  against_copy(state, 20 * count_of(sparse.indices), count_of(sparse.indices), [&] {
    for (auto& part : parts) part.clear();
    for (std::size_t k = 0; k < slots.size(); ++k) {
      const std::uint64_t owner = ((std::uint64_t{slots[k]} + 1) * kOwners - 1) / kElements;
      parts[owner].emplace_back(sparse.indices[k], sparse.values[k]);
    }
  });
}

/// Two lists into one: reads both, writes at most both.
void merge_sorted(benchmark::State& state, const Sparse& sparse) {
  const double count = count_of(sparse.indices) + count_of(sparse.other);
  std::vector<std::uint32_t> indices(sparse.indices.size() + sparse.other.size());
  std::vector<float> values(indices.size());
  against_copy(state, 16 * count, count, [&] {
    benchmark::DoNotOptimize(merge_sorted_rows(executor(), sparse.indices, sparse.values, sparse.other,
                                               sparse.other_values, 1, indices, values));
  });
}

/// The owner's merge of two ranks: bits, ranks in them, sums; reads both lists, writes the union.
void merge_by_bitmap(benchmark::State& state, const Sparse& sparse) {
  const double count = count_of(sparse.indices) + count_of(sparse.other);
  std::vector<std::uint64_t> bits(bitmap_words(kElements));
  std::vector<std::uint32_t> before(bits.size());
  std::vector<float> sums(sparse.indices.size() + sparse.other.size());
  against_copy(state, 16 * count, count, [&] {
    std::fill(bits.begin(), bits.end(), 0);
    set_bits(executor(), sparse.indices, bits);
    set_bits(executor(), sparse.other, bits);
    const std::size_t total = count_bits_before(executor(), bits, before);
    std::fill_n(sums.begin(), total, 0.0f);
    accumulate_rows(executor(), sparse.indices, sparse.values, 1, bits, before, true, sums);
    accumulate_rows(executor(), sparse.other, sparse.other_values, 1, bits, before, true, sums);
  });
}

/// The plain way to merge rows whose order is unknown.
void merge_loop(benchmark::State& state, const Sparse& sparse) {
  const double count = count_of(sparse.indices) + count_of(sparse.other);
  against_copy(state, 16 * count, count, [&] {
    std::unordered_map<std::uint32_t, float> sums;
    for (std::size_t k = 0; k < sparse.indices.size(); ++k) sums[sparse.indices[k]] += sparse.values[k];
    for (std::size_t k = 0; k < sparse.other.size(); ++k) sums[sparse.other[k]] += sparse.other_values[k];
    benchmark::DoNotOptimize(sums.size());
  });
}

/// Reads the bits of all slots, writes a position per set one.
void bitmap_decode(benchmark::State& state, const Sparse& sparse) {
  std::vector<std::uint64_t> bits(bitmap_words(kElements), 0);
  std::vector<std::uint32_t> before(bits.size());
  std::vector<std::uint32_t> positions(sparse.indices.size());
  set_bits(executor(), sparse.indices, bits);
  against_copy(state, kElements / 8.0 + 4 * count_of(sparse.indices), kElements, [&] {
    count_bits_before(executor(), bits, before);
    list_bits(executor(), bits, before, positions);
  });
}

void bitmap_decode_loop(benchmark::State& state, const Sparse& sparse) {
  std::vector<std::uint64_t> bits(bitmap_words(kElements), 0);
  std::vector<std::uint32_t> positions(sparse.indices.size());
  set_bits(executor(), sparse.indices, bits);
  against_copy(state, kElements / 8.0 + 4 * count_of(sparse.indices), kElements, [&] {
    std::size_t out = 0;
    for (std::uint32_t i = 0; i < kElements; ++i) {
      if (((bits[i / 64] >> (i % 64)) & 1) != 0) positions[out++] = i;
    }
    benchmark::DoNotOptimize(out);
  });
}

/// What a pull ends with: the mean's values to where they belong, in the order of slots.
void scatter(benchmark::State& state, const Sparse& sparse) {
  std::vector<std::uint32_t> slots(sparse.indices.size());
  permute(executor(), data().permutation, sparse.indices, slots);
  against_copy(state, 12 * count_of(sparse.indices), count_of(sparse.indices),
               [&] { scatter_rows(executor(), slots, sparse.values, 1, data().copy); });
}

#define SPARSE(function, name) \
  BENCHMARK(with_sparse<function>)->UseManualTime()->Name(name)->ArgName("one_in")->Arg(100)->Arg(10)

BENCHMARK(measure_copy<data>)->Name("copy")->UseManualTime();
BENCHMARK(measure_read<data>)->Name("read")->UseManualTime();
SPARSE(nonzeros, "find_nonzeros");
SPARSE(nonzeros_loop, "find_nonzeros/scalar_loop");
SPARSE(permutation, "permute");
SPARSE(permutation_loop, "permute/scalar_loop");
SPARSE(partition, "split_among_16_owners");
SPARSE(partition_by_paper, "split_among_16_owners/algorithm_1");
BENCHMARK(partition_by_hash_shape)
    ->UseManualTime()
    ->Name("split_among_16_owners/algorithm_1_shape")
    ->ArgNames({"one_in", "r1_percent", "k"})
    ->ArgsProduct({{100, 10}, {100, 200, 400}, {3}})
    ->ArgsProduct({{100, 10}, {200}, {1, 2, 4}});
SPARSE(partition_by_thresholds, "split_among_16_owners/thresholds");
SPARSE(thresholds_by_sorting, "split_among_16_owners/sort_for_thresholds");
SPARSE(mapping_by_sorting, "split_among_16_owners/mapping_by_sorting");
SPARSE(mapping_by_bitmap, "split_among_16_owners/mapping_by_bitmap");
BENCHMARK(partition_by_lossy_hash)
    ->UseManualTime()
    ->Name("split_among_16_owners/algorithm_3")
    ->ArgNames({"one_in", "memory_percent"})
    ->ArgsProduct({{100}, {100, 200, 250, 400, 1000, 10'000, 40'000}})
    ->ArgsProduct({{10}, {100, 200, 250, 400, 1000, 4000}});
SPARSE(partition_loop, "split_among_16_owners/scalar_loop");
SPARSE(merge_sorted, "merge_two_sorted_lists");
SPARSE(merge_by_bitmap, "merge_two_lists_by_bitmap");
SPARSE(merge_loop, "merge_two_lists/unordered_map");
SPARSE(bitmap_decode, "bitmap_decode");
SPARSE(bitmap_decode_loop, "bitmap_decode/scalar_loop");
SPARSE(scatter, "scatter_in_order_of_slots");

}  // namespace
}  // namespace thinwire

BENCHMARK_MAIN();

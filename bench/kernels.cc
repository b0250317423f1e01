// Kernels beside the memory that bounds them, on one core, in one run.
//
// Every benchmark reports bytes_per_second of what it has to move (each array once per direction in which it
// crosses) and, as `of_read` or `of_copy`, the share of what a plain read or memcpy of the same number of
// bytes reached in this run. Sizes are far beyond the last-level cache. How each figure is derived stands in
// docs/kernels.md.

#include <cmath>
#include <vector>

#include "bench/measure.h"
#include "kernels/codes/dequantize.h"
#include "kernels/codes/entropy_code.h"
#include "kernels/codes/quantize.h"
#include "kernels/codes/rounded_levels.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/half.h"
#include "kernels/signs/random_signs.h"
#include "kernels/signs/sign_bits.h"
#include "kernels/signs/sign_votes.h"
#include "wire/crc32c.h"

namespace thinwire {
namespace {

constexpr std::size_t kWords = (kElements + 63) / 64;
/// The operator works on bits: as many words as make its arrays as large as the gradient's.
constexpr std::size_t kManyWords = kElements / 2;

struct Data : RandomVectors {
  std::vector<std::uint64_t> bits, own, received, masks;

  Data() : bits(kWords), own(kManyWords), received(kManyWords), masks(kManyWords) {
    for (auto* vector : {&bits, &own, &received, &masks}) {
      for (auto& word : *vector) word = std::uint64_t{random()} << 32 | random();
    }
  }
};

constexpr auto& data = made_once<Data>;

void pack(benchmark::State& state) {
  against_read(state, (4.0 + 1.0 / 8) * kElements, kElements,
               [] { benchmark::DoNotOptimize(pack_signs(executor(), data().gradient, {}, data().bits)); });
}

void pack_with_residual(benchmark::State& state) {
  against_read(state, (8.0 + 1.0 / 8) * kElements, kElements, [] {
    benchmark::DoNotOptimize(pack_signs(executor(), data().gradient, data().residual, data().bits));
  });
}

void apply(benchmark::State& state) {
  against_copy(state, (16.0 + 1.0 / 8) * kElements, kElements, [] {
    benchmark::DoNotOptimize(apply_signs(executor(), data().bits, 0.1f, data().gradient, data().residual));
  });
}

void merge(benchmark::State& state) {
  // Reads own, received and mask, writes own.
  against_copy(state, 4.0 * 8 * kManyWords, 64.0 * kManyWords,
               [] { merge_signs(executor(), data().own, data().received, data().masks); });
}

void bernoulli(benchmark::State& state) {
  const auto m = static_cast<std::uint32_t>(state.range(0));
  against_copy(state, 8.0 * kWords, 64.0 * kWords, [m] {
    bernoulli_bits(executor(), random_stream(1, 2, 3, RandomPurpose::merge), 0, 1, m, data().bits);
  });
}

void votes(benchmark::State& state) {
  const int planes = 3;
  auto& counters = data().received;
  against_copy(state, (2.0 * planes + 1) * 8 * kWords, 64.0 * kWords, [&] {
    add_votes(executor(), Span<std::uint64_t>(counters).first(planes * kWords), planes, data().bits);
  });
}

void stochastic(benchmark::State& state) {
  against_read(state, (4.0 + 1.0 / 8) * kElements, kElements, [] {
    stochastic_signs(executor(), random_stream(1, 2, 3, RandomPurpose::stochastic_sign), data().gradient, {},
                     1e-4f, data().bits);
  });
}

void encode(benchmark::State& state) {
  const auto format = state.range(0) == 0 ? HalfFormat::fp16 : HalfFormat::bf16;
  const Span<std::uint16_t> out(reinterpret_cast<std::uint16_t*>(data().copy.data()), kElements);
  against_copy(state, 6.0 * kElements, kElements,
               [&] { benchmark::DoNotOptimize(encode_half(executor(), format, data().gradient, {}, out)); });
}

/// Of what a rank sends, and of what arrives. Argument: MiB, within a cache or beyond it.
void checksum(benchmark::State& state) {
  const auto bytes =
      as_bytes(Span<const float>(data().gradient)).first(static_cast<std::size_t>(state.range(0)) << 20);
  against_read(state, static_cast<double>(bytes.size()), static_cast<double>(bytes.size()) / 4,
               [&] { benchmark::DoNotOptimize(crc32c(bytes)); });
}

/// Equal steps, or, for comparison, the levels 2^-k.
QuantizationLevels levels_of(std::size_t bits, bool equal_steps) {
  return equal_steps ? QuantizationLevels::uniform(bits) : QuantizationLevels::halving(bits);
}

constexpr std::size_t kChunk = 8192;

/// Arguments: bits, whether steps are equal, whether norms are l2, whether there is a residual.
void quantize(benchmark::State& state) {
  const auto levels = levels_of(static_cast<std::size_t>(state.range(0)), state.range(1) != 0);
  const auto norm = state.range(2) != 0 ? QuantizationNorm::l2 : QuantizationNorm::largest;
  const Span<const float> residual = state.range(3) != 0 ? data().residual : Span<const float>();
  std::vector<float> norms(chunk_count(kElements, kChunk));
  const double inputs = state.range(3) != 0 ? 8.0 : 4.0;
  against_read(state, (inputs + static_cast<double>(levels.bits) / 8) * kElements, kElements, [&] {
    benchmark::DoNotOptimize(quantize_chunks(executor(), random_stream(1, 2, 3, RandomPurpose::rounding),
                                             levels, norm, kChunk, data().gradient, residual, norms,
                                             Span<std::uint64_t>(data().received)));
  });
}

void decode(benchmark::State& state) {
  const auto levels = levels_of(static_cast<std::size_t>(state.range(0)), state.range(1) != 0);
  std::vector<float> norms(chunk_count(kElements, kChunk));
  quantize_chunks(executor(), random_stream(1, 2, 3, RandomPurpose::rounding), levels,
                  QuantizationNorm::largest, kChunk, data().gradient, {}, norms, data().received);
  against_copy(state, (4.0 + static_cast<double>(levels.bits) / 8) * kElements, kElements, [&] {
    dequantize(executor(), levels, {.chunk = kChunk}, norms, data().received, 0, false, data().copy);
  });
}

/// The gradient as levels, in steps of so many eighths of its root mean square, and their code.
struct Coded {
  explicit Coded(std::int64_t eighths) : levels(kElements), codes(most_entropy_coded_bytes(kElements)) {
    const std::vector<std::uint8_t> scales(stepped_blocks(kElements), kUnitScale);
    const double squares = sum_of_squares(executor(), data().gradient, {});
    const auto root = static_cast<float>(std::sqrt(squares / kElements));
    round_to_levels(executor(), {static_cast<float>(eighths) / 8 * root, scales}, 0.4f, data().gradient, {},
                    levels);
    codes.resize(write_entropy_coded(executor(), levels, codes));
  }
  std::vector<std::int16_t> levels;
  std::vector<std::byte> codes;
};

void write_levels(benchmark::State& state) {
  Coded coded(state.range(0));
  std::vector<std::byte> codes(most_entropy_coded_bytes(kElements));
  against_read(state, 2.0 * kElements + static_cast<double>(coded.codes.size()), kElements,
               [&] { benchmark::DoNotOptimize(write_entropy_coded(executor(), coded.levels, codes)); });
  state.counters["bits"] = 8.0 * static_cast<double>(coded.codes.size()) / kElements;
}

void read_levels(benchmark::State& state) {
  Coded coded(state.range(0));
  against_read(state, 2.0 * kElements + static_cast<double>(coded.codes.size()), kElements,
               [&] { read_entropy_coded(executor(), coded.codes, coded.levels); });
}

BENCHMARK(measure_copy<data>)->Name("copy")->UseManualTime();
BENCHMARK(measure_read<data>)->Name("read")->UseManualTime();
BENCHMARK(pack)->UseManualTime()->Name("pack_signs/gradient");
BENCHMARK(pack_with_residual)->UseManualTime()->Name("pack_signs/gradient+residual");
BENCHMARK(apply)->UseManualTime()->Name("apply_signs");
BENCHMARK(merge)->UseManualTime()->Name("merge_signs");
BENCHMARK(bernoulli)->UseManualTime()->Name("bernoulli_bits/1:m")->Arg(2)->Arg(3)->Arg(4)->Arg(7)->Arg(8);
BENCHMARK(votes)->UseManualTime()->Name("add_votes/3_planes");
BENCHMARK(stochastic)->UseManualTime()->Name("stochastic_signs");
BENCHMARK(encode)->UseManualTime()->Name("encode_half")->ArgName("bf16")->Arg(0)->Arg(1);
BENCHMARK(checksum)->UseManualTime()->Name("crc32c")->ArgName("MiB")->Arg(1)->Arg(95);
BENCHMARK(write_levels)
    ->UseManualTime()
    ->Name("write_entropy_coded")
    ->ArgName("eighths")
    ->Arg(2)
    ->Arg(4)
    ->Arg(8);
BENCHMARK(read_levels)
    ->UseManualTime()
    ->Name("read_entropy_coded")
    ->ArgName("eighths")
    ->Arg(2)
    ->Arg(4)
    ->Arg(8);
BENCHMARK(quantize)->Name("quantize_chunks")->Apply([](auto* kernel) {
  take(kernel, {"bits", "equal", "l2", "residual"},
       {{2, 1, 0, 0},
        {3, 1, 0, 0},
        {8, 1, 0, 0},
        {3, 1, 0, 1},
        {3, 0, 0, 0},
        {3, 0, 1, 0},
        {4, 0, 0, 0},
        {5, 0, 0, 0},
        {7, 0, 0, 0}});
});
BENCHMARK(decode)->Name("dequantize")->Apply([](auto* kernel) {
  take(kernel, {"bits", "equal"}, {{2, 1}, {3, 1}, {8, 1}, {3, 0}, {5, 0}, {7, 0}});
});

}  // namespace
}  // namespace thinwire

BENCHMARK_MAIN();

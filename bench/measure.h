#pragma once
// How kernel benchmarks measure: bandwidth of the best iteration, as a share of what a plain read or memcpy
// of arrays far beyond the last-level cache reached in the same run.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "thinwire/executor.h"

namespace thinwire {

/// Bandwidths of this run's read and memcpy, bytes per second; measured before anything is held against them.
inline double read_bandwidth = 0;
inline double copy_bandwidth = 0;

/// Elements of a gradient, far beyond the last-level cache.
inline constexpr std::size_t kElements = 25'000'000;

/// One core's.
inline Executor& executor() {
  static const auto made = make_cpu_executor(1);
  return *made;
}

/// What all benchmarks of a program work on.
template <class Data>
Data& made_once() {
  static Data all;
  return all;
}

/// Runs body under the benchmark's loop; returns the best bandwidth of an iteration.
template <class Body>
double measure(benchmark::State& state, double bytes, Body body) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (auto _ : state) {
    const auto start = Clock::now();
    body();
    benchmark::ClobberMemory();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::max(best, bytes / seconds);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * static_cast<std::int64_t>(state.iterations()));
  return best;
}

/// Reports the best bandwidth as a share of `bound`, by the name `counter`, and million elements per second.
template <class Body>
void against(benchmark::State& state, const char* counter, double bound, double bytes, double elements,
             Body body) {
  const double best = measure(state, bytes, body);
  state.counters[counter] = best / bound;
  state.counters["Melements/s"] = best / bytes * elements / 1e6;
}

template <class Body>
void against_read(benchmark::State& state, double bytes, double elements, Body body) {
  against(state, "of_read", read_bandwidth, bytes, elements, body);
}
template <class Body>
void against_copy(benchmark::State& state, double bytes, double elements, Body body) {
  against(state, "of_copy", copy_bandwidth, bytes, elements, body);
}

/// memcpy from one array to the other: each byte is read once and written once. data(): has two vectors of
/// floats, `gradient` and `copy`.
template <auto& data>
void measure_copy(benchmark::State& state) {
  const auto& source = data().gradient;
  copy_bandwidth = measure(state, 8.0 * static_cast<double>(source.size()),
                           [&] { std::memcpy(data().copy.data(), source.data(), 4 * source.size()); });
}

/// The fastest read that the C library has: memcmp of two equal arrays touches every byte of both.
template <auto& data>
void measure_read(benchmark::State& state) {
  const auto& one = data().gradient;
  const auto& equal = data().copy = one;
  read_bandwidth = measure(state, 8.0 * static_cast<double>(one.size()), [&] {
    benchmark::DoNotOptimize(std::memcmp(one.data(), equal.data(), 4 * one.size()));
  });
}

/// Values from -1 to 1, the same in every run.
inline void fill_randomly(std::mt19937& random, std::vector<float>& values) {
  for (auto& value : values) value = static_cast<float>(random()) * 0x1p-31f - 1.0f;
}

/// A benchmark of a kernel, which times itself, with each of these lists of arguments.
inline void take(benchmark::internal::Benchmark* kernel, const std::vector<std::string>& names,
                 std::initializer_list<std::vector<std::int64_t>> cases) {
  kernel->UseManualTime()->ArgNames(names);
  for (const auto& arguments : cases) kernel->Args(arguments);
}

/// Gradients of such values.
struct RandomVectors {
  std::mt19937 random{1};
  std::vector<float> gradient, residual, copy;

  RandomVectors() : gradient(kElements), residual(kElements), copy(kElements) {
    for (auto* vector : {&gradient, &residual, &copy}) fill_randomly(random, *vector);
  }
};

}  // namespace thinwire

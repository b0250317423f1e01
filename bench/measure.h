#pragma once
// How kernel benchmarks measure: bandwidth of the best iteration, as a share of what a plain read or memcpy
// of arrays far beyond the last-level cache reached in the same run.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace thinwire {

/// Bandwidths of this run's read and memcpy, bytes per second; measured before anything is held against them.
inline double read_bandwidth = 0;
inline double copy_bandwidth = 0;

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

/// memcpy from one array to the other: each byte is read once and written once.
inline void measure_copy(benchmark::State& state, float* target, const float* source, std::size_t elements) {
  copy_bandwidth =
      measure(state, 8.0 * static_cast<double>(elements), [&] { std::memcpy(target, source, 4 * elements); });
}

/// The fastest read that the C library has: memcmp of two equal arrays touches every byte of both.
inline void measure_read(benchmark::State& state, const float* one, const float* equal,
                         std::size_t elements) {
  read_bandwidth = measure(state, 8.0 * static_cast<double>(elements),
                           [&] { benchmark::DoNotOptimize(std::memcmp(one, equal, 4 * elements)); });
}

}  // namespace thinwire

// What the kernels cost on a CUDA device, beside a copy of the same memory in the same run.
//
//   bench_cuda_kernels [ELEMENTS] [--json FILE]
//
// Vectors lie on the device, frames and lists in pinned host memory as in a session, so that what crosses the
// bus is in the figures. A line: median of the runs, bytes of device memory that the kernel has to read or
// write at least, those per second, and their share of the copy's. "bus" is what crosses it.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/codes/cluster_values.h"
#include "kernels/codes/dequantize.h"
#include "kernels/codes/kmeans.h"
#include "kernels/codes/quantize.h"
#include "kernels/dense/apply_products.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/half.h"
#include "kernels/dense/low_rank.h"
#include "kernels/rows/hash_partition.h"
#include "kernels/rows/nonzeros.h"
#include "kernels/rows/row_access.h"
#include "kernels/selection/block_norms.h"
#include "kernels/selection/select.h"
#include "kernels/signs/random_signs.h"
#include "kernels/signs/sign_bits.h"
#include "kernels/sketches/count_sketch.h"
#include "kernels/sketches/sketch_select.h"
#include "thinwire/cuda.h"
#include "thinwire/workspace.h"
#include "wire/payloads.h"

namespace thinwire {
namespace {

constexpr int kRuns = 7;

struct Line {
  std::string kernel;
  std::size_t elements;
  double seconds;
  double device_bytes;
  double bus_bytes;
};

class Bench {
 public:
  explicit Bench(std::size_t elements)
      : elements_(elements),
        executor_(make_cuda_executor(0)),
        device_(executor_->allocator()),
        pinned_(executor_->shared_allocator()),
        temporary_(executor_->shared_allocator()) {
    std::vector<float> values(elements);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    // A block of normal values, moved about: drawing hundreds of millions would take minutes.
    std::vector<float> block(1 << 20);
    for (auto& value : block) value = normal(random);
    for (std::size_t i = 0; i < elements; ++i) values[i] = block[(i + (i >> 20) * 977) % block.size()];
    gradient_ = place(values);
    residual_ = place(values);
    other_ = device_.take<float>(elements);
    measure("copy", 8, 0, [&] { copy(*executor_, Span<const float>(gradient_), other_); });
    copy_seconds_ = lines_.front().seconds;
  }

  void signs() {
    const auto bits = pinned_.take<std::uint64_t>(sign_words(elements_));
    const double frame = static_cast<double>(bits.size_bytes());
    measure("pack_signs", 4, frame, [&] { pack_signs(*executor_, gradient_, {}, bits); });
    measure("pack_signs with residual", 8, frame,
            [&] { pack_signs(*executor_, gradient_, residual_, bits); });
    measure("apply_signs", 16, frame, [&] { apply_signs(*executor_, bits, 1e-3f, gradient_, residual_); });
    const auto on_device = device_.take<std::uint64_t>(bits.size());
    const auto masks = device_.take<std::uint64_t>(bits.size());
    const RandomStream stream = random_stream(1, 2, 3, RandomPurpose::merge);
    measure("bernoulli_bits 1/3", 0.125, 0, [&] { bernoulli_bits(*executor_, stream, 0, 1, 3, masks); });
    copy(*executor_, Span<const std::uint64_t>(bits), on_device);
    measure("merge_signs", 0.5, 0, [&] { merge_signs(*executor_, on_device, masks, masks); });
  }

  void dense() {
    measure("add", 12, 0, [&] { add(*executor_, other_, gradient_); });
    measure("sum_of_squares", 8, 0, [&] { sum_of_squares(*executor_, gradient_, residual_); });
    const auto halves = pinned_.take<std::uint16_t>(elements_);
    measure("encode_half", 8, static_cast<double>(halves.size_bytes()),
            [&] { encode_half(*executor_, HalfFormat::fp16, gradient_, residual_, halves); });
  }

  void quantizers() {
    const auto levels = QuantizationLevels::uniform(4);
    const auto norms = pinned_.take<float>(chunk_count(elements_, 8192));
    const auto codes = pinned_.take<std::uint64_t>(code_words(elements_, 4));
    const RandomStream stream = random_stream(1, 2, 3, RandomPurpose::rounding);
    const double bus = static_cast<double>(codes.size_bytes() + norms.size_bytes());
    measure("quantize_chunks 4 bits", 8, bus, [&] {
      quantize_chunks(*executor_, stream, levels, QuantizationNorm::largest, 8192, gradient_, residual_,
                      norms, codes);
    });
    measure("dequantize 4 bits", 4, bus,
            [&] { dequantize(*executor_, levels, {.chunk = 8192}, norms, codes, 0, false, other_); });
  }

  void clusters() {
    ClusterGroup group;
    group.end = elements_;
    PerCluster<float> centres{};
    centres[0] = 0.4f, centres[1] = -0.4f, centres[2] = 1.4f, centres[3] = -1.4f;
    set_thresholds(group, 2, centres);
    for (std::size_t c = 0; c < 4; ++c)
      group.sizes[c] = static_cast<std::uint32_t>(std::max<std::size_t>(1, elements_ / 800));
    const ClusterSketch sketch{
        .stream = random_stream(1, 2, 3, RandomPurpose::sketch), .bits = 2, .groups = {&group, 1}};
    const auto codes = pinned_.take<std::uint64_t>(code_words(elements_, 2));
    const auto means = pinned_.take<float>(sketch.cells());
    const double bus = static_cast<double>(codes.size_bytes() + means.size_bytes());
    measure("encode_clusters 2 bits, 0.5 % cells", 8, bus,
            [&] { encode_clusters(*executor_, temporary_, sketch, 0, gradient_, residual_, codes, means); });
  }

  /// Of 5 rows and 1 % of the elements as columns.
  void sketches() {
    const CountSketch sketch = make_count_sketch(random_stream(1, 2, 3, RandomPurpose::sketch), 5,
                                                 std::max<std::size_t>(64, elements_ / 100), 64);
    const auto table = device_.take<float>(sketch.cells());
    fill(*executor_, table, 0);
    measure("insert, 5 rows", 8, 0, [&] { insert(*executor_, sketch, gradient_, residual_, table); });
    measure("query, 5 rows", 4, 0, [&] { query(*executor_, sketch, table, other_); });
    const std::size_t k = std::max<std::size_t>(1, elements_ / 1000);
    measure("select_largest, 0.1 %", 8, 8.0 * static_cast<double>(k),
            [&] { select_largest(*executor_, temporary_, gradient_, residual_, k); });
    const auto host_table = pinned_.take<float>(sketch.cells());
    copy(*executor_, Span<const float>(table), host_table);
    measure("select_largest_estimates, 0.1 %", 0,
            static_cast<double>(host_table.size_bytes()) + 8.0 * static_cast<double>(k),
            [&] { select_largest_estimates(*executor_, temporary_, sketch, elements_, host_table, k); });
    const auto norms = pinned_.take<float>(block_count(elements_, 256));
    measure("block_norms, 256", 8, static_cast<double>(norms.size_bytes()),
            [&] { block_norms(*executor_, gradient_, residual_, 256, norms); });
  }

  /// Zen at densities of 1 to 10 %, 16 owners.
  void zen() {
    for (const double density : {0.01, 0.03, 0.1}) {
      const std::string at = ", " + std::to_string(static_cast<int>(std::lround(100 * density))) + " %";
      std::mt19937 random(3);
      std::bernoulli_distribution chosen(density);
      std::vector<std::uint32_t> positions;
      for (std::size_t i = 0; i < elements_; ++i) {
        if (chosen(random)) positions.push_back(static_cast<std::uint32_t>(i));
      }
      const auto indices = place(positions);
      const double bytes = static_cast<double>(positions.size());
      const auto sparse = other_;
      fill(*executor_, sparse, 0);
      scatter_rows(*executor_, indices, gradient_.first(positions.size()), 1, sparse);
      measure("find_nonzeros" + at, 4, 8 * bytes, [&] { find_nonzeros(*executor_, sparse, {}, temporary_); });
      constexpr std::size_t kOwners = 16;
      const auto owner_of = device_.take<std::uint16_t>(positions.size());
      std::vector<std::size_t> counts(kOwners);
      measure("find_owners" + at, 6 * bytes / static_cast<double>(elements_), 0,
              [&] { find_owners(*executor_, indices, elements_, kOwners, owner_of, counts); });
      const auto split = device_.take<std::uint32_t>(positions.size());
      const auto serial = device_.take<std::uint32_t>(positions.size());
      // Figure 14: r1 in units of the number of non-zeros, and k hashes.
      for (const double room : {1.0, 1.5, 2.0, 4.0}) {
        for (const int rounds : {1, 2, 3, 4}) {
          if (room != 2.0 && rounds != 3) continue;
          HierarchicalHashShape shape = HierarchicalHashParameters{}.shape(positions.size(), kOwners);
          shape.slots = static_cast<std::size_t>(room * static_cast<double>(positions.size())) / kOwners;
          shape.rounds = rounds;
          const RandomStream stream = random_stream(1, 2, 3, RandomPurpose::ownership);
          const HashMemory memory{
              .slots = device_.take<std::uint32_t>(kOwners * shape.slots), .serial = serial, .cursors = {}};
          std::size_t overflow = 0;
          measure("", (8 + 8 * room) * bytes / static_cast<double>(elements_), 0, [&] {
            overflow =
                split_positions_by_hash(*executor_, shape, stream, indices, owner_of, counts, memory, split);
          });
          char name[128];
          std::snprintf(name, sizeof name, "Algorithm 1%s, r1 = %.1f nnz, k = %d (serial %.2f %%)",
                        at.c_str(), room, rounds, 100.0 * static_cast<double>(overflow) / bytes);
          lines_.back().kernel = name;
        }
      }
    }
  }

  void low_rank() {
    const std::size_t rows = 4096;
    const MatrixShape shape{rows, elements_ / rows};
    if (shape.columns == 0) return;
    const auto left = device_.take<float>(4 * shape.rows);
    const auto right = device_.take<float>(4 * shape.columns);
    fill(*executor_, right, 1);
    const auto matrix = gradient_.first(shape.elements());
    measure("multiply_right, rank 4", 4, 0,
            [&] { multiply_right(*executor_, shape, 4, matrix, right, left); });
    measure("multiply_left, rank 4", 4, 0, [&] { multiply_left(*executor_, shape, 4, matrix, left, right); });
    measure("apply_products, rank 4", 4, 0, [&] {
      apply_products(*executor_, shape, 4, {left, right}, {}, other_.first(shape.elements()), {});
    });
  }

  void print() const {
    const double copy_rate = 8 * static_cast<double>(elements_) / copy_seconds_;
    std::printf("%zu elements; copy %.0f GB/s, read and written\n\n", elements_, copy_rate / 1e9);
    std::printf("| kernel | ms | device GB/s | of copy | bus MB |\n| --- | --- | --- | --- | --- |\n");
    for (const Line& line : lines_) {
      const double rate = line.device_bytes / line.seconds;
      std::printf("| %s | %.3f | %.0f | %.2f | %.1f |\n", line.kernel.c_str(), 1e3 * line.seconds, rate / 1e9,
                  rate / copy_rate, line.bus_bytes / 1e6);
    }
  }

  void write_json(std::ostream& out) const {
    out << "[";
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const Line& line = lines_[i];
      out << (i == 0 ? "\n" : ",\n") << R"(  {"kernel": ")" << line.kernel << R"(", "elements": )"
          << line.elements << R"(, "seconds": )" << line.seconds << R"(, "device_bytes": )"
          << line.device_bytes << R"(, "bus_bytes": )" << line.bus_bytes << "}";
    }
    out << "\n]\n";
  }

 private:
  template <class T>
  Span<T> place(const std::vector<T>& values) {
    const Span<T> span = device_.take<T>(values.size());
    copy(*executor_, Span<const T>(values), span);
    return span;
  }

  /// Adds a line: the median of the runs of one call, which `temporary_` is empty for.
  void measure(std::string kernel, double bytes_per_element, double bus_bytes,
               const std::function<void()>& call) {
    std::vector<double> seconds;
    for (int run = -1; run < kRuns; ++run) {  // the first warms up
      temporary_.reset();
      const auto begin = std::chrono::steady_clock::now();
      call();
      executor_->wait();
      if (run >= 0) {
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      }
    }
    std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
    lines_.push_back({std::move(kernel), elements_, seconds[kRuns / 2],
                      bytes_per_element * static_cast<double>(elements_), bus_bytes});
  }

  std::size_t elements_;
  std::unique_ptr<Executor> executor_;
  Workspace device_;
  Workspace pinned_;
  Workspace temporary_;  // of one call
  Span<float> gradient_;
  Span<float> residual_;
  Span<float> other_;
  double copy_seconds_ = 0;
  std::vector<Line> lines_;
};

int run(int count, char** arguments) {
  std::size_t elements = 25'000'000;
  std::string json;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "--json" && i + 1 < count) {
      json = arguments[++i];
    } else if (!argument.empty() && argument.find_first_not_of("0123456789") == std::string::npos) {
      elements = std::strtoull(argument.c_str(), nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: bench_cuda_kernels [ELEMENTS] [--json FILE]\n");
      return 2;
    }
  }
  if (cuda_devices() == 0) {
    std::fprintf(stderr, "bench_cuda_kernels: no CUDA device that this build can use\n");
    return 1;
  }
  Bench bench(elements);
  bench.signs();
  bench.dense();
  bench.quantizers();
  bench.clusters();
  bench.sketches();
  bench.low_rank();
  bench.zen();
  bench.print();
  if (!json.empty()) {
    std::ofstream out(json);
    bench.write_json(out);
  }
  return 0;
}

}  // namespace
}  // namespace thinwire

int main(int count, char** arguments) {
  try {
    return thinwire::run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cuda_kernels: %s\n", error.what());
    return 1;
  }
}

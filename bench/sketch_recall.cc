// How much of the true top-k Sketched-SGD's candidates hold, against rows, columns and P. The gradients have
// a power-law tail: |g| of the i-th largest element is i^-exponent, at random places, with random signs.
// docs/kernels.md says what the table means.
//
//   bench_sketch_recall [ELEMENTS [K [EXPONENT [DRAWS [RUN]]]]]
//
// Prints a Markdown table: one line per table size, one column per P. Recall is the
// mean over draws of the hashes.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/sketches/sketch_select.h"

namespace thinwire {
namespace {

struct Setting {
  std::size_t elements = 1'000'000;
  std::size_t k = 1'500;
  double exponent = 0.7;
  std::uint64_t draws = 5;
  std::size_t run = 64;
};

struct Gradient {
  std::vector<float> values;
  std::vector<bool> largest;  // the true top-k
};

Gradient power_law(const Setting& setting) {
  std::mt19937 random(1);
  std::vector<std::uint32_t> order(setting.elements);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  Gradient gradient{std::vector<float>(setting.elements), std::vector<bool>(setting.elements)};
  for (std::size_t i = 0; i < setting.elements; ++i) {
    const double magnitude = std::pow(static_cast<double>(i + 1), -setting.exponent);
    gradient.values[order[i]] = static_cast<float>((random() & 1) != 0 ? magnitude : -magnitude);
    gradient.largest[order[i]] = i < setting.k;
  }
  return gradient;
}

constexpr std::size_t kCandidates[] = {1, 2, 4, 8, 20};

/// Recall for each P of kCandidates. The candidates of a smaller P are among those of a larger.
void print_line(const Setting& setting, const Gradient& gradient, std::size_t rows, std::size_t columns) {
  const auto executor = make_cpu_executor(1);
  std::vector<float> table(rows * columns);
  Workspace workspace;
  std::printf("| %zu x %zu | %.4f |", rows, columns,
              static_cast<double>(rows * columns) / static_cast<double>(setting.elements));
  for (const std::size_t p : kCandidates) {
    std::size_t found = 0;
    for (std::uint64_t draw = 0; draw < setting.draws; ++draw) {
      const CountSketch sketch =
          make_count_sketch(random_stream(draw, 0, 0, RandomPurpose::sketch), rows, columns, setting.run);
      std::fill(table.begin(), table.end(), 0.0f);
      insert(*executor, sketch, gradient.values, {}, table);
      workspace.reset();
      const Selection candidates = select_largest_estimates(*executor, workspace, sketch, setting.elements,
                                                            table, std::min(p * setting.k, setting.elements));
      for (const std::uint32_t i : candidates.indices) found += gradient.largest[i] ? 1 : 0;
    }
    std::printf(" %.3f |", static_cast<double>(found) / static_cast<double>(setting.k * setting.draws));
  }
  std::printf("\n");
}

void print_table(const Setting& setting) {
  std::printf("%zu elements, k %zu, exponent %g, %llu draws, runs of %zu\n\n", setting.elements, setting.k,
              setting.exponent, static_cast<unsigned long long>(setting.draws), setting.run);
  std::printf("| rows x columns | cells / d |");
  for (const std::size_t p : kCandidates) std::printf(" P = %zu |", p);
  std::printf("\n| --- | --- |");
  for (std::size_t i = 0; i < std::size(kCandidates); ++i) std::printf(" --- |");
  std::printf("\n");
  const Gradient gradient = power_law(setting);
  for (const double share : {0.01, 0.02, 0.05, 0.1}) {
    for (const std::size_t rows : {1u, 3u, 5u, 9u, 29u}) {
      const double columns = share * static_cast<double>(setting.elements) / static_cast<double>(rows);
      print_line(setting, gradient, rows, static_cast<std::size_t>(std::max(1.0, columns)));
    }
  }
}

}  // namespace
}  // namespace thinwire

int main(int argc, char** argv) {
  thinwire::Setting setting;
  auto number = [&](int at, double otherwise) { return argc > at ? std::atof(argv[at]) : otherwise; };
  setting.elements = static_cast<std::size_t>(number(1, static_cast<double>(setting.elements)));
  setting.k = static_cast<std::size_t>(number(2, static_cast<double>(setting.k)));
  setting.exponent = number(3, setting.exponent);
  setting.draws = static_cast<std::uint64_t>(number(4, static_cast<double>(setting.draws)));
  setting.run = static_cast<std::size_t>(number(5, static_cast<double>(setting.run)));
  if (setting.k == 0 || setting.k > setting.elements || setting.draws == 0) {
    std::fprintf(stderr,
                 "bench_sketch_recall: ELEMENTS, K and DRAWS must be at least 1, K at most ELEMENTS\n");
    return 2;
  }
  try {
    thinwire::print_table(setting);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_sketch_recall: %s\n", error.what());
    return 2;
  }
}

#include "apps/gradients/synthetic.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/philox.h"

namespace thinwire::apps {
namespace {

double uniform(std::uint32_t word) {
  return (static_cast<double>(word) + 0.5) * 0x1p-32;
}

/// Two normal numbers per pair of words (Box and Muller).
void fill_normal(const RandomStream& stream, std::uint64_t first, Span<float> values) {
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const std::uint64_t index = (first + i) / 4;
    const auto words =
        stream.block(static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32));
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const auto radius = static_cast<float>(std::sqrt(-2 * std::log(uniform(words[2 * pair]))));
      const float angle = static_cast<float>(uniform(words[2 * pair + 1])) * 2 * std::numbers::pi_v<float>;
      if (i + 2 * pair < values.size()) values[i + 2 * pair] = radius * std::cos(angle);
      if (i + 2 * pair + 1 < values.size()) values[i + 2 * pair + 1] = radius * std::sin(angle);
    }
  }
}

/// A fixed permutation of the rows, so that hot rows do not lie side by side: multiplication by a number that
/// has no factor in common with their count.
std::uint64_t scatter_step(std::uint64_t rows) {
  std::uint64_t step = static_cast<std::uint64_t>(static_cast<double>(rows) * 0.6180339887) | 1;
  while (std::gcd(step, rows) != 1) step += 2;
  return step;
}

/// A row that may be among the chosen.
struct Candidate {
  double log_waiting;
  std::uint32_t number;  // from 0, most popular first
  bool operator<(const Candidate& other) const {
    return log_waiting != other.log_waiting ? log_waiting < other.log_waiting : number < other.number;
  }
};

/// Rows whose waiting time is below exp(log_time), and a few whose is not, in order of their numbers. A row's
/// waiting time is made of one word, -ln(1 - u) number^zipf; most rows are passed over by comparing u alone.
void find_candidates(const RandomStream& stream, const Skew& skew, double log_time,
                     std::vector<Candidate>& candidates) {
  candidates.clear();
  constexpr std::uint64_t kRun = 1024;  // rows that share a bound on u
  for (std::uint64_t first = 0; first < skew.rows(); first += kRun) {
    const double log_mean = skew.zipf() * std::log(static_cast<double>(first + 1));
    const double bound = -std::expm1(-std::exp(log_time - log_mean)) * 0x1p32 + 1;
    const std::uint64_t last = std::min(first + kRun, skew.rows());
    for (std::uint64_t row = first; row < last; row += 4) {
      const auto words = stream.block(static_cast<std::uint32_t>(row / 4), 0);
      for (std::uint64_t i = 0; i < std::min<std::uint64_t>(4, last - row); ++i) {
        if (static_cast<double>(words[i]) > bound) continue;
        const double log_waiting = std::log(-std::log1p(-uniform(words[i]))) +
                                   skew.zipf() * std::log(static_cast<double>(row + i + 1));
        candidates.push_back({log_waiting, static_cast<std::uint32_t>(row + i)});
      }
    }
  }
}

Skew make_skew(const SyntheticGradient& shape, int world) {
  if (!(shape.density > 0 && shape.density <= 1)) {
    throw std::invalid_argument(fmt::format("--density {} must be above 0 and at most 1", shape.density));
  }
  if (!(shape.tails >= 0 && shape.tails <= 5)) {
    throw std::invalid_argument(fmt::format("--tails {} must be from 0 to 5", shape.tails));
  }
  if (shape.row_width == 0 || shape.elements == 0 || shape.elements % shape.row_width != 0) {
    throw std::invalid_argument("row width " + std::to_string(shape.row_width) + " must divide the " +
                                std::to_string(shape.elements) + " elements of the gradient");
  }
  const std::uint64_t rows = shape.elements / shape.row_width;
  const auto wanted = static_cast<std::uint64_t>(std::llround(static_cast<double>(rows) * shape.density));
  const std::uint64_t chosen = std::clamp<std::uint64_t>(wanted, 1, rows);
  if (shape.gamma) return Skew::fitted_to_gamma(rows, chosen, world, *shape.gamma);
  return {rows, chosen, world, shape.zipf};
}

}  // namespace

SyntheticSource::SyntheticSource(const SyntheticGradient& shape, int world)
    : shape_(shape), skew_(make_skew(shape, world)) {
  buckets_.push_back({.parameters = {{"gradient", static_cast<std::size_t>(shape.elements)}},
                      .row_sparse = shape.row_width > 1,
                      .rows = skew_.rows(),
                      .width = shape.row_width});
  if (!shape.contiguous) scatter_step_ = scatter_step(skew_.rows());
}

/// Ascending.
void SyntheticSource::choose_rows(int rank, std::uint64_t step, std::vector<std::uint32_t>& rows) const {
  const auto chosen = static_cast<std::size_t>(skew_.chosen());
  rows.resize(chosen);
  if (skew_.chosen() == skew_.rows()) {
    std::iota(rows.begin(), rows.end(), 0u);
    return;
  }
  const RandomStream stream =
      random_stream(shape_.seed, step, 0, RandomPurpose::bench, static_cast<std::uint32_t>(rank), 1);
  std::vector<Candidate> candidates;
  // A little more time than is expected to be needed; more if it was not enough.
  double log_time = skew_.log_time() + 10 / std::sqrt(static_cast<double>(chosen));
  do {
    find_candidates(stream, skew_, log_time, candidates);
    log_time += 1;
  } while (candidates.size() < chosen);
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(chosen) - 1,
                   candidates.end());
  for (std::size_t i = 0; i < chosen; ++i) {
    rows[i] = static_cast<std::uint32_t>(candidates[i].number * scatter_step_ % skew_.rows());
  }
  std::sort(rows.begin(), rows.end());
}

void SyntheticSource::fill_values(int rank, std::uint64_t step, std::uint64_t first,
                                  Span<float> values) const {
  const auto stream = [&](std::uint32_t part) {
    return random_stream(shape_.seed, step, 0, RandomPurpose::bench, static_cast<std::uint32_t>(rank), part);
  };
  fill_normal(stream(0), first, values);
  if (shape_.tails == 0) return;
  std::vector<float> spread(values.size());
  fill_normal(stream(2), first, spread);
  const auto tails = static_cast<float>(shape_.tails);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= std::exp(tails * spread[i]);
}

RowSparse SyntheticSource::rows(int rank, std::uint64_t step, std::size_t, RowBuffer& buffer) const {
  choose_rows(rank, step, buffer.indices);
  const auto width = static_cast<std::size_t>(shape_.row_width);
  buffer.values.resize(buffer.indices.size() * width);
  for (std::size_t i = 0; i < buffer.indices.size(); ++i) {
    fill_values(rank, step, buffer.indices[i] * std::uint64_t{width} * 4,
                Span<float>(buffer.values).subspan(i * width, width));
  }
  return {.row_indices = buffer.indices,
          .values = buffer.values,
          .rows = static_cast<std::size_t>(skew_.rows()),
          .width = width};
}

void SyntheticSource::dense(int rank, std::uint64_t step, std::size_t bucket, Span<float> gradient) const {
  if (gradient.size() != shape_.elements) {
    throw std::invalid_argument("the synthetic gradient has " + std::to_string(shape_.elements) +
                                " elements, not " + std::to_string(gradient.size()));
  }
  if (shape_.density == 1) return fill_values(rank, step, 0, gradient);
  RowBuffer buffer;
  const RowSparse sparse = rows(rank, step, bucket, buffer);
  std::fill(gradient.begin(), gradient.end(), 0.0f);
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    const auto row = sparse.row(i);
    std::copy(row.begin(), row.end(), gradient.begin() + sparse.row_indices[i] * sparse.width);
  }
}

}  // namespace thinwire::apps

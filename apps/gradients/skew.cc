#include "apps/gradients/skew.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace thinwire::apps {
namespace {

/// Rows up to here are terms of their own, then a block's last row is 1/kFineness further than its first.
constexpr std::uint64_t kSingleRows = 4096;
constexpr std::uint64_t kFineness = 512;
constexpr int kHalvings = 60;

}  // namespace

Skew::Skew(std::uint64_t rows, std::uint64_t chosen, int world, double zipf)
    : rows_(rows), chosen_(chosen), world_(world), zipf_(zipf) {
  if (chosen < 1 || chosen > rows || rows > 0xFFFFFFFF || world < 1) {
    throw std::invalid_argument(
        fmt::format("{} of {} rows on {} ranks cannot be drawn", chosen, rows, world));
  }
  if (!(zipf >= 0 && zipf <= kLargestZipf)) {
    throw std::invalid_argument(fmt::format("zipf {} must be from 0 to {}", zipf, kLargestZipf));
  }
  for (std::uint64_t first = 1; first <= rows;) {
    const std::uint64_t count = first <= kSingleRows ? 1 : std::min(rows + 1 - first, first / kFineness);
    const double middle = static_cast<double>(first) + static_cast<double>(count - 1) / 2;
    blocks_.push_back({std::log(middle), static_cast<double>(count)});
    first += count;
  }
  fit_time();
}

/// Rows whose waiting time is over.
double Skew::expected_rows(double log_time) const {
  double sum = 0;
  for (const Block& block : blocks_) {
    sum -= block.rows * std::expm1(-std::exp(log_time - zipf_ * block.log_number));
  }
  return sum;
}

void Skew::fit_time() {
  if (chosen_ == rows_) {
    log_time_ = std::numeric_limits<double>::infinity();
    return;
  }
  const auto wanted = static_cast<double>(chosen_);
  double low = std::log(wanted / static_cast<double>(rows_)) - 1;  // fewer than wanted, even at zipf = 0
  double high = 5 + zipf_ * std::log(static_cast<double>(rows_));  // all
  // Newton's method, kept between what is known to be too early and too late.
  log_time_ = (low + high) / 2;
  for (int i = 0; i < kHalvings; ++i) {
    double rows = 0;
    double slope = 0;
    for (const Block& block : blocks_) {
      const double rate = std::exp(log_time_ - zipf_ * block.log_number);
      const double waiting = std::exp(-rate);
      rows += block.rows * (1 - waiting);
      slope += block.rows * waiting * std::min(rate, 1e100);
    }
    if (std::fabs(rows - wanted) < 1e-9 * wanted) return;
    (rows < wanted ? low : high) = log_time_;
    log_time_ -= (rows - wanted) / slope;
    if (!(log_time_ > low && log_time_ < high)) log_time_ = (low + high) / 2;
  }
}

double Skew::gamma() const {
  return expected_rows(log_time_ + std::log(world_)) / static_cast<double>(chosen_);
}

Skew Skew::fitted_to_gamma(std::uint64_t rows, std::uint64_t chosen, int world, double gamma) {
  Skew skew(rows, chosen, world, 0);
  const double largest = skew.gamma();
  // What is printed as the largest is accepted.
  if (!(gamma >= 1 && gamma <= largest * 1.0005)) {
    throw std::invalid_argument(
        fmt::format("gamma {}: the union of {} ranks that hold {} of {} rows each can be from 1 to {:.4g} "
                    "times as large as one rank's",
                    gamma, world, chosen, rows, largest));
  }
  double low = 0;
  double high = kLargestZipf;
  for (int i = 0; i < kHalvings && gamma < largest; ++i) {
    skew.zipf_ = (low + high) / 2;
    skew.fit_time();
    (skew.gamma() > gamma ? low : high) = skew.zipf_;
  }
  skew.zipf_ = low;
  skew.fit_time();
  return skew;
}

}  // namespace thinwire::apps

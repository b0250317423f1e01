#include "systems/zen/selector.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "comm/link_probe.h"
#include "exchange/collectives.h"
#include "exchange/recursive_doubling.h"
#include "kernels/rows/bitmap.h"

namespace thinwire {

SchemeProfile::SchemeProfile(const PushPull& exchange, std::size_t width, Step& step)
    : step_(step),
      width_(width),
      world_(static_cast<std::size_t>(step.communicator.size())),
      self_(static_cast<std::size_t>(step.communicator.rank())),
      power_(largest_power_of_two(world_)) {
  const auto counts = step.workspace.take<float>(2 * power_ - 1 + world_);
  std::fill(counts.begin(), counts.end(), 0.0f);
  group_rows_ = counts.first(2 * power_ - 1);
  rank_rows_ = counts.subspan(2 * power_ - 1, world_);
  count_unions(exchange);
}

void SchemeProfile::count_unions(const PushPull& exchange) {
  const std::size_t words = bitmap_words(exchange.owned_slots());
  const auto unions = step_.workspace.take<std::uint64_t>(power_ * words);
  std::fill(unions.begin(), unions.end(), 0);
  for (std::size_t rank = 0; rank < world_; ++rank) {
    const auto slots = exchange.merged_slots()[rank];
    set_bits(step_.executor, slots, unions.subspan(rank % power_ * words, words));
    if (rank != self_) push_received_ += slots.size();
  }
  std::size_t at = 0;
  for (std::size_t groups = power_;; groups /= 2) {
    for (std::size_t g = 0; g < groups; ++g) {
      std::uint64_t rows = 0;
      for (const std::uint64_t word : unions.subspan(g * words, words)) {
        rows += static_cast<std::uint64_t>(std::popcount(word));
      }
      group_rows_[at++] = static_cast<float>(rows);
    }
    if (groups == 1) break;
    // Neighbours merge; group g of the next level lies where its first half lay, moved to the front.
    for (std::size_t g = 0; g < groups / 2; ++g) {
      for (std::size_t w = 0; w < words; ++w) {
        unions[g * words + w] = unions[2 * g * words + w] | unions[(2 * g + 1) * words + w];
      }
    }
  }
}

SchemeProfile::Record SchemeProfile::record_of(const PushPull& exchange, LinkModel& link) {
  if (link.bytes_per_second == 0) {
    const MeasuredLink measured =
        measure_link(step_.communicator, step_.workspace.take<std::byte>(kLinkProbeScratchBytes));
    link = {measured.latency_seconds, measured.bytes_per_second};
    step_.report.formula_bytes += link_probe_bytes();
  }
  const auto pushed = exchange.pushed_rows();
  const auto pulled = exchange.pulled_bytes();
  const std::size_t rows = std::accumulate(pushed.begin(), pushed.end(), std::size_t{0});
  const std::uint64_t all_pulls = std::accumulate(pulled.begin(), pulled.end(), std::uint64_t{0});
  rank_rows_[self_] = static_cast<float>(rows);
  return {.push_sent = static_cast<double>(row_list_bytes(rows - pushed[self_], width_)),
          .push_received = static_cast<double>(row_list_bytes(push_received_, width_)),
          .pull_sent = static_cast<double>((world_ - 1) * pulled[self_]),
          .pull_received = static_cast<double>(all_pulls - pulled[self_]),
          .latency_seconds = link.latency_seconds,
          .bytes_per_second = link.bytes_per_second};
}

PredictedSeconds SchemeProfile::predict(const PushPull& exchange, LinkModel& link) {
  const auto records = gather(step_, record_of(exchange, link));
  step_.report.formula_bytes += (world_ - 1) * sizeof(Record);
  // Counts above 2^24 lose their last digits in floats, which a prediction can bear.
  const Span<float> counts(group_rows_.data(), group_rows_.size() + rank_rows_.size());
  all_reduce_sum(step_, counts);
  step_.report.formula_bytes += step_.communicator.ring_sent_bytes(counts.size(), sizeof(float));
  return seconds_of(records);
}

PredictedSeconds SchemeProfile::seconds_of(Span<const Record> records) const {
  auto most = [&](double Record::*one, double Record::*other) {
    double value = 0;
    for (const Record& record : records) value = std::max({value, record.*one, record.*other});
    return value;
  };
  auto mean = [&](double Record::*field) {
    double sum = 0;
    for (const Record& record : records) sum += record.*field;
    return sum / static_cast<double>(world_);
  };
  const double latency = mean(&Record::latency_seconds);
  const double rate = mean(&Record::bytes_per_second);
  const double row_bytes = static_cast<double>(row_list_bytes(1, width_));
  auto largest = [](Span<const float> rows) {
    return static_cast<double>(*std::max_element(rows.begin(), rows.end()));
  };

  PredictedSeconds seconds;
  seconds.push_pull = 2 * latency + (most(&Record::push_sent, &Record::push_received) +
                                     most(&Record::pull_sent, &Record::pull_received)) /
                                        rate;
  double rows = 0;
  std::size_t at = 0;
  int stages = 0;
  for (std::size_t groups = power_; groups > 1; at += groups, groups /= 2, ++stages) {
    rows += largest(group_rows_.subspan(at, groups));
  }
  if (world_ > power_) {  // fold in, fold out
    rows += largest(rank_rows_.subspan(power_, world_ - power_)) + static_cast<double>(group_rows_[at]);
    stages += 2;
  }
  seconds.centralization = stages * latency + rows * row_bytes / rate;
  return seconds;
}

}  // namespace thinwire

#include "apps/measurement.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "thinwire/registry.h"

namespace thinwire::apps {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

Json negative_is_null(double value) {
  return value < 0 ? Json() : Json(value);
}

/// Of two ranges together; a negative one is unknown and left out.
double combine_norms(double a, double b) {
  if (a < 0 || b < 0) return std::max(a, b);
  return std::hypot(a, b);
}

/// The name without options, of both sides of a pair.
std::string system_name(const std::string& spec) {
  const SpecPair pair = parse_spec_pair(spec);
  const std::string dense = parse_spec(pair.dense).back().name;
  return pair.rows == pair.dense ? dense : parse_spec(pair.rows).back().name + "," + dense;
}

}  // namespace

void RankMeasurement::begin_step() {
  residual_norm = -1;
  residual_deviation = -1;
}

void RankMeasurement::add(const StepReport& report) {
  wire_bytes_sent += static_cast<double>(report.wire.sent_bytes);
  wire_bytes_received += static_cast<double>(report.wire.received_bytes);
  frame_header_bytes += static_cast<double>(report.frame_header_bytes);
  formula_bytes += static_cast<double>(report.formula_bytes);
  messages += static_cast<double>(report.wire.sent_messages);
  host_bytes_sent += static_cast<double>(report.host_bytes_sent);
  seconds_compress += report.seconds_compress;
  seconds_communicate += report.seconds_communicate;
  seconds_decompress += report.seconds_decompress;
  seconds_wait += report.seconds_wait;
  imbalance_push = std::max(imbalance_push, report.imbalance_push);
  imbalance_pull = std::max(imbalance_pull, report.imbalance_pull);
  residual_norm = combine_norms(residual_norm, report.residual_norm);
  residual_deviation = combine_norms(residual_deviation, report.residual_deviation);
}

void RankMeasurement::divide(int steps) {
  for (double* sum :
       {&wire_bytes_sent, &wire_bytes_received, &frame_header_bytes, &formula_bytes, &messages,
        &host_bytes_sent, &seconds_compress, &seconds_communicate, &seconds_decompress, &seconds_wait}) {
    *sum /= steps;
  }
}

void RankMeasurement::hash_in(Span<const float> mean) {
  for (const float value : mean) hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3u;
}

void RankMeasurement::hash_in(const RowSparse& mean) {
  for (const std::uint32_t row : mean.row_indices) hash = (hash ^ row) * 0x100000001b3u;
  hash_in(mean.values);
}

bool Measurement::ranks_agree() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const RankMeasurement& rank) { return rank.hash == ranks[0].hash; });
}

Json to_json(const Measurement& measurement) {
  const auto& ranks = measurement.ranks;
  const auto most = [&](double RankMeasurement::*field) {
    double value = ranks[0].*field;
    for (const auto& rank : ranks) value = std::max(value, rank.*field);
    return value;
  };
  const auto mean = [&](double RankMeasurement::*field) {
    double value = 0;
    for (const auto& rank : ranks) value += rank.*field;
    return value / static_cast<double>(ranks.size());
  };
  const auto unless_virtual = [&](double value) { return measurement.virtual_clock ? Json() : Json(value); };

  Json json;
  json["system"] = system_name(measurement.spec);
  json["spec"] = measurement.spec;
  json["spec_with_defaults"] = measurement.canonical_spec;
  json["engine"] = measurement.engine;
  json["workers"] = measurement.workers;
  json["elements"] = measurement.elements;
  json["row_width"] = measurement.row_width;
  json["density_in"] = measurement.density_in;
  json["density_out"] = measurement.density_out;
  json["steps"] = measurement.steps;
  json["wire_bytes_sent_max"] = most(&RankMeasurement::wire_bytes_sent);
  json["wire_bytes_sent_mean"] = mean(&RankMeasurement::wire_bytes_sent);
  json["wire_bytes_received_max"] = most(&RankMeasurement::wire_bytes_received);
  json["wire_bytes_formula"] = most(&RankMeasurement::formula_bytes);
  json["frame_header_bytes_max"] = most(&RankMeasurement::frame_header_bytes);
  json["messages_max"] = most(&RankMeasurement::messages);
  json["host_bytes_sent_max"] = most(&RankMeasurement::host_bytes_sent);
  json["seconds_median"] = median(measurement.step_seconds);
  json["seconds_min"] = *std::min_element(measurement.step_seconds.begin(), measurement.step_seconds.end());
  json["seconds_compress"] = most(&RankMeasurement::seconds_compress);
  json["seconds_communicate"] = unless_virtual(most(&RankMeasurement::seconds_communicate));
  json["seconds_decompress"] = most(&RankMeasurement::seconds_decompress);
  json["seconds_wait"] = unless_virtual(most(&RankMeasurement::seconds_wait));
  // Share of a step in which a rank was computing while its messages travelled: what the ring hides.
  json["overlap"] = nullptr;
  if (const double busy =
          mean(&RankMeasurement::seconds_communicate) + mean(&RankMeasurement::seconds_compress);
      !measurement.virtual_clock && most(&RankMeasurement::seconds_compress) > 0) {
    json["overlap"] = 1 - mean(&RankMeasurement::seconds_wait) / busy;
  }
  json["seconds_copy"] = or_null(measurement.seconds_copy);
  json["modelled_seconds"] = or_null(measurement.modelled_seconds);
  json["relative_error"] = or_null(measurement.relative_error);
  json["conservation_error"] = or_null(measurement.conservation_error);
  json["residual_norm"] = negative_is_null(mean(&RankMeasurement::residual_norm));
  json["residual_deviation"] = negative_is_null(mean(&RankMeasurement::residual_deviation));
  json["ranks_agree"] = measurement.ranks_agree();
  json["imbalance_push"] = negative_is_null(most(&RankMeasurement::imbalance_push));
  json["imbalance_pull"] = negative_is_null(most(&RankMeasurement::imbalance_pull));
  json["seed"] = measurement.seed;
  return json;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double norm(Span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

std::size_t count_non_zeros(Span<const float> values) {
  return values.size() - static_cast<std::size_t>(std::count(values.begin(), values.end(), 0.0f));
}

}  // namespace thinwire::apps

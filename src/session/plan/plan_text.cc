// A plan as a table and as JSON.

#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "session/plan/plan.h"

namespace thinwire {
namespace {

__attribute__((format(printf, 1, 2))) std::string text_of(const char* format, ...) {
  std::array<char, 512> text{};
  va_list values;
  va_start(values, format);
  std::vsnprintf(text.data(), text.size(), format, values);
  va_end(values);
  return text.data();
}

std::string number(double value) {
  return std::isfinite(value) ? text_of("%.9g", value) : "null";
}

/// Specs have no characters that JSON escapes, but are not to be trusted with that.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

double gbit(const VirtualLink& link) {
  return link.bytes_per_second * 8e-9;
}

std::size_t all_elements_of(const PlanRequest& request) {
  std::size_t elements = 0;
  for (const BucketLayout& bucket : request.buckets) elements += elements_of(bucket);
  return elements;
}

std::string head_of(const Plan& plan, const PlansElsewhere& elsewhere) {
  std::string text = text_of("%-28s %13s %10s %9s %8s %8s %8s", "candidate", "bytes sent", "step, ms",
                             "exposed", "codec", "wire", "wait");
  if (plan.rows[0].simulated_seconds) text += text_of(" %10s", "simulated");
  for (const auto& [name, other] : elsewhere) text += text_of(" %11s", ("at " + name).c_str());
  return text + "\n";
}

std::string row_of(const Plan& plan, std::size_t index, const PlansElsewhere& elsewhere) {
  const PlanRow& row = plan.rows[index];
  const StepCost& cost = row.cost;
  std::string spec = row.spec;
  if (spec.size() > 28) spec = spec.substr(0, 25) + "...";
  std::string text = text_of("%-28s %13.0f %9.2f%s %9.2f %8.2f %8.2f %8.2f", spec.c_str(),
                             static_cast<double>(row.payload_bytes) + row.header_bytes, 1e3 * cost.step,
                             index == plan.choice ? "*" : " ", 1e3 * cost.exposed(), 1e3 * cost.codec,
                             1e3 * cost.wire, 1e3 * cost.wait);
  if (row.simulated_seconds) text += text_of(" %10.2f", 1e3 * *row.simulated_seconds);
  for (const auto& [name, other] : elsewhere) {
    text += text_of(" %10.2f%s", 1e3 * other.rows[index].cost.step, index == other.choice ? "*" : " ");
  }
  while (text.back() == ' ') text.pop_back();
  return text + "\n";
}

}  // namespace

std::string plan_table(const PlanRequest& request, const Plan& plan, const PlansElsewhere& elsewhere) {
  std::string text =
      text_of("%d worker%s, %.4g Gbit/s and %.6g us; %zu elements in %zu bucket%s; a step computes %.2f ms\n",
              plan.workers, plan.workers == 1 ? "" : "s", gbit(plan.link), 1e6 * plan.link.latency_seconds,
              all_elements_of(request), request.buckets.size(), request.buckets.size() == 1 ? "" : "s",
              1e3 * plan.rows[0].cost.compute);
  if (request.reduce_in_host) {
    text +=
        text_of("hosts of %d ranks, which add up first and act as one worker; bytes sent: to other hosts\n",
                request.ranks_per_host);
  }
  text += head_of(plan, elsewhere);
  for (std::size_t i = 0; i < plan.rows.size(); ++i) text += row_of(plan, i, elsewhere);
  return text + "choice (*): " + plan.rows[plan.choice].spec + ": " + plan.reason + "\n";
}

std::string plan_json(const PlanRequest& request, const Plan& plan, const PlansElsewhere& elsewhere) {
  std::string text;
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    text += (i == 0 ? "" : ",\n") + std::string("{\"spec\": ") + quoted(row.spec) +
            ", \"workers\": " + std::to_string(plan.workers) +
            ", \"elements\": " + std::to_string(all_elements_of(request)) +
            ", \"buckets\": " + std::to_string(request.buckets.size()) +
            ", \"bits_per_second\": " + number(8 * plan.link.bytes_per_second) +
            ", \"latency_seconds\": " + number(plan.link.latency_seconds) +
            ", \"wire_bytes_formula\": " + std::to_string(row.payload_bytes) +
            ", \"frame_header_bytes\": " + number(row.header_bytes) +
            ", \"messages\": " + number(row.messages) + ", \"host_bytes_sent\": " + number(row.host_bytes) +
            ", \"rounds\": " + number(row.rounds) + ", \"seconds_codec\": " + number(row.codec_seconds) +
            ", \"seconds_sockets\": " + number(row.socket_seconds) +
            ", \"seconds_step\": " + number(row.cost.step) +
            ", \"seconds_doubt\": " + number(row.doubt_seconds) +
            ", \"seconds_compute\": " + number(row.cost.compute) +
            ", \"seconds_exposed\": " + number(row.cost.exposed()) +
            ", \"exposed_codec\": " + number(row.cost.codec) +
            ", \"exposed_wire\": " + number(row.cost.wire) + ", \"exposed_wait\": " + number(row.cost.wait) +
            ", \"simulated_seconds\": " + (row.simulated_seconds ? number(*row.simulated_seconds) : "null") +
            ", \"seconds_step_at\": {";
    for (std::size_t k = 0; k < elsewhere.size(); ++k) {
      text += (k == 0 ? "" : ", ") + quoted(elsewhere[k].first) + ": " +
              number(elsewhere[k].second.rows[i].cost.step);
    }
    text += std::string("}, \"chosen\": ") + (i == plan.choice ? "true" : "false") +
            ", \"reason\": " + (i == plan.choice ? quoted(plan.reason) : "null") + "}";
  }
  return text;
}

}  // namespace thinwire

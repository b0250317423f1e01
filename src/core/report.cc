#include "thinwire/report.h"

#include <cmath>
#include <cstdio>

namespace thinwire {
namespace {

class JsonObject {
 public:
  void add(const char* key, std::uint64_t value) { raw(key, std::to_string(value)); }
  void add(const char* key, bool value) { raw(key, value ? "true" : "false"); }
  void add(const char* key, double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    raw(key, std::isfinite(value) ? text : "null");
  }
  void add(const char* key, const char* text) {
    raw(key, text == nullptr ? "null" : '"' + std::string(text) + '"');
  }
  void add_optional(const char* key, double value, double none = -1) {
    value == none ? raw(key, "null") : add(key, value);
  }
  std::string finish() { return text_ + "}"; }

 private:
  void raw(const char* key, const std::string& value) {
    text_ += text_.empty() ? "{" : ", ";
    text_ += '"';
    text_ += key;
    text_ += "\": " + value;
  }
  std::string text_;
};

/// What StepReport::accumulate adds up.
void add_sums(JsonObject& json, const StepReport& report) {
  json.add("elements", report.elements);
  json.add("raw_bytes", report.raw_bytes);
  json.add("wire_bytes_sent", report.wire.sent_bytes);
  json.add("wire_bytes_received", report.wire.received_bytes);
  json.add("messages_sent", report.wire.sent_messages);
  json.add("messages_received", report.wire.received_messages);
  json.add("frame_header_bytes", report.frame_header_bytes);
  json.add("formula_bytes", report.formula_bytes);
  json.add("host_bytes_sent", report.host_bytes_sent);
  json.add("seconds_total", report.seconds_total);
  json.add("seconds_compress", report.seconds_compress);
  json.add("seconds_communicate", report.seconds_communicate);
  json.add("seconds_decompress", report.seconds_decompress);
  json.add("seconds_wait", report.seconds_wait);
  json.add("finite", report.finite);
  json.add("changes", report.changes);
}

}  // namespace

Traffic& Traffic::operator+=(const Traffic& other) {
  sent_bytes += other.sent_bytes;
  received_bytes += other.received_bytes;
  sent_messages += other.sent_messages;
  received_messages += other.received_messages;
  return *this;
}

Traffic Traffic::operator-(const Traffic& before) const {
  return {sent_bytes - before.sent_bytes, received_bytes - before.received_bytes,
          sent_messages - before.sent_messages, received_messages - before.received_messages};
}

void StepReport::take_seconds(const StepClock& clock) {
  seconds_compress = clock.seconds(Phase::compress);
  seconds_decompress = clock.seconds(Phase::decompress);
  seconds_wait = clock.seconds(Phase::wait);
  seconds_communicate = clock.seconds(Phase::exchange) + seconds_wait;
  seconds_total = seconds_compress + seconds_decompress + seconds_communicate;
}

void StepReport::accumulate(const StepReport& other) {
  elements += other.elements;
  raw_bytes += other.raw_bytes;
  wire += other.wire;
  frame_header_bytes += other.frame_header_bytes;
  formula_bytes += other.formula_bytes;
  host_bytes_sent += other.host_bytes_sent;
  seconds_total += other.seconds_total;
  seconds_compress += other.seconds_compress;
  seconds_communicate += other.seconds_communicate;
  seconds_decompress += other.seconds_decompress;
  seconds_wait += other.seconds_wait;
  finite = finite && other.finite;
  changes += other.changes;
}

std::string to_json(const StepReport& report) {
  JsonObject json;
  json.add("bucket", std::uint64_t{report.bucket});
  json.add("step", report.step);
  add_sums(json, report);
  json.add("density_in", report.density_in);
  json.add("density_out", report.density_out);
  json.add_optional("imbalance_push", report.imbalance_push);
  json.add_optional("imbalance_pull", report.imbalance_pull);
  json.add_optional("relative_error", report.relative_error);
  json.add_optional("cosine", report.cosine, -2);
  json.add_optional("residual_norm", report.residual_norm);
  json.add_optional("residual_deviation", report.residual_deviation);
  json.add("scheme", report.scheme);
  json.add_optional("scale", report.scale);
  return json.finish();
}

std::string sums_to_json(const StepReport& report) {
  JsonObject json;
  add_sums(json, report);
  return json.finish();
}

}  // namespace thinwire

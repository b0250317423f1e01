#include "apps/codec.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>

namespace thinwire::apps {
namespace {

/// Nothing when the text is no rate.
std::optional<double> parse_rate(std::string_view text) {
  if (text == "off") return 0;
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit == "K") {
    rate *= 1e3;
  } else if (unit == "M") {
    rate *= 1e6;
  } else if (unit == "G") {
    rate *= 1e9;
  } else if (!unit.empty()) {
    return std::nullopt;
  }
  if (error != std::errc{} || !(rate > 0) || !std::isfinite(rate)) return std::nullopt;
  return rate;
}

}  // namespace

std::vector<CodecModel> parse_codec(std::string_view text, std::size_t systems) {
  if (text == "measured") return {CodecModel{.measured = true}};
  std::vector<CodecModel> models;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    const auto rate = parse_rate(text.substr(begin, end - begin));
    if (!rate) {
      throw std::invalid_argument("codec '" + std::string(text) +
                                  "' is neither off, measured, nor elements per second as in 300M; several "
                                  "of them, one per system, are joined by colons");
    }
    models.push_back({.elements_per_second = *rate});
    begin = end + 1;
  }
  if (models.size() != 1 && models.size() != systems) {
    throw std::invalid_argument("codec '" + std::string(text) + "' has " + std::to_string(models.size()) +
                                " rates for " + std::to_string(systems) +
                                " systems: give one for all, or one for each");
  }
  return models;
}

}  // namespace thinwire::apps

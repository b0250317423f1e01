#include "planner/link_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace thinwire {
namespace {

template <std::size_t N>
bool parse(std::string_view text, const std::array<std::pair<std::string_view, double>, N>& units,
           double& result) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return false;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const auto& [name, factor] : units) {
    if (unit == name) {
      result = number * factor;
      return true;
    }
  }
  return false;
}

}  // namespace

VirtualLink parse_link(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 4> kRates = {
      {{"bit", 1.0}, {"Kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}}};
  static constexpr std::array<std::pair<std::string_view, double>, 4> kTimes = {
      {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}}};
  VirtualLink link;
  if (parse(text, kRates, link.bytes_per_second) && link.bytes_per_second > 0) {
    throw std::invalid_argument("link '" + std::string(text) + "' is not RATE:LATENCY, as in " +
                                std::string(text) +
                                ":50us: python3 -m thinwire.doctor prints the latency of yours when it is "
                                "started on every host; take 50us where it is not known");
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || !parse(text.substr(0, colon), kRates, link.bytes_per_second) ||
      !parse(text.substr(colon + 1), kTimes, link.latency_seconds) || !(link.bytes_per_second > 0) ||
      !std::isfinite(link.bytes_per_second) || !std::isfinite(link.latency_seconds) ||
      link.latency_seconds < 0) {
    throw std::invalid_argument("link '" + std::string(text) + "' is not RATE:LATENCY, as in 1Gbit:50us");
  }
  link.bytes_per_second /= 8;
  return link;
}

}  // namespace thinwire

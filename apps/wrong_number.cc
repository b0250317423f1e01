#include "apps/wrong_number.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdint>

namespace thinwire::apps {
namespace {

/// As CLI11 reads it.
template <class Number>
bool reads_as(const std::string& text) {
  Number number{};
  return CLI::detail::lexical_cast(text, number);
}

/// Instead of a value that is no whole number; where it is one that only looks otherwise, its digits.
std::string whole_number(const std::string& given) {
  constexpr double kMostExact = 0x1p53;
  double number = 0;
  if (CLI::detail::lexical_cast(given, number) && std::trunc(number) == number &&
      std::abs(number) <= kMostExact) {
    return fmt::format("a whole number without point or exponent is needed, such as {:.0f}", number);
  }
  return "a whole number is needed, such as 3";
}

/// What `option` takes instead of `given`; empty where it takes that.
std::string needed(const CLI::Option& option, const std::string& given) {
  const std::string type = option.get_type_name();
  if (option.get_items_expected_max() == 0)
    return reads_as<bool>(given) ? "" : "it takes no value, so leave that out";
  if (type.starts_with("FLOAT")) return reads_as<double>(given) ? "" : "a number is needed, such as 0.25";
  if (!type.starts_with("INT") && !type.starts_with("UINT")) return "";
  return reads_as<std::int64_t>(given) ? "" : whole_number(given);
}

/// That of an option that `error` is about: CLI11 names it in its words alone.
bool is_about(const CLI::ParseError& error, const CLI::Option& option) {
  return std::string(error.what()) == CLI::ConversionError(option.get_name(), option.results()).what();
}

}  // namespace

std::string wrong_number(const CLI::App& command, const CLI::ParseError& error) {
  const bool converts = dynamic_cast<const CLI::ConversionError*>(&error) != nullptr;
  if (!converts && dynamic_cast<const CLI::ValidationError*>(&error) == nullptr) return "";
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& given : option->results()) {
      if (const std::string remedy = needed(*option, given); !remedy.empty())
        return fmt::format("{}={}: {}", option->get_name(), given, remedy);
    }
    // Each is a whole number, so one of them is too large for the option's type.
    if (converts && is_about(error, *option))
      return fmt::format("{}={}: a smaller whole number is needed", option->get_name(),
                         CLI::detail::join(option->results()));
  }
  return "";
}

}  // namespace thinwire::apps

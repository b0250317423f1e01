#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "core/closest.h"
#include "core/digits.h"
#include "thinwire/registry.h"

namespace thinwire {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

constexpr std::string_view kRowsPrefix = "rows=";
constexpr std::string_view kDensePrefix = "dense=";

std::string quoted(std::string_view text) {
  return "'" + std::string(text) + "'";
}

/// 'bits=4' of "casq,bits=4", but nothing like rows= and dense=.
bool is_option(std::string_view entry) {
  const std::size_t equals = entry.find('=');
  if (equals >= entry.find_first_of(":+")) return false;
  const std::size_t begin = std::min(entry.find_first_not_of(' '), equals);
  return closest_to(entry.substr(begin, equals - begin), {"rows", "dense"}).empty();
}

[[noreturn]] void refuse_option_behind_comma(std::string_view text, std::string_view option,
                                             std::string_view system) {
  throw std::invalid_argument("spec " + quoted(text) + ": " + quoted(option) +
                              " is an option, and options follow a colon: write " +
                              quoted(std::string(system) + ":" + std::string(option)));
}

/// That of a command line in one string, as in 'casq --clip 0'.
void refuse_command_line(std::string_view spec) {
  const std::size_t begin = spec.find(" --");
  if (begin == std::string_view::npos) return;
  const std::string_view option = spec.substr(begin + 1, spec.find_first_of(" =", begin + 1) - begin - 1);
  throw std::invalid_argument("spec " + quoted(spec) + ": " + std::string(option) +
                              " and what follows are options of `thinwire train` and no part of a spec: give "
                              "the spec alone");
}

}  // namespace

std::vector<SpecPart> parse_spec(std::string_view spec) {
  if (spec.empty()) {
    throw std::invalid_argument(
        "the spec is empty; write NAME:OPTION=VALUE, as in 'power_sgd:rank=32:bits=8', or 'auto'");
  }
  refuse_command_line(spec);
  std::vector<SpecPart> parts;
  for (const std::string_view text : split(spec, '+')) {
    const auto fields = split(text, ':');
    SpecPart part;
    part.name = fields.front();
    if (part.name.empty()) {
      throw std::invalid_argument("spec " + quoted(spec) +
                                  " has an empty name; write NAME:OPTION=VALUE, stages joined by '+'");
    }
    for (auto field = fields.begin() + 1; field != fields.end(); ++field) {
      const std::size_t equals = field->find('=');
      const bool bare = equals == std::string_view::npos && !field->empty();
      // A value may have a colon in front of a number, as in link=1Gbit:50us.
      if (bare && is_digit(field->front()) && !part.options.empty()) {
        part.options.back().second += ":" + std::string(*field);
        continue;
      }
      const bool flag = bare && !is_digit(field->front());
      if ((!flag && equals == std::string_view::npos) || equals == 0 || equals + 1 == field->size()) {
        throw std::invalid_argument("spec " + quoted(spec) + ": option " + quoted(*field) +
                                    " is not of the form OPTION=VALUE");
      }
      std::string key(field->substr(0, equals));
      for (const auto& [known, value] : part.options) {
        if (known == key)
          throw std::invalid_argument("spec " + quoted(spec) + " gives " + quoted(key) + " twice");
      }
      part.options.emplace_back(std::move(key), flag ? "on" : std::string(field->substr(equals + 1)));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<std::string> split_specs(std::string_view list) {
  if (list.empty()) parse_spec(list);  // says what is missing
  std::vector<std::string> specs;
  bool pair_open = false;
  for (std::string_view spec : split(list, ',')) {
    if (spec.empty()) {
      throw std::invalid_argument("spec list " + quoted(list) +
                                  " has an empty entry; separate specs by single commas");
    }
    if (!specs.empty() && is_option(spec)) refuse_option_behind_comma(list, spec, specs.back());
    const bool half_pair = spec.starts_with(kRowsPrefix) || spec.starts_with(kDensePrefix);
    if (half_pair && pair_open) {
      specs.back() += "," + std::string(spec);
      pair_open = false;
    } else {
      specs.emplace_back(spec);
      pair_open = half_pair;
    }
  }
  return specs;
}

SpecPair parse_spec_pair(std::string_view text) {
  const auto parts = split(text, ',');
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (is_option(parts[i])) refuse_option_behind_comma(text, parts[i], parts[i - 1]);
  }
  SpecPair pair;
  for (const std::string_view part : parts) {
    const bool rows = part.starts_with(kRowsPrefix);
    const bool dense = part.starts_with(kDensePrefix);
    if (parts.size() == 1 && !rows && !dense) return {std::string(text), std::string(text)};

    std::string& side = rows ? pair.rows : pair.dense;
    if ((!rows && !dense) || !side.empty()) break;
    side = part.substr(rows ? kRowsPrefix.size() : kDensePrefix.size());
    if (side.empty()) parse_spec(side);  // says what is missing
  }
  if (parts.size() != 2 || pair.rows.empty() || pair.dense.empty()) {
    throw std::invalid_argument("spec " + quoted(text) +
                                " is neither one system nor a pair; write SPEC, or rows=SPEC,dense=SPEC for "
                                "embeddings by one and the rest by another");
  }
  return pair;
}

namespace {

/// As did_you_mean says, of the option whose value `word` is: one that its meaning lists, as 'fp16 or bf16'.
std::string value_meant(const std::string& system, std::string_view word,
                        const std::vector<OptionInfo>& declared) {
  const auto is_part = [](char c) { return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z'); };
  for (const OptionInfo& info : declared) {
    if (info.default_value == "on" || info.default_value == "off" || is_digit(info.default_value[0]))
      continue;
    const std::string meaning = " " + info.meaning + " ";
    for (std::size_t at = meaning.find(word); at != std::string::npos; at = meaning.find(word, at + 1)) {
      if (!is_part(meaning[at - 1]) && !is_part(meaning[at + word.size()]))
        return " (did you mean '" + system + ":" + info.name + "=" + std::string(word) + "'?)";
    }
  }
  return "";
}

}  // namespace

Options::Options(const SpecPart& part, const std::vector<OptionInfo>& declared) : system_(part.name) {
  for (const auto& [key, value] : part.options) {
    const bool known = std::ranges::count(declared, key, &OptionInfo::name) != 0;
    if (known) continue;
    std::string message = part.name + " has no option " + quoted(key);
    if (declared.empty()) throw std::invalid_argument(message + "; it takes none");
    std::vector<std::string> names;
    for (const auto& info : declared) names.push_back(info.name);
    const std::string meant = did_you_mean(key, names);
    message += (meant.empty() ? value_meant(part.name, key, declared) : meant) + "; it has";
    for (const auto& name : names) message += (&name == names.data() ? " " : ", ") + name;
    if (std::ranges::count(names, "with") != 0)
      message += "; options of the system that with names follow a slash, as in with=qsgd/bits=4";
    throw std::invalid_argument(message);
  }
  for (const auto& info : declared) {
    const auto given =
        std::ranges::find(part.options, info.name, &std::pair<std::string, std::string>::first);
    values_.emplace_back(info.name, given == part.options.end() ? info.default_value : given->second);
  }
}

std::string Options::text(std::string_view name) const {
  for (const auto& [key, value] : values_) {
    if (key == name) return value;
  }
  throw std::logic_error(system_ + " reads option " + std::string(name) + ", which it does not declare");
}

void Options::refuse(std::string_view name, const std::string& wanted) const {
  const std::string value = text(name);
  // As a flag is read that a spec names alone.
  const std::string alone = value == "on" ? " (without a value it counts as on)" : "";
  throw std::invalid_argument(system_ + ": " + std::string(name) + "=" + value + alone + " must be " +
                              wanted);
}

std::int64_t Options::integer(std::string_view name, std::int64_t minimum, std::int64_t maximum) const {
  const std::string value = text(name);
  std::int64_t result = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc{} || end != value.data() + value.size() || result < minimum || result > maximum) {
    refuse(name, "an integer from " + std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return result;
}

double Options::real(std::string_view name, double minimum, double maximum) const {
  const std::string value = text(name);
  double result = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc{} || end != value.data() + value.size() || !std::isfinite(result) ||
      result < minimum || result > maximum) {
    char range[64];
    std::snprintf(range, sizeof range, "a number from %g to %g", minimum, maximum);
    refuse(name, range);
  }
  return result;
}

bool Options::flag(std::string_view name) const {
  const std::string value = text(name);
  for (const char* on : {"on", "true", "1", "yes"}) {
    if (value == on) return true;
  }
  for (const char* off : {"off", "false", "0", "no"}) {
    if (value == off) return false;
  }
  refuse(name, "on or off");
}

std::string Options::choice(std::string_view name, const std::vector<std::string>& allowed) const {
  std::string value = text(name);
  if (std::ranges::find(allowed, value) != allowed.end()) return value;
  std::string wanted = "one of";
  for (const auto& word : allowed) wanted += " " + word;
  refuse(name, wanted + did_you_mean(value, allowed));
}

}  // namespace thinwire

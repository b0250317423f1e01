#include "apps/train/data/adult_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>

namespace thinwire::train {

namespace {

struct Field {
  const char* name;
  bool number;
};
constexpr std::array<Field, AdultRecord::kCategories + AdultRecord::kNumbers> kFields = {{
    {"age", true},
    {"workclass", false},
    {"fnlwgt", true},
    {"education", false},
    {"education-num", true},
    {"marital-status", false},
    {"occupation", false},
    {"relationship", false},
    {"race", false},
    {"sex", false},
    {"capital-gain", true},
    {"capital-loss", true},
    {"hours-per-week", true},
    {"native-country", false},
}};

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

class LineParser {
 public:
  LineParser(const std::string& path, std::size_t line) : path_(path), line_(line) {}

  AdultRecord parse(std::string_view text) const {
    std::vector<std::string_view> words;
    for (std::size_t from = 0; from <= text.size();) {
      const std::size_t comma = std::min(text.find(',', from), text.size());
      words.push_back(trimmed(text.substr(from, comma - from)));
      from = comma + 1;
    }
    if (words.size() != kFields.size() + 1) {
      refuse(fmt::format("has {} fields, not {}", words.size(), kFields.size() + 1));
    }
    AdultRecord record;
    std::size_t categories = 0;
    std::size_t numbers = 0;
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      if (words[i].empty()) refuse(fmt::format("has an empty {}", kFields[i].name));
      if (kFields[i].number) {
        record.numbers[numbers++] = number(kFields[i].name, words[i]);
      } else {
        record.categories[categories++] = words[i];
      }
    }
    std::string_view label = words.back();
    if (label.ends_with('.')) label.remove_suffix(1);  // adult.test has them
    if (label != "<=50K" && label != ">50K") {
      refuse(fmt::format("ends with '{}', neither <=50K nor >50K", words.back()));
    }
    record.above_50k = label == ">50K";
    return record;
  }

 private:
  double number(const char* field, std::string_view word) const {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) {
      refuse(fmt::format("has the {} '{}', which is no number", field, word));
    }
    return value;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw std::runtime_error(fmt::format("{} line {} {}: fetch it again", path_, line_, what));
  }

  const std::string& path_;
  std::size_t line_;
};

std::vector<AdultRecord> read_records(const std::string& folder, const char* name) {
  const std::string path = (std::filesystem::path(folder) / name).string();
  std::ifstream stream(path);
  if (!stream) {
    throw std::runtime_error(fmt::format(
        "{} cannot be opened: give the folder with UCI's adult.data and adult.test, --data adult:DIR", path));
  }
  std::vector<AdultRecord> records;
  std::string line;
  for (std::size_t number = 1; std::getline(stream, line); ++number) {
    const std::string_view text = trimmed(line);
    if (text.empty() || text.front() == '|') continue;  // adult.test begins with a remark
    records.push_back(LineParser(path, number).parse(text));
  }
  if (stream.bad() || records.empty()) {
    throw std::runtime_error(fmt::format("{} holds no records: fetch it again", path));
  }
  return records;
}

}  // namespace

AdultRecords load_adult(const std::string& folder) {
  return {read_records(folder, "adult.data"), read_records(folder, "adult.test")};
}

}  // namespace thinwire::train

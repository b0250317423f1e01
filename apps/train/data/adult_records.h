#pragma once
// The files of UCI's census data "Adult", line by line.

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace thinwire::train {

/// A line of adult.data: eight categories and six numbers. "?" is a category like any other.
struct AdultRecord {
  static constexpr std::size_t kCategories = 8;
  static constexpr std::size_t kNumbers = 6;
  /// workclass, education, marital status, occupation, relationship, race, sex, native country.
  std::array<std::string, kCategories> categories;
  /// age, fnlwgt, education-num, capital-gain, capital-loss, hours per week.
  std::array<double, kNumbers> numbers{};
  bool above_50k = false;
};

struct AdultRecords {
  std::vector<AdultRecord> train;
  std::vector<AdultRecord> test;
};

/// Reads adult.data and adult.test. Throws std::runtime_error naming file, line and field.
AdultRecords load_adult(const std::string& folder);

}  // namespace thinwire::train

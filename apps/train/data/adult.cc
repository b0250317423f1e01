#include "apps/train/data/adult.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string_view>

#include "core/hashes.h"

namespace thinwire::train {

namespace {

// Positions in AdultRecord.
constexpr std::size_t kAge = 0;
constexpr std::size_t kHours = 5;
constexpr std::size_t kEducation = 1;
constexpr std::size_t kMarital = 2;
constexpr std::size_t kOccupation = 3;
constexpr std::size_t kCountry = 7;

/// Rows of one field, counted from the field's first.
class CategoryRows {
 public:
  CategoryRows(const std::vector<AdultRecord>& records, std::size_t field) : field_(field) {
    std::set<std::string> values;
    for (const auto& record : records) values.insert(record.categories[field]);
    values_.assign(values.begin(), values.end());
  }
  std::size_t rows() const { return values_.size() + 1; }
  std::size_t row(const AdultRecord& record) const {
    const std::string& value = record.categories[field_];
    const auto found = std::lower_bound(values_.begin(), values_.end(), value);
    const bool known = found != values_.end() && *found == value;
    return known ? static_cast<std::size_t>(found - values_.begin()) + 1 : 0;
  }

 private:
  std::size_t field_;
  std::vector<std::string> values_;  // ascending
};

class NumberRows {
 public:
  NumberRows(const std::vector<AdultRecord>& records, std::size_t field, std::size_t buckets)
      : field_(field) {
    std::set<double> distinct;
    for (const auto& record : records) distinct.insert(record.numbers[field]);
    const std::vector<double> values(distinct.begin(), distinct.end());
    const std::size_t count = std::min(buckets, values.size());
    for (std::size_t i = 1; i < count; ++i) bounds_.push_back(values[i * values.size() / count]);
  }
  std::size_t rows() const { return bounds_.size() + 1; }
  /// The number of bounds that the value reaches.
  std::size_t row(const AdultRecord& record) const {
    return static_cast<std::size_t>(std::upper_bound(bounds_.begin(), bounds_.end(), record.numbers[field_]) -
                                    bounds_.begin());
  }

 private:
  std::size_t field_;
  std::vector<double> bounds_;  // ascending
};

/// With a separator between the parts.
class CrossHash {
 public:
  void add(std::string_view part) {
    hash_.add(part.data(), part.size());
    hash_.add("", 1);
  }
  std::size_t row() const {
    return static_cast<std::size_t>((hash_.value() ^ (hash_.value() >> 32)) % AdultDataset::kCrossRows);
  }

 private:
  Fnv1a hash_;
};

/// What of a record is crossed: some categories, and a number's bucket of a few.
struct Cross {
  std::vector<std::size_t> categories;
  const NumberRows* number = nullptr;

  std::size_t row(const AdultRecord& record) const {
    CrossHash hash;
    for (const std::size_t category : categories) hash.add(record.categories[category]);
    if (number != nullptr) hash.add(fmt::format("{}", number->row(record)));
    return hash.row();
  }
};

}  // namespace

AdultDataset::AdultDataset(const AdultRecords& records) {
  if (records.train.empty() || records.test.empty()) {
    throw std::runtime_error(fmt::format("{} records to train on and {} to test with: both are needed",
                                         records.train.size(), records.test.size()));
  }
  std::vector<CategoryRows> categories;
  std::vector<NumberRows> numbers;
  for (std::size_t i = 0; i < AdultRecord::kCategories; ++i) categories.emplace_back(records.train, i);
  for (std::size_t i = 0; i < AdultRecord::kNumbers; ++i) numbers.emplace_back(records.train, i, kBuckets);
  // Coarser than the fields of their own, else hardly any combination would be seen twice.
  const NumberRows age(records.train, kAge, 10);
  const NumberRows hours(records.train, kHours, 10);
  const std::vector<Cross> crosses = {{{kEducation, kOccupation}, &age},
                                      {{kMarital, kOccupation}, &hours},
                                      {{kCountry, kEducation, kOccupation}, nullptr}};
  fields_ = categories.size() + numbers.size() + crosses.size();
  const auto number_all = [&](const std::vector<AdultRecord>& from, Examples& into) {
    for (const auto& record : from) {
      std::size_t first = 0;
      const auto add = [&](std::size_t row, std::size_t rows) {
        into.rows.push_back(static_cast<std::uint32_t>(first + row));
        first += rows;
      };
      for (const auto& field : categories) add(field.row(record), field.rows());
      for (const auto& field : numbers) add(field.row(record), field.rows());
      for (const auto& cross : crosses) add(cross.row(record), kCrossRows);
      into.labels.push_back(record.above_50k ? 1 : 0);
      table_rows_ = first;
    }
  };
  number_all(records.train, train_);
  number_all(records.test, test_);
  training_examples_ = train_.labels.size();
}

ModelShape AdultDataset::shape() const {
  return {.input = Input::categories,
          .classes = 2,
          .fields = static_cast<int>(fields_),
          .table_rows = static_cast<int>(table_rows_)};
}

void AdultDataset::limit_training(std::uint64_t count) {
  if (count != 0) training_examples_ = std::min<std::size_t>(training_examples_, count);
}

/// Example `from(i)` for each i below count.
template <class From>
Batch AdultDataset::cut(const Examples& examples, std::size_t count, From from) const {
  const auto length = static_cast<std::int64_t>(count);
  const Batch batch{torch::empty({length, static_cast<std::int64_t>(fields_)}, torch::kInt64),
                    torch::empty({length}, torch::kInt64)};
  auto* inputs = batch.inputs.data_ptr<std::int64_t>();
  auto* labels = batch.labels.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t example = from(i);
    const auto* rows = examples.rows.data() + example * fields_;
    std::copy(rows, rows + fields_, inputs + i * fields_);
    labels[i] = examples.labels[example];
  }
  return batch;
}

Batch AdultDataset::training_batch(Span<const std::uint32_t> indices, std::uint64_t, std::uint64_t) const {
  return cut(train_, indices.size(), [&](std::size_t i) { return indices[i]; });
}

Batch AdultDataset::test_batch(std::size_t first, std::size_t count) const {
  return cut(test_, count, [&](std::size_t i) { return first + i; });
}

}  // namespace thinwire::train

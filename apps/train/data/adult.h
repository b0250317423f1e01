#pragma once
// UCI's census data "Adult": does a person earn more than 50,000 dollars a year? Fields of categories and
// numbers, all of which become rows of embedding tables.

#include <cstdint>
#include <vector>

#include "apps/train/data/adult_records.h"
#include "apps/train/data/dataset.h"

namespace thinwire::train {

/// Every record is an example, and every field of it one row of a table that all fields share:
/// - a category has a row if the training records have it, else that of the field's unknown;
/// - a number has the row of its bucket, whose bounds split the training records' distinct values evenly;
/// - crosses of fields have so many combinations that they are hashed, each cross into kCrossRows rows.
class AdultDataset : public Dataset {
 public:
  static constexpr std::size_t kBuckets = 64;
  static constexpr std::size_t kCrossRows = 1 << 12;

  /// Throws std::runtime_error if there is nothing to train on or nothing to test with.
  explicit AdultDataset(const AdultRecords& records);

  ModelShape shape() const override;
  std::size_t training_examples() const override { return training_examples_; }
  std::size_t test_examples() const override { return test_.labels.size(); }
  std::size_t test_batch_examples() const override { return 512; }
  void limit_training(std::uint64_t count) override;
  /// inputs [n, fields], labels [n].
  Batch training_batch(Span<const std::uint32_t> indices, std::uint64_t seed,
                       std::uint64_t epoch) const override;
  Batch test_batch(std::size_t first, std::size_t count) const override;

 private:
  struct Examples {
    std::vector<std::uint32_t> rows;  // [count * fields]
    std::vector<std::uint8_t> labels;
  };
  template <class From>
  Batch cut(const Examples& examples, std::size_t count, From from) const;

  std::size_t fields_ = 0;
  std::size_t table_rows_ = 0;
  std::size_t training_examples_ = 0;
  Examples train_;
  Examples test_;
};

}  // namespace thinwire::train

#pragma once
// How unevenly rows are used, and what follows from it.
//
// A rank's gradient holds the first n distinct rows out of a long series of draws. Each draw takes row
// number r (counted from 1, most popular first) with a probability proportional to r^-zipf. That is what a
// batch of words does to an embedding.
//
// Drawing until n rows are distinct is the same as this: give every row a waiting time E_r r^zipf, where E_r
// is exponential with mean 1, and take the n rows with the shortest. With many rows the n-th shortest is
// nearly the same time c in every draw. So a rank holds row r with probability
//     q_r = 1 - exp(-c r^-zipf),      c such that the q_r add up to n,
// and the union of W ranks, which draw independently, has the sum of 1 - (1 - q_r)^W rows.
//
// The densification gamma is that sum divided by n. It falls from (1 - (1 - density)^W) / density at zipf = 0
// towards 1, so a zipf can be fitted to a gamma.

#include <cstdint>
#include <vector>

namespace thinwire::apps {

class Skew {
 public:
  /// Uneven enough for the ranks' rows to be almost the same: gamma is about 1.01 at 128 ranks.
  static constexpr double kLargestZipf = 500;

  /// `chosen` of `rows` rows per rank; world: the number of ranks in the union. Throws std::invalid_argument
  /// unless 1 <= chosen <= rows < 2^32, world >= 1 and zipf is within [0, kLargestZipf].
  Skew(std::uint64_t rows, std::uint64_t chosen, int world, double zipf);

  /// The zipf that makes the expected densification `gamma`. Throws std::invalid_argument for a gamma below 1
  /// or above what even rows give, naming both.
  static Skew fitted_to_gamma(std::uint64_t rows, std::uint64_t chosen, int world, double gamma);

  std::uint64_t rows() const { return rows_; }
  std::uint64_t chosen() const { return chosen_; }
  double zipf() const { return zipf_; }
  /// What is expected by the formula above.
  double gamma() const;
  /// ln c.
  double log_time() const { return log_time_; }

 private:
  double expected_rows(double log_time) const;
  void fit_time();

  std::uint64_t rows_;
  std::uint64_t chosen_;
  int world_;
  double zipf_;
  double log_time_ = 0;
  // Rows of nearly equal popularity are one term of the sums.
  struct Block {
    double log_number;
    double rows;
  };
  std::vector<Block> blocks_;
};

}  // namespace thinwire::apps

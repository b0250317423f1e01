#pragma once
// Synthetic gradients for benchmarks and simulations: reproducible from a seed, with a given density,
// and with a given skew or overlap of the ranks' rows. skew.h has the distribution,
// docs/gain.md what it is used for.

#include <cstdint>
#include <optional>

#include "apps/gradients/gradient_source.h"
#include "apps/gradients/skew.h"

namespace thinwire::apps {

struct SyntheticGradient {
  std::uint64_t elements = 0;
  double density = 1;  ///< Share of rows that are not zero, in (0, 1]: exact but for rounding, at least one.
  double zipf = 0;     ///< Skew of the rows, 0: even.
  /// Instead of zipf: rows in the union over all ranks divided by those of one rank.
  std::optional<double> gamma{};
  std::uint64_t row_width = 1;  ///< Above 1 the bucket is row-sparse.
  /// Popular rows lie side by side in the order of their popularity, as in a vocabulary sorted by frequency;
  /// else they are scattered by a fixed permutation.
  bool contiguous = false;
  /// Every value is normal times exp(tails * another normal number): 0 leaves it normal, and from about 1 on
  /// few values are far above the others, as in a real gradient.
  double tails = 0;
  std::uint64_t seed = 1;
};

/// One bucket. Values are normally distributed (mean 0, deviation 1) unless they have tails.
/// Which rows are popular is the same for all ranks and steps; ranks and steps draw independently.
class SyntheticSource final : public GradientSource {
 public:
  /// world: the ranks that share the gradient; only a fit to gamma depends on it. Throws
  /// std::invalid_argument for a density outside (0, 1], tails outside [0, 5], a row width that does
  /// not divide the elements, and what Skew throws.
  SyntheticSource(const SyntheticGradient& shape, int world);

  const std::vector<BucketShape>& buckets() const override { return buckets_; }
  void dense(int rank, std::uint64_t step, std::size_t bucket, Span<float> gradient) const override;
  RowSparse rows(int rank, std::uint64_t step, std::size_t bucket, RowBuffer& buffer) const override;

  const Skew& skew() const { return skew_; }

 private:
  void choose_rows(int rank, std::uint64_t step, std::vector<std::uint32_t>& rows) const;
  /// Values number `first` and following of a rank's step.
  void fill_values(int rank, std::uint64_t step, std::uint64_t first, Span<float> values) const;

  SyntheticGradient shape_;
  std::vector<BucketShape> buckets_;
  Skew skew_;
  std::uint64_t scatter_step_ = 1;
};

}  // namespace thinwire::apps

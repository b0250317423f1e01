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
  std::uint64_t seed = 1;
};

/// One bucket. Values are normally distributed (mean 0, deviation 1). Which rows are popular is the same for
/// all ranks and steps; ranks and steps draw independently.
class SyntheticSource final : public GradientSource {
 public:
  /// world: the ranks that share the gradient; only a fit to gamma depends on it. Throws
  /// std::invalid_argument for a density outside (0, 1], a row width that does not divide the elements, and
  /// what Skew throws.
  SyntheticSource(const SyntheticGradient& shape, int world);

  const std::vector<BucketShape>& buckets() const override { return buckets_; }
  void dense(int rank, std::uint64_t step, std::size_t bucket, Span<float> gradient) const override;
  RowSparse rows(int rank, std::uint64_t step, std::size_t bucket, RowBuffer& buffer) const override;

  const Skew& skew() const { return skew_; }

 private:
  void choose_rows(int rank, std::uint64_t step, std::vector<std::uint32_t>& rows) const;

  SyntheticGradient shape_;
  std::vector<BucketShape> buckets_;
  Skew skew_;
  std::uint64_t scatter_step_ = 1;
};

}  // namespace thinwire::apps

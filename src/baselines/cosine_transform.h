#pragma once
// The orthonormal discrete cosine transform (DCT-II) of small blocks, and its inverse. Additions and
// multiplications in one fixed order and nothing else: the same bits on every machine.

#include <vector>

#include "thinwire/span.h"

namespace thinwire {

/// Blocks of at most `largest` rows and columns.
class CosineTransform {
 public:
  explicit CosineTransform(std::size_t largest) : basis_(largest + 1) {}

  /// Makes ready for blocks with sides of this length, 1 to `largest`. Allocates the first time.
  void prepare(std::size_t length);

  /// block [rows x columns], row after row, is replaced by its coefficients. Both lengths have been prepared.
  /// scratch: [rows x columns]. The sum of squares stays the same. May run on several threads.
  void forward(std::size_t rows, std::size_t columns, Span<float> block, Span<float> scratch) const;
  /// The reverse. Takes less time the fewer coefficients differ from 0.
  void inverse(std::size_t rows, std::size_t columns, Span<float> block, Span<float> scratch) const;

 private:
  /// Of one length n: element [k * n + i] is coefficient k's cosine at place i; and the same, transposed.
  struct Basis {
    std::vector<float> by_coefficient;
    std::vector<float> by_place;
  };
  std::vector<Basis> basis_;
};

}  // namespace thinwire

#pragma once
// Products of a long matrix with a small one, both row after row: what turns rows into other directions and
// back.

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// Row i of a matrix begins at element i * stride.
template <class T>
struct RowsOf {
  Span<T> values{};
  std::size_t stride = 0;

  T* row(std::size_t i) const { return values.data() + i * stride; }
};

enum class Rounding {
  fused,      ///< The last bits depend on the machine.
  same_bits,  ///< Each product and each sum is rounded, in ascending order of `inner`, on every machine.
};

/// to [rows x columns] = base + from [rows x inner] by [inner x columns]; base without values: zeros. `base`
/// may be `to`; otherwise `to` overlaps none of the others. All in host memory.
void multiply_rows(Executor& executor, std::size_t rows, std::size_t inner, std::size_t columns,
                   RowsOf<const float> from, RowsOf<const float> by, RowsOf<const float> base,
                   RowsOf<float> to, Rounding rounding);

/// to [columns x rows] = the transpose of from [rows x columns]. In host memory; they do not overlap.
void transpose_rows(Executor& executor, std::size_t rows, std::size_t columns, RowsOf<const float> from,
                    RowsOf<float> to);

}  // namespace thinwire

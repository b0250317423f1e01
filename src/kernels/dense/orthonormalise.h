#pragma once
// Gram-Schmidt for the columns of a thin factor.

#include "thinwire/span.h"

namespace thinwire {

/// Replaces the columns of left [rank * rows], which lie one behind the other, by orthonormal ones that span
/// the same space: Gram-Schmidt with sums in double, every column twice. A column that depends on those
/// before it, to within float rounding, becomes 0. The values must be finite. The same bits on every machine.
/// Serial, in host memory, where an all-reduce leaves its sums: it is one long chain of short sums, and no
/// work for a device.
void orthonormalise(std::size_t rows, std::size_t rank, Span<float> left);

}  // namespace thinwire

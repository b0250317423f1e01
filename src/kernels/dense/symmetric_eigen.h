#pragma once
// Eigenvectors of a small symmetric matrix.

#include "thinwire/span.h"

namespace thinwire {

/// Each sweep over all pairs at least squares what is left beside the diagonal, once that is small.
inline constexpr int kMostSweeps = 16;

/// matrix [n * n], symmetric and finite: overwritten by what it is along the eigenvectors. So element k of
/// its diagonal becomes the k-th largest eigenvalue. vectors [n * n]: row k becomes the eigenvector of it, of
/// length 1. Rows are orthogonal to each other within rounding, also where eigenvalues are equal or 0.
/// tolerance: what may be left beside the diagonal, relative to the root of both elements on it. With 0.001
/// few of an almost diagonal matrix's pairs are turned. most_sweeps: after these, what is left stays in
/// matrix, whose rows are along these vectors all the same.
/// Serial, in host memory. The same bits on every machine. Source: cyclic Jacobi rotations (Golub and Van
/// Loan, Matrix Computations, section 8.5), which take little where the matrix is nearly diagonal.
void symmetric_eigenvectors(std::size_t n, Span<double> matrix, Span<double> vectors, double tolerance,
                            int most_sweeps = kMostSweeps);

}  // namespace thinwire

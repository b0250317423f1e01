#pragma once
// Eigenvectors of a small symmetric matrix.

#include "thinwire/span.h"

namespace thinwire {

/// matrix [n * n], symmetric and finite: overwritten; element k of its diagonal becomes the k-th largest
/// eigenvalue. vectors [n * n]: row k becomes the eigenvector of
/// the k-th largest eigenvalue, of length 1; rows are orthogonal to each other within rounding, also where
/// eigenvalues are equal or 0. Cyclic Jacobi rotations (Golub and Van Loan, Matrix Computations, section
/// 8.5), which take little where the matrix is nearly diagonal. Serial, in host memory.
/// tolerance: what may be left beside the diagonal, relative to the root of both elements on it. With 0.001
/// few of an almost diagonal matrix's pairs are turned.
void symmetric_eigenvectors(std::size_t n, Span<double> matrix, Span<double> vectors, double tolerance);

}  // namespace thinwire

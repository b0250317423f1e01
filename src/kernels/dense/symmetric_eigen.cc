#include "kernels/dense/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace thinwire {
namespace {

/// (x, y) become (c x - s y, s x + c y).
void rotate(double* x, double* y, std::size_t n, double c, double s) {
  for (std::size_t i = 0; i < n; ++i) {
    const double old = x[i];
    x[i] = c * old - s * y[i];
    y[i] = s * old + c * y[i];
  }
}

/// Makes element (p, q) 0. Both triangles are kept. Returns whether it was not small already.
bool annihilate(std::size_t n, std::size_t p, std::size_t q, double* a, double* vectors, double tolerance) {
  const double beside = a[p * n + q];
  const double on_p = a[p * n + p];
  const double on_q = a[q * n + q];
  if (beside * beside <= tolerance * tolerance * std::abs(on_p * on_q) || beside == 0) return false;
  const double half = (on_q - on_p) / (2 * beside);
  const double t = (half >= 0 ? 1 : -1) / (std::abs(half) + std::sqrt(half * half + 1));
  const double c = 1 / std::sqrt(t * t + 1);
  const double s = t * c;
  rotate(a + p * n, a + q * n, n, c, s);
  a[p * n + p] = on_p - t * beside;
  a[q * n + q] = on_q + t * beside;
  a[p * n + q] = a[q * n + p] = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i == p || i == q) continue;
    a[i * n + p] = a[p * n + i];
    a[i * n + q] = a[q * n + i];
  }
  rotate(vectors + p * n, vectors + q * n, n, c, s);
  return true;
}

}  // namespace

void symmetric_eigenvectors(std::size_t n, Span<double> matrix, Span<double> vectors, double tolerance,
                            int most_sweeps) {
  std::fill_n(vectors.begin(), n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  bool changed = true;
  for (int sweep = 0; sweep < most_sweeps && changed; ++sweep) {
    changed = false;
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        changed = annihilate(n, p, q, matrix.data(), vectors.data(), tolerance) || changed;
      }
    }
  }
  for (std::size_t k = 0; k + 1 < n; ++k) {
    std::size_t largest = k;
    for (std::size_t i = k + 1; i < n; ++i) {
      if (matrix[i * n + i] > matrix[largest * n + largest]) largest = i;
    }
    if (largest == k) continue;
    std::swap_ranges(matrix.data() + k * n, matrix.data() + (k + 1) * n, matrix.data() + largest * n);
    for (std::size_t i = 0; i < n; ++i) std::swap(matrix[i * n + k], matrix[i * n + largest]);
    std::swap_ranges(vectors.data() + k * n, vectors.data() + (k + 1) * n, vectors.data() + largest * n);
  }
}

}  // namespace thinwire

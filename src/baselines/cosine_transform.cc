#include "baselines/cosine_transform.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace thinwire {
namespace {

/// cos(pi m / (2 n)) by its series: a C library's cosine differs from machine to machine.
double cosine(std::size_t m, std::size_t n) {
  m %= 4 * n;
  if (m > 2 * n) m = 4 * n - m;
  const bool negative = m > n;
  if (negative) m = 2 * n - m;
  const double angle = std::numbers::pi / 2 * static_cast<double>(m) / static_cast<double>(n);
  double term = 1;
  double sum = 1;
  for (int i = 1; i <= 14; ++i) {
    term *= -(angle * angle) / static_cast<double>((2 * i - 1) * (2 * i));
    sum += term;
  }
  return negative ? -sum : sum;
}

/// product [rows x columns] = left [rows x inner] times right [inner x columns].
void multiply(std::size_t rows, std::size_t inner, std::size_t columns, const float* left, const float* right,
              float* product) {
  std::fill_n(product, rows * columns, 0.0f);
  for (std::size_t i = 0; i < rows; ++i) {
    float* const out = product + i * columns;
    for (std::size_t k = 0; k < inner; ++k) {
      const float factor = left[i * inner + k];
      if (factor == 0) continue;
      const float* const in = right + k * columns;
      for (std::size_t j = 0; j < columns; ++j) out[j] += factor * in[j];
    }
  }
}

}  // namespace

void CosineTransform::prepare(std::size_t length) {
  Basis& basis = basis_.at(length);
  if (!basis.by_place.empty()) return;
  basis.by_coefficient.resize(length * length);
  basis.by_place.resize(length * length);
  for (std::size_t k = 0; k < length; ++k) {
    const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(length));
    for (std::size_t i = 0; i < length; ++i) {
      const auto value = static_cast<float>(scale * cosine((2 * i + 1) * k, length));
      basis.by_coefficient[k * length + i] = value;
      basis.by_place[i * length + k] = value;
    }
  }
}

void CosineTransform::forward(std::size_t rows, std::size_t columns, Span<float> block,
                              Span<float> scratch) const {
  multiply(rows, columns, columns, block.data(), basis_[columns].by_place.data(), scratch.data());
  multiply(rows, rows, columns, basis_[rows].by_coefficient.data(), scratch.data(), block.data());
}

void CosineTransform::inverse(std::size_t rows, std::size_t columns, Span<float> block,
                              Span<float> scratch) const {
  multiply(rows, columns, columns, block.data(), basis_[columns].by_coefficient.data(), scratch.data());
  multiply(rows, rows, columns, basis_[rows].by_place.data(), scratch.data(), block.data());
}

}  // namespace thinwire

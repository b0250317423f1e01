#include "wire/elias.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <string>

#include "thinwire/errors.h"
#include "wire/frame.h"

namespace thinwire {
namespace {

/// From 1 on.
std::uint32_t number_of(std::uint32_t counter, std::uint32_t workers) {
  const std::int64_t sum = 2 * std::int64_t{counter} - std::int64_t{workers};
  const auto magnitude = static_cast<std::uint32_t>(sum < 0 ? -sum : sum);
  const std::uint32_t negative = sum < 0 ? 1 : 0;
  return workers % 2 == 0 ? std::max(1u, magnitude + negative) : magnitude + negative;
}

std::uint32_t counter_of(std::uint32_t number, std::uint32_t workers) {
  const bool even = workers % 2 == 0;
  const bool negative = even ? number % 2 == 1 && number != 1 : number % 2 == 0;
  const std::int64_t magnitude = even && number == 1 ? 0 : number - (negative ? 1 : 0);
  return static_cast<std::uint32_t>((std::int64_t{workers} + (negative ? -magnitude : magnitude)) / 2);
}

class BitWriter {
 public:
  explicit BitWriter(Span<std::byte> bytes) : bytes_(bytes) {}

  /// count <= 32. Returns false where there is no room.
  bool put(std::uint64_t bits, int count) {
    held_ |= bits << filled_;
    for (filled_ += count; filled_ >= 8; filled_ -= 8, held_ >>= 8) {
      if (at_ == bytes_.size()) return false;
      bytes_[at_++] = static_cast<std::byte>(held_ & 255u);
    }
    return true;
  }
  /// Bytes with the last one filled up; 0 where there is no room.
  std::size_t finish() {
    if (filled_ > 0 && !put(0, 8 - filled_)) return 0;
    return at_;
  }

 private:
  Span<std::byte> bytes_;
  std::size_t at_ = 0;
  std::uint64_t held_ = 0;
  int filled_ = 0;
};

class BitReader {
 public:
  explicit BitReader(Span<const std::byte> bytes) : bytes_(bytes) {}

  unsigned next() {
    if (at_ == 8 * bytes_.size()) throw CorruptFrame("codes of sums of signs refused: they end too soon");
    const unsigned bit = std::to_integer<unsigned>(bytes_[at_ / 8]) >> (at_ % 8) & 1u;
    ++at_;
    return bit;
  }
  /// That nothing is left but the bits that fill the last byte.
  void finish() {
    if (at_ + 8 <= 8 * bytes_.size()) {
      throw CorruptFrame("codes of sums of signs refused: " + std::to_string(bytes_.size()) +
                         " bytes, expected " + std::to_string((at_ + 7) / 8));
    }
    while (at_ < 8 * bytes_.size()) {
      if (next() != 0) throw CorruptFrame("codes of sums of signs refused: a bit is set behind the last");
    }
  }

 private:
  Span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

}  // namespace

std::size_t write_elias(const SignSums& sums, Span<const std::uint64_t> planes, Span<std::byte> codes) {
  const int plane_count = vote_planes(sums.workers);
  const std::size_t words = sums.words();
  BitWriter writer(codes);
  for (std::size_t i = 0; i < sums.count; ++i) {
    std::uint32_t counter = 0;
    for (int k = 0; k < plane_count; ++k) {
      counter |=
          static_cast<std::uint32_t>(planes[static_cast<std::size_t>(k) * words + i / 64] >> (i % 64) & 1u)
          << k;
    }
    const std::uint32_t number = number_of(counter, sums.workers);
    const int zeros = 31 - std::countl_zero(number | 1u);
    // The highest bit is the first one that is set: zeros, it, and what is below it.
    const std::uint64_t below = number - std::bit_floor(number);
    if (!writer.put((std::uint64_t{1} | below << 1) << zeros, 2 * zeros + 1)) return 0;
  }
  return writer.finish();
}

void read_elias(const SignSums& sums, Span<const std::byte> codes, Span<std::uint64_t> planes) {
  const int plane_count = vote_planes(sums.workers);
  const std::size_t words = sums.words();
  std::ranges::fill(planes, 0);
  BitReader reader(codes);
  for (std::size_t i = 0; i < sums.count; ++i) {
    int zeros = 0;
    while (reader.next() == 0) {
      if (++zeros > 31) throw CorruptFrame("codes of sums of signs refused: a code has over 31 zeros");
    }
    std::uint64_t number = std::uint64_t{1} << zeros;
    for (int bit = 0; bit < zeros; ++bit) number |= std::uint64_t{reader.next()} << bit;
    if (number > sums.workers + std::uint64_t{1}) {
      throw CorruptFrame("codes of sums of signs refused: number " + std::to_string(number) + ", at most " +
                         std::to_string(sums.workers + std::uint64_t{1}) + " for " +
                         std::to_string(sums.workers) + " workers");
    }
    const std::uint64_t counter = counter_of(static_cast<std::uint32_t>(number), sums.workers);
    for (int k = 0; k < plane_count; ++k) {
      planes[static_cast<std::size_t>(k) * words + i / 64] |= (counter >> k & 1u) << (i % 64);
    }
  }
  reader.finish();
}

EliasBits elias_bits(Span<const std::int32_t> levels) {
  EliasBits bits;
  std::uint64_t gap = 0;
  for (const std::int32_t level : levels) {
    const auto magnitude = static_cast<std::uint64_t>(std::abs(std::int64_t{level}));
    const int sign = level == 0 ? 0 : 1;
    bits.each += static_cast<std::uint64_t>(elias_omega_bits(magnitude + 1) + sign);
    ++gap;
    if (level == 0) continue;
    bits.gaps += static_cast<std::uint64_t>(elias_omega_bits(gap) + sign + elias_omega_bits(magnitude));
    gap = 0;
  }
  return bits;
}

double entropy_bits(Span<const std::uint64_t> counts) {
  double all = 0;
  for (const std::uint64_t count : counts) all += static_cast<double>(count);
  double bits = 0;
  for (const std::uint64_t count : counts) {
    if (count != 0) bits += static_cast<double>(count) * std::log2(all / static_cast<double>(count));
  }
  return bits;
}

}  // namespace thinwire

#include "wire/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define THINWIRE_CRC32C_TARGET __attribute__((target("sse4.2")))
#define THINWIRE_CRC32C_WIDE_TARGET __attribute__((target("sse4.2,avx512f,pclmul,vpclmulqdq")))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define THINWIRE_CRC32C_TARGET
#endif

namespace thinwire {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // bits reversed

using ByteTable = std::array<std::uint32_t, 256>;

/// tables[k][v]: the register after the byte v and k zero bytes.
constexpr std::array<ByteTable, 8> make_tables() {
  std::array<ByteTable, 8> tables{};
  for (std::uint32_t value = 0; value < 256; ++value) {
    std::uint32_t crc = value;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1u) != 0 ? kPolynomial : 0);
    tables[0][value] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t value = 0; value < 256; ++value) {
      const std::uint32_t crc = tables[k - 1][value];
      tables[k][value] = crc >> 8 ^ tables[0][crc & 255u];
    }
  }
  return tables;
}

constexpr std::array<ByteTable, 8> kTables = make_tables();

std::uint64_t word_at(const std::byte* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

/// x^power modulo the polynomial, bits reversed, as a factor of a product without carries. Such a product of
/// reversed words lies one bit too low, which the factor's own shift makes up for.
constexpr std::uint64_t folding_factor(int power) {
  std::uint32_t value = std::uint32_t{1} << 31;  // x^0
  for (int i = 0; i < power; ++i) value = value >> 1 ^ ((value & 1u) != 0 ? kPolynomial : 0);
  return std::uint64_t{value} << 1;
}

/// Eight bytes at a time. crc: the register, neither inverted at the beginning nor at the end.
std::uint32_t run_tables(std::uint32_t crc, const std::byte* bytes, std::size_t count) {
  for (; count >= 8; bytes += 8, count -= 8) {
    const std::uint64_t word = word_at(bytes) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> (8 * k) & 255u];
  }
  for (; count > 0; ++bytes, --count)
    crc = crc >> 8 ^ kTables[0][(crc ^ std::to_integer<unsigned>(*bytes)) & 255u];
  return crc;
}

#ifdef THINWIRE_CRC32C_TARGET

#if defined(__x86_64__)
THINWIRE_CRC32C_TARGET inline std::uint64_t take_word(std::uint64_t crc, std::uint64_t word) {
  return _mm_crc32_u64(crc, word);
}
bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#else
inline std::uint64_t take_word(std::uint64_t crc, std::uint64_t word) {
  return __crc32cd(static_cast<std::uint32_t>(crc), word);
}
bool has_instruction() {
  return true;
}
#endif

/// What a register becomes behind `kBytes` zero bytes. That is linear, so a table for each of its four bytes
/// does.
template <std::size_t kBytes>
class Skip {
 public:
  Skip() {
    std::array<std::uint32_t, 32> of_bit{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
      std::uint32_t crc = std::uint32_t{1} << bit;
      for (std::size_t i = 0; i < kBytes; ++i) crc = crc >> 8 ^ kTables[0][crc & 255u];
      of_bit[bit] = crc;
    }
    for (std::size_t k = 0; k < 4; ++k) {
      for (std::size_t value = 0; value < 256; ++value) {
        for (std::size_t bit = 0; bit < 8; ++bit) {
          if ((value >> bit & 1u) != 0) tables_[k][value] ^= of_bit[8 * k + bit];
        }
      }
    }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return tables_[0][crc & 255u] ^ tables_[1][crc >> 8 & 255u] ^ tables_[2][crc >> 16 & 255u] ^
           tables_[3][crc >> 24];
  }

 private:
  std::array<ByteTable, 4> tables_{};
};

/// The instruction has a latency of three cycles and takes a word in each: three parts side by side keep it
/// busy.
template <std::size_t kPart>
THINWIRE_CRC32C_TARGET std::uint32_t run_three(std::uint32_t crc, const std::byte*& bytes,
                                               std::size_t& count) {
  static const Skip<kPart> skip;
  for (; count >= 3 * kPart; bytes += 3 * kPart, count -= 3 * kPart) {
    std::uint64_t one = crc;
    std::uint64_t two = 0;
    std::uint64_t three = 0;
    for (std::size_t at = 0; at < kPart; at += 8) {
      one = take_word(one, word_at(bytes + at));
      two = take_word(two, word_at(bytes + at + kPart));
      three = take_word(three, word_at(bytes + at + 2 * kPart));
    }
    crc = skip(static_cast<std::uint32_t>(one)) ^ static_cast<std::uint32_t>(two);
    crc = skip(crc) ^ static_cast<std::uint32_t>(three);
  }
  return crc;
}

THINWIRE_CRC32C_TARGET std::uint32_t run_instruction(std::uint32_t crc, const std::byte* bytes,
                                                     std::size_t count) {
  crc = run_three<4096>(crc, bytes, count);
  crc = run_three<256>(crc, bytes, count);
  std::uint64_t wide = crc;
  for (; count >= 8; bytes += 8, count -= 8) wide = take_word(wide, word_at(bytes));
  return run_tables(static_cast<std::uint32_t>(wide), bytes, count);
}

#ifdef THINWIRE_CRC32C_WIDE_TARGET

bool has_wide_products() {
  static const bool has = has_instruction() && __builtin_cpu_supports("avx512f") != 0 &&
                          __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
  return has;
}

constexpr std::size_t kWidth = 64;

THINWIRE_CRC32C_WIDE_TARGET inline __m512i load_wide(const std::byte* bytes, std::size_t vector) {
  return _mm512_loadu_si512(bytes + vector * kWidth);
}

/// For each 128 bits: what they are worth kBits further on, added to those that stand there.
template <int kBits>
THINWIRE_CRC32C_WIDE_TARGET inline __m512i fold(__m512i value, __m512i next) {
  // The reversed word that comes first is the one of the higher powers.
  constexpr auto kFirst = static_cast<long long>(folding_factor(kBits + 32));
  constexpr auto kSecond = static_cast<long long>(folding_factor(kBits - 32));
  const __m512i factors =
      _mm512_set_epi64(kSecond, kFirst, kSecond, kFirst, kSecond, kFirst, kSecond, kFirst);
  const __m512i first = _mm512_clmulepi64_epi128(value, factors, 0x00);
  const __m512i second = _mm512_clmulepi64_epi128(value, factors, 0x11);
  return _mm512_ternarylogic_epi64(first, second, next, 0x96);  // the sum of all three
}

/// Polynomials are folded (Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
/// Instruction, 2009), 256 bytes at a time: what comes first is multiplied by the power of x that moves it
/// onto what comes later.
THINWIRE_CRC32C_WIDE_TARGET std::uint32_t run_wide(std::uint32_t crc, const std::byte*& bytes,
                                                   std::size_t& count) {
  constexpr std::size_t kRun = 4 * kWidth;
  if (count < 2 * kRun) return crc;
  const __m512i before = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc)));
  __m512i v0 = _mm512_xor_si512(load_wide(bytes, 0), before);
  __m512i v1 = load_wide(bytes, 1);
  __m512i v2 = load_wide(bytes, 2);
  __m512i v3 = load_wide(bytes, 3);
  for (bytes += kRun, count -= kRun; count >= kRun; bytes += kRun, count -= kRun) {
    v0 = fold<8 * kRun>(v0, load_wide(bytes, 0));
    v1 = fold<8 * kRun>(v1, load_wide(bytes, 1));
    v2 = fold<8 * kRun>(v2, load_wide(bytes, 2));
    v3 = fold<8 * kRun>(v3, load_wide(bytes, 3));
  }
  v3 = fold<8 * kWidth>(fold<8 * kWidth>(fold<8 * kWidth>(v0, v1), v2), v3);
  // The four parts of the last vector are what they are worth at its end: a checksum of their bytes.
  alignas(64) std::array<std::uint64_t, 8> left;
  _mm512_store_si512(left.data(), v3);
  std::uint64_t wide = 0;
  for (const std::uint64_t word : left) wide = _mm_crc32_u64(wide, word);
  return static_cast<std::uint32_t>(wide);
}

#endif

#endif

}  // namespace

std::uint32_t crc32c_by_tables(Span<const std::byte> bytes, std::uint32_t before) {
  return ~run_tables(~before, bytes.data(), bytes.size());
}

std::uint32_t crc32c_by_words(Span<const std::byte> bytes, std::uint32_t before) {
#ifdef THINWIRE_CRC32C_TARGET
  if (has_instruction()) return ~run_instruction(~before, bytes.data(), bytes.size());
#endif
  return crc32c_by_tables(bytes, before);
}

std::uint32_t crc32c(Span<const std::byte> bytes, std::uint32_t before) {
#ifdef THINWIRE_CRC32C_WIDE_TARGET
  if (has_wide_products()) {
    const std::byte* at = bytes.data();
    std::size_t count = bytes.size();
    const std::uint32_t crc = run_wide(~before, at, count);
    return ~run_instruction(crc, at, count);
  }
#endif
  return crc32c_by_words(bytes, before);
}

}  // namespace thinwire

#pragma once
// CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of everything that ranks send: it finds every
// error of up to 32 bits in a row, and processors have an instruction for it.

#include "thinwire/span.h"

namespace thinwire {

/// The checksum of `bytes`, in host memory, behind those whose checksum is `before` (0: behind none):
/// crc32c(b, crc32c(a)) is that of a and b together.
std::uint32_t crc32c(Span<const std::byte> bytes, std::uint32_t before = 0);

/// The same by the processor's instruction for eight bytes, where it has no wide products.
std::uint32_t crc32c_by_words(Span<const std::byte> bytes, std::uint32_t before = 0);

/// The same by tables, for processors without the instruction.
std::uint32_t crc32c_by_tables(Span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace thinwire

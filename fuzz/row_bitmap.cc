// Any bytes behind a sound header: read_row_bitmap either throws CorruptFrame or returns as many rows as
// bits, none of them behind the last position.

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "thinwire/errors.h"
#include "wire/row_payload.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  const Span<const std::byte> frame(reinterpret_cast<const std::byte*>(data), size);
  try {
    const FrameHeader header = read_frame_header(frame);
    if (header.type != FrameType::row_bitmap) return 0;
    // Payloads arrive in buffers of their own, aligned.
    const std::vector<std::byte> payload(frame.begin() + FrameHeader::kBytes, frame.end());
    std::vector<std::uint64_t> bits((header.count + 63) / 64);
    const auto values = read_row_bitmap(header, payload, bits);
    std::uint64_t set = 0;
    for (const std::uint64_t word : bits) set += static_cast<std::uint64_t>(std::popcount(word));
    if (values.size() != set * header.width) std::abort();
    if (header.count % 64 != 0 && (bits.back() >> (header.count % 64)) != 0) std::abort();
    volatile float sink = 0;
    for (const float value : values) sink = value;
    (void)sink;
  } catch (const CorruptFrame&) {
  }
  return 0;
}

// Any bytes behind a sound header: read_row_bitmap either throws CorruptFrame or returns as many rows as
// bits, none of them behind the last position.

#include <bit>

#include "fuzz/frames.h"
#include "thinwire/errors.h"
#include "wire/payloads.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  using thinwire::fuzz::require;
  fuzz::SealedFrame frame(data, size);
  try {
    const FrameHeader header = read_frame_header(frame.bytes());
    if (header.type != FrameType::row_bitmap) return 0;
    // As many bits as the longest payload has.
    static std::array<std::uint64_t, 4096 / 8 + 1> words;
    const Span<std::uint64_t> bits(words.data(), (header.count + 63) / 64);
    const auto values = read_row_bitmap(header, frame.payload(), bits);
    std::uint64_t set = 0;
    for (const std::uint64_t word : bits) set += static_cast<std::uint64_t>(std::popcount(word));
    require(values.size() == set * header.width);
    if (header.count % 64 != 0) require((bits[bits.size() - 1] >> (header.count % 64)) == 0);
    volatile float sink = 0;
    for (const float value : values) sink = value;
    (void)sink;
  } catch (const CorruptFrame&) {
  }
  return 0;
}

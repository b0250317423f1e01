// Any bytes behind a sound header: read_row_list either throws CorruptFrame or returns indices that ascend
// and stay below the limit, all inside the payload.

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
    if (header.type != FrameType::row_list) return 0;
    // Payloads arrive in buffers of their own, aligned.
    const std::vector<std::byte> payload(frame.begin() + FrameHeader::kBytes, frame.end());
    constexpr std::uint64_t kLimit = 1000;
    const ReceivedRowList list = read_row_list(header, payload, kLimit);
    std::uint64_t next = 0;
    for (const std::uint32_t index : list.indices) {
      if (index < next || index >= kLimit) std::abort();
      next = std::uint64_t{index} + 1;
    }
    if (list.indices.size_bytes() + list.values.size_bytes() != payload.size()) std::abort();
    volatile float sink = 0;
    for (const float value : list.values) sink = value;
    (void)sink;
  } catch (const CorruptFrame&) {
  }
  return 0;
}

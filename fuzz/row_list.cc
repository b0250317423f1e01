// Any bytes behind a sound header: read_row_list either throws CorruptFrame or returns indices that ascend
// and stay below the limit, all inside the payload.

#include "fuzz/frames.h"
#include "thinwire/errors.h"
#include "wire/payloads.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  using thinwire::fuzz::require;
  fuzz::SealedFrame frame(data, size);
  try {
    const FrameHeader header = read_frame_header(frame.bytes());
    if (header.type != FrameType::row_list) return 0;
    constexpr std::uint64_t kLimit = 1000;
    const ReceivedRowList list = read_row_list(header, frame.payload(), kLimit);
    std::uint64_t next = 0;
    for (const std::uint32_t index : list.indices) {
      require(index >= next && index < kLimit);
      next = std::uint64_t{index} + 1;
    }
    require(list.indices.size_bytes() + list.values.size_bytes() == frame.payload().size());
    volatile float sink = 0;
    for (const float value : list.values) sink = value;
    (void)sink;
  } catch (const CorruptFrame&) {
  }
  return 0;
}

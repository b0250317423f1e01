// Any bytes: read_frame_header either throws CorruptFrame or returns a header whose every promise holds.

#include "wire/frame.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "thinwire/errors.h"
#include "wire/coded_payload.h"
#include "wire/scaled_sign_payload.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  const Span<const std::byte> frame(reinterpret_cast<const std::byte*>(data), size);
  try {
    const FrameHeader header = read_frame_header(frame);
    const bool rows = header.type == FrameType::row_list || header.type == FrameType::row_bitmap;
    const bool codes = header.type == FrameType::codes;
    const bool codes_fit = codes && header.width <= kMostCodeBits &&
                           header.payload_bytes >= code_bytes(header.count, header.width);
    const bool sound =
        header.payload_bytes == size - FrameHeader::kBytes && header.workers != 0 &&
        header.count + (rows ? 0 : header.first) <= std::numeric_limits<std::uint32_t>::max() &&
        (rows || codes) == (header.width != 0) &&
        (rows || codes_fit ||
         header.payload_bytes == frame_payload_bytes(header.type, header.count, header.workers));
    if (!sound) std::abort();
    expect_frame(frame, header);
    if (codes) {
      Workspace workspace;
      const auto floats =
          static_cast<std::size_t>(header.payload_bytes - code_bytes(header.count, header.width)) / 4;
      const CodedFrame coded(workspace, floats, header.count, header.width);
      std::copy(frame.begin(), frame.end(), coded.message().begin());
      coded.open();
      coded.close();
    }
    if (header.type == FrameType::scaled_sign_bits && !(read_scale(frame) >= 0)) std::abort();
  } catch (const CorruptFrame&) {
  }
  return 0;
}

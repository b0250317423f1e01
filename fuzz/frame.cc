// Any bytes, with a checksum that is right for them: read_frame_header either throws CorruptFrame or returns
// a header whose every promise holds. With any other checksum the frame is refused.

#include "wire/frame.h"

#include <algorithm>
#include <limits>

#include "fuzz/frames.h"
#include "thinwire/errors.h"
#include "wire/payloads.h"

namespace {

using namespace thinwire;
using thinwire::fuzz::require;

void require_sound(const FrameHeader& header, std::size_t size) {
  const bool rows = header.type == FrameType::row_list || header.type == FrameType::row_bitmap;
  const bool codes = header.type == FrameType::codes;
  require(header.payload_bytes == size - FrameHeader::kBytes && header.workers != 0);
  require(header.count <= std::numeric_limits<std::uint32_t>::max());
  require((rows || codes) == (header.width != 0));
  if (codes) {
    require(header.width <= kMostCodeBits && header.payload_bytes >= code_bytes(header.count, header.width));
  } else if (!rows) {
    require(header.payload_bytes == frame_payload_bytes(header.type, header.count, header.workers));
  }
}

/// The codes of a frame, brought into the form that kernels read, and back.
void open_codes(Span<const std::byte> frame, const FrameHeader& header) {
  static Workspace workspace;
  workspace.reset();
  const auto floats =
      static_cast<std::size_t>(header.payload_bytes - code_bytes(header.count, header.width)) / sizeof(float);
  const CodedFrame coded(workspace, floats, header.count, header.width);
  std::copy(frame.begin(), frame.end(), coded.message().begin());
  coded.open();
  coded.close();
}

void require_refused(Span<const std::byte> frame) {
  try {
    (void)read_frame_header(frame);
  } catch (const CorruptFrame&) {
    return;
  }
  require(false);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::SealedFrame frame(data, size);
  try {
    const FrameHeader header = read_frame_header(frame.bytes());
    require_sound(header, frame.bytes().size());
    expect_frame(frame.bytes(), header);
    if (header.type == FrameType::codes) open_codes(frame.bytes(), header);
    if (header.type == FrameType::scaled_sign_bits) require(read_scale(frame.bytes()) >= 0);
    frame.header()[size % FrameHeader::kBytes] ^= std::byte{1};
    require_refused(frame.bytes());
  } catch (const CorruptFrame&) {
  }
  return 0;
}

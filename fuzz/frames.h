#pragma once
// Frames for the targets that read them.

#include <array>
#include <cstddef>
#include <cstdint>

#include "fuzz/input.h"
#include "wire/frame.h"

namespace thinwire::fuzz {

/// An input as a frame whose checksum is right, in aligned memory. Inputs that are too long are cut.
class SealedFrame {
 public:
  SealedFrame(const std::uint8_t* data, std::size_t size) : size_(std::min(size, kMost)) {
    if (size_ != 0) std::memcpy(memory_.data(), data, size_);
    if (size_ >= FrameHeader::kBytes) seal_as_it_is(header(), payload());
  }

  Span<std::byte> bytes() { return Span<std::byte>(memory_.data(), size_); }
  Span<std::byte> header() { return bytes().first(FrameHeader::kBytes); }
  Span<const std::byte> payload() {
    return bytes().subspan(FrameHeader::kBytes, size_ - FrameHeader::kBytes);
  }

 private:
  static constexpr std::size_t kMost = 4096;
  std::size_t size_;
  alignas(64) std::array<std::byte, kMost> memory_;
};

}  // namespace thinwire::fuzz

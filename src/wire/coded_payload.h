#pragma once
// The payload of a `codes` frame: a table of float32 that gives the codes their meaning, then one
// code of a few bits per element.
//
// Codes lie as bit planes: 64 elements take `bits` words, word k holds bit k of each code, element e at bit
// e. Comparing a vector with a threshold yields such a word, and a word selects between two vectors, so
// neither side shifts single codes into place. Where the last group has fewer than 64 elements, its planes
// travel one behind the other without a gap.

#include "thinwire/span.h"
#include "thinwire/workspace.h"
#include "wire/frame.h"

namespace thinwire {

/// Words that codes of `bits` bits take in memory.
constexpr std::size_t code_words(std::size_t count, std::size_t bits) {
  return (count + 63) / 64 * bits;
}

/// One frame's memory, from a workspace. The codes are aligned to 64 bytes and padded like every span of a
/// workspace; the message begins where that puts it.
class CodedFrame {
 public:
  CodedFrame() = default;
  /// bits: 1 to kMostCodeBits.
  CodedFrame(Workspace& workspace, std::size_t table_floats, std::size_t count, std::size_t bits);

  Span<std::byte> message() const { return message_; }
  Span<float> table() const { return table_; }
  /// code_words(count, bits) words.
  Span<std::uint64_t> codes() const { return codes_; }
  std::uint64_t payload_bytes() const { return message_.size() - FrameHeader::kBytes; }

  /// Brings the last group into the form in which it travels. Codes are not readable until open().
  void close() const;
  /// The reverse, for a frame that has arrived or was sent.
  void open() const;

 private:
  Span<std::byte> message_;
  Span<float> table_;
  Span<std::uint64_t> codes_;
  std::size_t count_ = 0;
  std::size_t bits_ = 0;
};

}  // namespace thinwire

#pragma once
// The payloads of row_list and row_bitmap frames: what another rank says about which rows it sends.

#include "thinwire/span.h"
#include "wire/frame.h"

namespace thinwire {

/// A row_list payload of `listed` rows in place: u32 indices [listed], then float32 values [listed * width].
struct RowList {
  Span<std::uint32_t> indices;
  Span<float> values;
};
RowList row_list_in(Span<std::byte> payload, std::size_t listed, std::size_t width);

/// Views a received row_list. payload: header.payload_bytes, aligned to 4. Throws CorruptFrame, naming the
/// position, unless indices ascend strictly and are below `limit`.
struct ReceivedRowList {
  Span<const std::uint32_t> indices;
  Span<const float> values;
};
ReceivedRowList read_row_list(const FrameHeader& header, Span<const std::byte> payload, std::uint64_t limit);

/// A row_bitmap payload in place: values [listed * width], then one bit per place in (slots + 7) / 8 bytes,
/// those of a bitmap (kernels/rows/bitmap.h) as far as they go.
struct RowBitmap {
  Span<float> values;
  Span<std::byte> bits;
};
RowBitmap row_bitmap_in(Span<std::byte> payload, std::size_t listed, std::size_t width, std::size_t slots);

/// Reads a row_bitmap: copies its bits to `bits` [bitmap words of header.count slots] and views its values.
/// Throws CorruptFrame unless as many bits are set as there are rows of values, none behind the last slot.
Span<const float> read_row_bitmap(const FrameHeader& header, Span<const std::byte> payload,
                                  Span<std::uint64_t> bits);

}  // namespace thinwire

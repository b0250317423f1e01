#include "wire/payloads.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// One pass without branches; which index it was is looked up only when something is wrong.
bool ascending_below(Span<const std::uint32_t> indices, std::uint64_t limit) {
  if (indices.empty()) return true;
  bool good = indices[indices.size() - 1] < limit;
  for (std::size_t k = 1; k < indices.size(); ++k) good &= indices[k - 1] < indices[k];
  return good;
}

CorruptFrame refused_index(Span<const std::uint32_t> indices, std::uint64_t limit) {
  std::size_t k = 0;
  while (indices[k] < limit && (k == 0 || indices[k - 1] < indices[k])) ++k;
  return CorruptFrame("frame refused: row index " + std::to_string(indices[k]) + " at position " +
                      std::to_string(k) + " is not above the one before and below " + std::to_string(limit));
}

constexpr std::size_t kAlignment = 64;

std::uint64_t low_bits(std::size_t count) {
  return count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace

RowList row_list_in(Span<std::byte> payload, std::size_t listed, std::size_t width) {
  auto* indices = reinterpret_cast<std::uint32_t*>(payload.data());
  return {{indices, listed}, {reinterpret_cast<float*>(indices + listed), listed * width}};
}

ReceivedRowList read_row_list(const FrameHeader& header, Span<const std::byte> payload, std::uint64_t limit) {
  const std::size_t listed = header.count;
  const auto* first = reinterpret_cast<const std::uint32_t*>(payload.data());
  const Span<const std::uint32_t> indices(first, listed);
  if (!ascending_below(indices, limit)) throw refused_index(indices, limit);
  return {indices, {reinterpret_cast<const float*>(first + listed), listed * header.width}};
}

RowBitmap row_bitmap_in(Span<std::byte> payload, std::size_t listed, std::size_t width, std::size_t slots) {
  const Span<float> values(reinterpret_cast<float*>(payload.data()), listed * width);
  return {values, {payload.data() + values.size_bytes(), (slots + 7) / 8}};
}

Span<const float> read_row_bitmap(const FrameHeader& header, Span<const std::byte> payload,
                                  Span<std::uint64_t> bits) {
  const std::size_t values = frame_rows(header) * header.width;
  const std::size_t bytes = (header.count + 7) / 8;
  if (!bits.empty()) {
    bits[bits.size() - 1] = 0;
    std::memcpy(bits.data(), payload.data() + values * sizeof(float), bytes);
  }
  std::uint64_t set = 0;
  for (const std::uint64_t word : bits) set += static_cast<std::uint64_t>(std::popcount(word));
  if (set != frame_rows(header)) {
    throw CorruptFrame("frame refused: " + std::to_string(set) + " bits are set for " +
                       std::to_string(frame_rows(header)) + " rows of values");
  }
  if (header.count % 64 != 0 && (bits[bits.size() - 1] >> (header.count % 64)) != 0) {
    throw CorruptFrame("frame refused: a bit is set behind the last of " + std::to_string(header.count) +
                       " slots");
  }
  return {reinterpret_cast<const float*>(payload.data()), values};
}

CodedFrame::CodedFrame(Workspace& workspace, std::size_t table_floats, std::size_t count, std::size_t bits)
    : count_(count), bits_(bits) {
  const std::size_t head = FrameHeader::kBytes + table_floats * sizeof(float);
  const std::size_t begin = (kAlignment - head % kAlignment) % kAlignment;
  const std::size_t words = code_words(count, bits);
  const auto memory = workspace.take<std::byte>(begin + head + words * sizeof(std::uint64_t));
  message_ = memory.subspan(begin, head + static_cast<std::size_t>(code_bytes(count, bits)));
  table_ = {reinterpret_cast<float*>(message_.data() + FrameHeader::kBytes), table_floats};
  codes_ = {reinterpret_cast<std::uint64_t*>(message_.data() + head), words};
}

void CodedFrame::close() const {
  const std::size_t rest = count_ % 64;
  if (rest == 0) return;
  const auto planes = codes_.subspan(codes_.size() - bits_, bits_);
  std::array<std::uint64_t, kMostCodeBits + 1> packed{};
  for (std::size_t k = 0; k < bits_; ++k) {
    const std::uint64_t plane = planes[k] & low_bits(rest);
    const std::size_t at = k * rest;
    packed[at / 64] |= plane << (at % 64);
    if (at % 64 != 0) packed[at / 64 + 1] |= plane >> (64 - at % 64);
  }
  std::copy_n(packed.begin(), bits_, planes.begin());
}

void CodedFrame::open() const {
  const std::size_t rest = count_ % 64;
  if (rest == 0) return;
  const auto planes = codes_.subspan(codes_.size() - bits_, bits_);
  // Bytes behind the message are whatever the memory held.
  std::array<std::uint64_t, kMostCodeBits + 1> packed{};
  std::copy_n(reinterpret_cast<const std::byte*>(planes.data()), code_bytes(rest, bits_),
              reinterpret_cast<std::byte*>(packed.data()));
  for (std::size_t k = 0; k < bits_; ++k) {
    const std::size_t at = k * rest;
    std::uint64_t plane = packed[at / 64] >> (at % 64);
    if (at % 64 != 0) plane |= packed[at / 64 + 1] << (64 - at % 64);
    planes[k] = plane & low_bits(rest);
  }
}

}  // namespace thinwire

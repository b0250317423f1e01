#include "wire/coded_payload.h"

#include <algorithm>
#include <array>

namespace thinwire {
namespace {

constexpr std::size_t kAlignment = 64;

std::uint64_t low_bits(std::size_t count) {
  return count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace

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

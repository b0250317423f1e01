#include "thinwire/workspace.h"

#include <algorithm>
#include <new>

namespace thinwire {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmallestBlock = 64 * 1024;

}  // namespace

void Workspace::Release::operator()(std::byte* pointer) const {
  ::operator delete[](pointer, std::align_val_t{kAlignment});
}

void* Workspace::take_bytes(std::size_t size) {
  // One line more than asked for: kernels may load whole vectors at the end.
  const std::size_t needed = (size + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
  while (block_ < blocks_.size() && offset_ + needed > blocks_[block_].size) {
    ++block_;
    offset_ = 0;
  }
  if (block_ == blocks_.size()) {
    Block block;
    block.size = std::max(needed, kSmallestBlock);
    block.bytes.reset(new (std::align_val_t{kAlignment}) std::byte[block.size]);
    blocks_.push_back(std::move(block));
    offset_ = 0;
  }
  void* result = blocks_[block_].bytes.get() + offset_;
  offset_ += needed;
  return result;
}

void Workspace::reset() {
  block_ = 0;
  offset_ = 0;
}

std::size_t Workspace::capacity_bytes() const {
  std::size_t total = 0;
  for (const auto& block : blocks_) total += block.size;
  return total;
}

}  // namespace thinwire

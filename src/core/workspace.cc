#include "thinwire/workspace.h"

#include <algorithm>

namespace thinwire {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmallestBlock = 64 * 1024;

}  // namespace

void* Workspace::take_bytes(std::size_t size) {
  // One line more than asked for: kernels may load whole vectors at the end.
  const std::size_t needed = (size + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
  if (blocks_.empty() || offset_ + needed > blocks_.back().size) {
    // Twice as much each time: few blocks, and pages that nobody touches cost nothing, but for the large one
    // that the last touched byte lies in.
    add_block(std::max({needed, kSmallestBlock, capacity_bytes()}));
  }
  void* result = blocks_.back().bytes.get() + offset_;
  offset_ += needed;
  return result;
}

void Workspace::add_block(std::size_t size) {
  Block block;
  block.size = size;
  block.bytes = {static_cast<std::byte*>(allocator_->allocate(size)), detail::Release{allocator_}};
  blocks_.push_back(std::move(block));
  ++allocations_;
  offset_ = 0;
}

void Workspace::reset() {
  if (blocks_.size() > 1) {
    const std::size_t total = capacity_bytes();
    blocks_.clear();
    add_block((total + total / 4) / kAlignment * kAlignment);
  }
  offset_ = 0;
}

std::size_t Workspace::capacity_bytes() const {
  std::size_t total = 0;
  for (const auto& block : blocks_) total += block.size;
  return total;
}

}  // namespace thinwire

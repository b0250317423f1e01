#pragma once
// Scratch memory of one bucket. Every step of a bucket needs about the same buffers; an arena hands them out
// without touching the allocator after the first steps. Sparse gradients need a little more in one step than
// in another: before the next step all of a step's memory becomes one block, with a margin.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

namespace detail {

/// Gives memory back to where it came from.
struct Release {
  Allocator* allocator = nullptr;
  void operator()(std::byte* pointer) const { allocator->release(pointer); }
};

}  // namespace detail

class Workspace {
 public:
  /// An executor's shared_allocator() gives memory that its kernels reach, too. It outlives the workspace.
  explicit Workspace(Allocator& allocator = host_allocator()) : allocator_(&allocator) {}
  Workspace(Workspace&&) = default;
  Workspace& operator=(Workspace&&) = default;

  /// `count` elements, uninitialised, aligned to 64 bytes, valid until the next reset(). Padded so that
  /// reading up to 64 bytes past the end stays inside the allocation (vector loads of a tail).
  template <class T>
  requires std::is_trivially_copyable_v<T> Span<T> take(std::size_t count) {
    return {static_cast<T*>(take_bytes(count * sizeof(T))), count, allocator_->memory()};
  }

  /// Makes everything available again; spans handed out before become invalid. Keeps the memory, or, when it
  /// lay in several blocks, replaces it by one block that is a quarter larger.
  void reset();

  /// Bytes held, and how often the allocator was asked, since construction.
  std::size_t capacity_bytes() const;
  std::size_t allocations() const { return allocations_; }

 private:
  struct Block {
    std::unique_ptr<std::byte[], detail::Release> bytes;
    std::size_t size = 0;
  };

  void* take_bytes(std::size_t size);
  void add_block(std::size_t size);

  Allocator* allocator_;
  std::vector<Block> blocks_;
  std::size_t offset_ = 0;  // bytes used in the last block
  std::size_t allocations_ = 0;
};

}  // namespace thinwire

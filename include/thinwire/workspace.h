#pragma once
// Scratch memory of one bucket. Every step of a bucket needs the same buffers; an arena hands them out
// without touching the allocator after the first step.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "thinwire/span.h"

namespace thinwire {

class Workspace {
 public:
  Workspace() = default;
  Workspace(Workspace&&) = default;
  Workspace& operator=(Workspace&&) = default;

  /// `count` elements, uninitialised, aligned to 64 bytes, valid until the next reset(). Padded so that
  /// reading up to 64 bytes past the end stays inside the allocation (vector loads of a tail).
  template <class T>
  requires std::is_trivially_copyable_v<T> Span<T> take(std::size_t count) {
    return {static_cast<T*>(take_bytes(count * sizeof(T))), count};
  }

  /// Makes everything available again; spans handed out before become invalid. Keeps the memory.
  void reset();

  /// Bytes held, and how often the allocator was asked, since construction.
  std::size_t capacity_bytes() const;
  std::size_t allocations() const { return blocks_.size(); }

 private:
  struct Release {
    void operator()(std::byte* pointer) const;
  };
  struct Block {
    std::unique_ptr<std::byte[], Release> bytes;
    std::size_t size = 0;
  };

  void* take_bytes(std::size_t size);

  std::vector<Block> blocks_;
  std::size_t block_ = 0;   // the block that is being filled
  std::size_t offset_ = 0;  // bytes used in it
};

}  // namespace thinwire

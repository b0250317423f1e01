// Linked into a program, it lets no allocation be far above what small tests need: whoever believes a length
// that arrived asks for more, and gets std::bad_alloc.

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

void* allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = (bytes + alignment) / alignment * alignment;  // never 0
  void* memory = bytes > kMostBytes ? nullptr : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t));
}
/// std::stable_sort takes its buffer by this one, and gives it back by the delete below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return bytes > kMostBytes ? nullptr : std::malloc(bytes + 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

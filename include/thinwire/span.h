#pragma once
// A contiguous range that knows in which memory it lies. std::span cannot say whether its pointer may be
// dereferenced by the CPU; kernels need to know before they touch it.

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <type_traits>

namespace thinwire {

/// Where bytes lie: ordinary memory, or a CUDA device's.
enum class Memory : std::uint8_t { host, cuda };

template <class T>
class Span;

namespace detail {

template <class T>
inline constexpr bool kIsSpan = false;
template <class T>
inline constexpr bool kIsSpan<Span<T>> = true;

}  // namespace detail

template <class T>
class Span {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;

  constexpr Span() = default;
  constexpr Span(T* data, std::size_t size, Memory memory = Memory::host)
      : data_(data), size_(size), memory_(memory) {}

  /// Span<float> converts to Span<const float>.
  template <class U>
  requires(!std::is_same_v<U, T> && std::is_convertible_v<U (*)[], T (*)[]>) constexpr Span(Span<U> other)
      : data_(other.data()), size_(other.size()), memory_(other.memory()) {}

  /// From a vector, array or string, which lie in host memory. Temporaries are refused.
  template <class Range>
  requires(!detail::kIsSpan<std::remove_cv_t<Range>> && std::ranges::contiguous_range<Range&> &&
           std::ranges::sized_range<Range&> &&
           std::is_convertible_v<std::remove_reference_t<std::ranges::range_reference_t<Range&>> (*)[],
                                 T (*)[]>) constexpr Span(Range& range)
      : data_(std::ranges::data(range)), size_(std::ranges::size(range)) {}

  constexpr T* data() const { return data_; }
  constexpr std::size_t size() const { return size_; }
  constexpr std::size_t size_bytes() const { return size_ * sizeof(T); }
  constexpr bool empty() const { return size_ == 0; }
  constexpr Memory memory() const { return memory_; }

  constexpr T& operator[](std::size_t index) const { return data_[index]; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }

  /// The caller keeps offset + count <= size(); an empty span stays empty whatever is asked of it, so that
  /// an absent residual can be cut like a present one.
  constexpr Span subspan(std::size_t offset, std::size_t count) const {
    return size_ == 0 ? *this : Span(data_ + offset, count, memory_);
  }
  constexpr Span first(std::size_t count) const { return subspan(0, count); }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
  Memory memory_ = Memory::host;
};

template <class T>
Span<const std::byte> as_bytes(Span<T> span) {
  return {reinterpret_cast<const std::byte*>(span.data()), span.size_bytes(), span.memory()};
}

template <class T>
requires(!std::is_const_v<T>) Span<std::byte> as_writable_bytes(Span<T> span) {
  return {reinterpret_cast<std::byte*>(span.data()), span.size_bytes(), span.memory()};
}

}  // namespace thinwire

#pragma once
// What targets share: an input taken apart from its front, and bytes that a rank would send.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/hashes.h"
#include "thinwire/span.h"

namespace thinwire::fuzz {

/// Ends the program where a promise does not hold.
inline void require(bool holds) {
  if (!holds) std::abort();
}

/// Takes numbers from the front of an input; zeros once it is used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  template <class T>
  T take() {
    T value{};
    const std::size_t count = std::min(size_, sizeof value);
    if (count != 0) std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }
  std::string rest() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

/// The checksum of states and of gradient files.
inline std::uint64_t hash_of(const std::string& bytes, std::size_t begin = 0) {
  Fnv1a hash;
  if (begin < bytes.size()) hash.add(bytes.data() + begin, bytes.size() - begin);
  return hash.value();
}

/// The bytes with their checksum behind them.
inline std::string with_hash(std::string bytes, std::size_t begin = 0) {
  const std::uint64_t hash = hash_of(bytes, begin);
  bytes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  return bytes;
}

}  // namespace thinwire::fuzz

#pragma once
// FNV-1a of 64 bits, byte by byte: the checksum of files, and a hash of texts that every build agrees on.
// Slow on large data, where content_hash.h and crc32c.h serve.

#include <cstddef>
#include <cstdint>

namespace thinwire {

class Fnv1a {
 public:
  void add(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) value_ = (value_ ^ bytes[i]) * 0x100000001b3u;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace thinwire

// Loaded into ranks by LD_PRELOAD: reads and writes of connections take their time now and then. So a fault
// more often takes effect between two of them.

#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

namespace {

/// Up to three milliseconds, by no clock and no seed: threads take numbers as they come.
void dawdle() {
  static std::atomic<unsigned> calls{0};
  usleep(calls.fetch_add(1) * 2654435761u % 3000);
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  static const auto original = next<ssize_t (*)(int, const struct iovec*, int)>("writev");
  dawdle();
  return original(descriptor, parts, count);
}

ssize_t read(int descriptor, void* bytes, size_t count) {
  static const auto original = next<ssize_t (*)(int, void*, size_t)>("read");
  dawdle();
  return original(descriptor, bytes, count);
}

}  // extern "C"

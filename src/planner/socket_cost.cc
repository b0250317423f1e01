#include "planner/socket_cost.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/cpu_clock.h"

#include "thinwire/span.h"
#include "wire/crc32c.h"

namespace thinwire {
namespace {

/// More than caches hold, as buckets are.
constexpr std::size_t kBytes = std::size_t{32} << 20;
constexpr int kTries = 3;

[[noreturn]] void fail(const char* call) {
  throw std::runtime_error(std::string("what sockets cost cannot be measured on the loopback device: ") +
                           call + ": " + std::strerror(errno));
}

class Socket {
 public:
  explicit Socket(int descriptor, const char* call) : descriptor_(descriptor) {
    if (descriptor < 0) fail(call);
  }
  ~Socket() { ::close(descriptor_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

/// Ends the other side's receive on any way out.
void send_all(int to, const std::vector<std::byte>& bytes, double& seconds, int& error,
              std::uint32_t& checksum) {
  const double start = cpu_seconds();
  checksum = crc32c(Span<const std::byte>(bytes));
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t now = ::send(to, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) {
      error = errno;
      break;
    }
    sent += static_cast<std::size_t>(now);
  }
  ::shutdown(to, SHUT_WR);
  seconds = cpu_seconds() - start;
}

/// Both ends' CPU time.
double one_try(int from, int to) {
  const std::vector<std::byte> leaving(kBytes, std::byte{1});
  std::vector<std::byte> arriving(kBytes);
  double sending = 0;
  int error = 0;
  std::uint32_t checksum = 0;
  std::thread sender(send_all, to, std::cref(leaving), std::ref(sending), std::ref(error),
                     std::ref(checksum));
  const double start = cpu_seconds();
  std::size_t received = 0;
  while (received < kBytes) {
    const ssize_t now = ::recv(from, arriving.data() + received, kBytes - received, 0);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) break;
    received += static_cast<std::size_t>(now);
  }
  const std::uint32_t arrived = crc32c(Span<const std::byte>(arriving));
  const double receiving = cpu_seconds() - start;
  sender.join();
  errno = error;
  if (received != kBytes || arrived != checksum) fail("send");
  return sending + receiving;
}

double connect_and_try() {
  const Socket listener(::socket(AF_INET, SOCK_STREAM, 0), "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* general = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (::bind(listener.get(), general, length) != 0) fail("bind");
  if (::listen(listener.get(), 1) != 0) fail("listen");
  if (::getsockname(listener.get(), general, &length) != 0) fail("getsockname");
  const Socket sender(::socket(AF_INET, SOCK_STREAM, 0), "socket");
  if (::connect(sender.get(), general, length) != 0) fail("connect");
  const Socket receiver(::accept(listener.get(), nullptr, nullptr), "accept");
  return one_try(receiver.get(), sender.get());
}

}  // namespace

double measure_socket_seconds_per_byte() {
  std::array<double, kTries> seconds{};
  for (double& one : seconds) one = connect_and_try();
  std::ranges::sort(seconds);
  return seconds[kTries / 2] / static_cast<double>(kBytes);
}

}  // namespace thinwire

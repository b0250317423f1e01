#include "planner/socket_cost.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
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
/// A header of a frame.
constexpr std::size_t kSmallBytes = 64;
/// Round trips of small messages; fewer where they take long, as on busy cores.
constexpr int kRoundTrips = 300;
constexpr std::chrono::milliseconds kLongest{100};
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
double one_try_of_bytes(int from, int to) {
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

/// One end of a connection as Gloo has it: a thread of its own reads, and wakes the one that waits.
class End {
 public:
  explicit End(int socket) : socket_(socket), reader_([this] { read(); }) {}
  ~End() { finish(); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  /// Returns whether all of it is on its way.
  bool send() const {
    const std::array<std::byte, kSmallBytes> message{};
    return ::send(socket_, message.data(), message.size(), MSG_NOSIGNAL) == ssize_t{kSmallBytes};
  }
  /// Returns false where the connection ended before another message came.
  bool await() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [this] { return arrived_ > taken_ || ended_; });
    if (arrived_ == taken_) return false;
    ++taken_;
    return true;
  }
  /// Ends the connection. Returns the CPU time of the thread that read.
  double finish() {
    ::shutdown(socket_, SHUT_RDWR);
    if (reader_.joinable()) reader_.join();
    return seconds_;
  }

 private:
  void read() {
    std::array<std::byte, kSmallBytes> message{};
    const double start = cpu_seconds();
    while (true) {
      const ssize_t now = ::recv(socket_, message.data(), message.size(), MSG_WAITALL);
      if (now < 0 && errno == EINTR) continue;
      const std::lock_guard lock(mutex_);
      ended_ = now != ssize_t{kSmallBytes};
      if (!ended_) ++arrived_;
      came_.notify_one();
      if (ended_) break;
    }
    seconds_ = cpu_seconds() - start;
  }

  int socket_;
  std::mutex mutex_;
  std::condition_variable came_;
  int arrived_ = 0;
  int taken_ = 0;
  bool ended_ = false;
  double seconds_ = 0;
  std::thread reader_;
};

/// CPU time of a message: of the threads that send it, read it and wait for it.
double one_try_of_messages(int here, int there) {
  End caller(here);
  End answerer(there);
  double answering = 0;
  std::thread answers([&] {
    const double start = cpu_seconds();
    while (answerer.await() && answerer.send()) {
    }
    answering = cpu_seconds() - start;
  });
  const double start = cpu_seconds();
  const auto began = std::chrono::steady_clock::now();
  int trips = 0;
  while (trips < kRoundTrips && std::chrono::steady_clock::now() - began < kLongest) {
    if (!caller.send() || !caller.await()) break;
    ++trips;
  }
  double seconds = cpu_seconds() - start;
  seconds += caller.finish();
  answers.join();
  seconds += answerer.finish();
  if (trips == 0) fail("send of a small message");
  return (seconds + answering) / (2 * trips);
}

/// `measure` is given both ends of a new connection.
double connect_and_try(double (*measure)(int, int)) {
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
  return measure(receiver.get(), sender.get());
}

double middle_try(double (*measure)(int, int)) {
  std::array<double, kTries> seconds{};
  for (double& one : seconds) one = connect_and_try(measure);
  std::ranges::sort(seconds);
  return seconds[kTries / 2];
}

}  // namespace

SocketCost measure_socket_cost() {
  return {.seconds_per_byte = middle_try(one_try_of_bytes) / static_cast<double>(kBytes),
          .seconds_per_message = middle_try(one_try_of_messages)};
}

}  // namespace thinwire

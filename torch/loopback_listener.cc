#include "torch/loopback_listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace thinwire {
namespace {

/// The port at which the descriptor listens; nothing when it does not.
std::optional<int> listens_at(int descriptor) {
  int listening = 0;
  socklen_t length = sizeof listening;
  if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || listening == 0)
    return std::nullopt;
  sockaddr_storage own{};
  length = sizeof own;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) != 0) return std::nullopt;
  if (own.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(own).sin_port);
  if (own.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(own).sin6_port);
  return std::nullopt;
}

}  // namespace

bool restrict_to_loopback(int port) {
  bool found = false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename().string();
    int descriptor = -1;
    if (std::from_chars(name.data(), name.data() + name.size(), descriptor).ec != std::errc()) continue;
    if (listens_at(descriptor) != port) continue;
    constexpr char kDevice[] = "lo";
    if (setsockopt(descriptor, SOL_SOCKET, SO_BINDTODEVICE, kDevice, sizeof kDevice) != 0) return false;
    found = true;
  }
  return found;
}

}  // namespace thinwire

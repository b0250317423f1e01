#include "comm/tcp_links.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "core/hashes.h"

#ifdef __linux__
#include <arpa/inet.h>
#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#endif

namespace thinwire {
namespace {

/// Of a connection in describe(), in digits: the same at both ends.
constexpr std::size_t kTokenDigits = 16;

#ifdef __linux__
/// Intervals after which a first probe without an answer is late.
constexpr double kLateProbe = 1.5;

/// Of tcp_info's states; <netinet/tcp.h>, which names it, does not go with <linux/tcp.h>.
constexpr std::uint8_t kEstablished = 1;

/// "10.0.0.1:80"; nothing for what is no address of the internet.
std::string name_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  std::uint16_t port = 0;
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
    port = ntohs(four.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    // One end of a connection may see the other's IPv4 address as one of IPv6.
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&six.sin6_addr);
    inet_ntop(mapped ? AF_INET : AF_INET6, six.sin6_addr.s6_addr + (mapped ? 12 : 0), text, sizeof text);
    port = ntohs(six.sin6_port);
  } else {
    return {};
  }
  return std::string(text) + ":" + std::to_string(port);
}

/// "local>remote"; nothing when the descriptor is no connected TCP socket.
std::string socket_name(int descriptor) {
  int protocol = 0;
  socklen_t length = sizeof protocol;
  if (getsockopt(descriptor, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0 || protocol != IPPROTO_TCP)
    return {};
  sockaddr_storage local{};
  sockaddr_storage remote{};
  length = sizeof local;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &length) != 0) return {};
  length = sizeof remote;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&remote), &length) != 0) return {};
  const std::string from = name_of(local);
  const std::string to = name_of(remote);
  return from.empty() || to.empty() ? std::string() : from + ">" + to;
}

bool has_unread_bytes(int descriptor) {
  int bytes = 0;
  return ioctl(descriptor, FIONREAD, &bytes) == 0 && bytes > 0;
}

std::vector<int> open_descriptors() {
  std::vector<int> descriptors;
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return descriptors;
  while (const dirent* entry = readdir(folder)) {
    char* end = nullptr;
    const long number = std::strtol(entry->d_name, &end, 10);
    if (end != entry->d_name && *end == '\0') descriptors.push_back(static_cast<int>(number));
  }
  closedir(folder);
  return descriptors;
}
#else
std::string socket_name(int) {
  return {};
}
std::vector<int> open_descriptors() {
  return {};
}
#endif

std::string remote_of(const std::string& name) {
  return name.substr(name.find('>') + 1);
}

std::string token_of(const std::string& name) {
  const std::string turned = remote_of(name) + ">" + name.substr(0, name.find('>'));
  const std::uint64_t hash = content_hash(as_bytes(Span<const char>(std::min(name, turned))), 0);
  std::string digits(kTokenDigits, '0');
  for (std::size_t i = 0; i < kTokenDigits; ++i) digits[i] = "0123456789abcdef"[hash >> (4 * i) & 15];
  return digits;
}

}  // namespace

void survive_broken_connections() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) != 0) return;
  const bool ends_the_process = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL;
  if (ends_the_process) signal(SIGPIPE, SIG_IGN);
}

std::vector<std::string> open_tcp_sockets() {
  std::vector<std::string> names;
  for (const int descriptor : open_descriptors()) {
    if (auto name = socket_name(descriptor); !name.empty()) names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> tcp_sockets_since(const std::vector<std::string>& before) {
  std::vector<std::string> names = open_tcp_sockets();
  std::erase_if(names,
                [&](const std::string& name) { return std::ranges::find(before, name) != before.end(); });
  return names;
}

TcpLinks::TcpLinks(const std::vector<std::string>& sockets) {
  if (sockets.empty()) return;
  for (const int descriptor : open_descriptors()) {
    std::string name = socket_name(descriptor);
    if (!name.empty() && std::ranges::find(sockets, name) != sockets.end()) {
      links_.push_back({.descriptor = descriptor, .name = std::move(name)});
    }
  }
}

std::string TcpLinks::describe() const {
  std::string text;
  for (const Link& link : links_) text += token_of(link.name);
  return text;
}

void TcpLinks::identify(const std::string& owners, int ranks) {
  std::istringstream in(owners);
  std::vector<int> found;
  for (int rank = 0; found.size() < links_.size() && in >> rank;) {
    if (rank < -1 || rank >= ranks) return;
    found.push_back(rank);
  }
  if (found.size() != links_.size()) return;
  for (std::size_t i = 0; i < found.size(); ++i) links_[i].rank = found[i];
}

std::vector<std::string> link_owners_of(const std::vector<std::string>& lists) {
  // Each token stands in the lists of two ranks.
  std::unordered_map<std::string_view, std::array<int, 2>> ends;
  const auto each = [&](std::size_t rank, auto take) {
    const std::string_view list = lists[rank];
    for (std::size_t at = 0; at < list.size(); at += kTokenDigits) take(list.substr(at, kTokenDigits));
  };
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    each(rank, [&](std::string_view token) {
      const auto [known, is_new] = ends.try_emplace(token, std::array{static_cast<int>(rank), -1});
      if (!is_new) known->second[1] = static_cast<int>(rank);
    });
  }
  std::vector<std::string> owners(lists.size());
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    each(rank, [&](std::string_view token) {
      const std::array<int, 2> both = ends.at(token);
      const bool is_first = both[0] == static_cast<int>(rank);
      // Both ends in one process are no connection between ranks.
      const int other = both[0] == both[1] ? -1 : both[is_first ? 1 : 0];
      owners[rank] += std::to_string(other) + " ";
    });
  }
  return owners;
}

std::vector<int> TcpLinks::lost() const {
  std::vector<int> ranks;
  for (const Link& link : links_) {
    const bool is_any_open =
        std::ranges::any_of(links_, [&](const Link& one) { return one.rank == link.rank && one.is_open; });
    if (link.rank >= 0 && !is_any_open && std::ranges::find(ranks, link.rank) == ranks.end())
      ranks.push_back(link.rank);
  }
  return ranks;
}

#ifdef __linux__

void TcpLinks::probe(std::chrono::seconds interval, std::chrono::seconds patience) {
  interval_ = static_cast<double>(interval.count());
  for (const Link& link : links_) {
    if (socket_name(link.descriptor) != link.name) continue;
    const auto set = [&](int level, int option, long long value) {
      const int number = static_cast<int>(std::clamp(value, 1LL, 2'000'000'000LL));
      setsockopt(link.descriptor, level, option, &number, sizeof number);
    };
    // A kernel's longest interval is 32767 s. Its count of probes does not matter beside the user timeout.
    const long long seconds = std::min<long long>(interval.count(), 32'767);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, patience.count() * 1000);
    set(IPPROTO_TCP, TCP_KEEPIDLE, seconds);
    set(IPPROTO_TCP, TCP_KEEPINTVL, seconds);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
  }
}

std::vector<LinkState> TcpLinks::look() {
  std::vector<LinkState> states;
  for (Link& link : links_) {
    link.is_open = false;
    // A closed one's descriptor may belong to another socket by now.
    if (socket_name(link.descriptor) != link.name) continue;
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(link.descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    // Else closed by the other end, and not yet by this one.
    if (info.tcpi_state != kEstablished && !has_unread_bytes(link.descriptor)) continue;
    link.is_open = true;
    LinkState state;
    state.rank = link.rank;
    state.remote = remote_of(link.name);
    // Bytes behind a lost segment count in neither sum before that one comes, but their segments do.
    state.moved =
        info.tcpi_bytes_acked + info.tcpi_bytes_received + info.tcpi_data_segs_in + info.tcpi_delivered;
    state.tries = std::uint32_t{info.tcpi_retransmits} + info.tcpi_probes;
    // Data may come on a path of the kernel that does not look at acknowledgements.
    state.since_answer = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv) / 1000.0;
    const bool probe_is_late = info.tcpi_probes >= 1 && state.since_answer >= kLateProbe * interval_;
    state.unanswered = info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2 || probe_is_late;
    states.push_back(std::move(state));
  }
  return states;
}

#else

void TcpLinks::probe(std::chrono::seconds, std::chrono::seconds) {}

std::vector<LinkState> TcpLinks::look() {
  return {};
}

#endif

}  // namespace thinwire

// What ranks write of their connections, and what rank 0 makes of it, both any text: each connection is of
// two ranks of this world, or of nobody.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "comm/tcp_links.h"
#include "fuzz/input.h"

namespace {

/// Both ends of a connection of this process with itself, which stays open.
std::vector<std::string> connect_to_self() {
  using thinwire::fuzz::require;
  const std::vector<std::string> before = thinwire::open_tcp_sockets();
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  require(bind(listener, any, length) == 0 && listen(listener, 1) == 0);
  require(getsockname(listener, any, &length) == 0);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  require(connect(client, any, length) == 0 && accept(listener, nullptr, nullptr) >= 0);
  close(listener);
  return thinwire::tcp_sockets_since(before);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using thinwire::fuzz::require;
  static const std::vector<std::string> sockets = connect_to_self();
  thinwire::fuzz::Input input(data, size);
  const int world = 1 + input.take<std::uint8_t>() % 16;
  const std::string text = input.rest();

  std::vector<std::string> lists(1);
  for (const char c : text) {
    if (c != '\n') {
      lists.back() += c;
    } else if (lists.size() < static_cast<std::size_t>(world)) {
      lists.emplace_back();
    }
  }
  lists.resize(static_cast<std::size_t>(world));
  const std::vector<std::string> owners = thinwire::link_owners_of(lists);
  require(owners.size() == lists.size());

  for (const std::string& one : {text, owners.front()}) {
    thinwire::TcpLinks links(sockets);
    links.identify(one, world);
    for (const auto& link : links.look()) require(link.rank >= -1 && link.rank < world);
    for (const int rank : links.lost()) require(rank >= 0 && rank < world);
  }
  return 0;
}

#include "comm/tcp_links.h"

#include <gtest/gtest.h>

#ifdef __linux__

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/memory_store.h"

namespace thinwire {
namespace {

/// A connection over loopback; both ends are this process's.
struct Connection {
  Connection() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(listener, 1), 0);
    EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
    near = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(near, reinterpret_cast<sockaddr*>(&address), length), 0);
    far = accept(listener, nullptr, nullptr);
    EXPECT_GE(far, 0);
    close(listener);
  }
  ~Connection() {
    close(near);
    close(far);
  }
  void send_bytes(std::size_t count) const {
    std::vector<char> bytes(count);
    EXPECT_EQ(write(near, bytes.data(), count), static_cast<ssize_t>(count));
    EXPECT_EQ(recv(far, bytes.data(), count, MSG_WAITALL), static_cast<ssize_t>(count));
  }
  /// As its socket's name begins.
  std::string near_name() const {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    EXPECT_EQ(getsockname(near, reinterpret_cast<sockaddr*>(&address), &length), 0);
    return "127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + ">";
  }
  int near = -1;
  int far = -1;
};

/// "a>b" of a pair whose ends are both in `names`.
std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TcpLinks, SeesWhatWasOpenedMeanwhile) {
  const Connection earlier;
  const auto before = open_tcp_sockets();
  const Connection connection;
  const auto names = sorted(tcp_sockets_since(before));
  ASSERT_EQ(names.size(), 2u);  // both ends
  const auto arrow = names[0].find('>');
  EXPECT_EQ(names[1], names[0].substr(arrow + 1) + ">" + names[0].substr(0, arrow));
  EXPECT_TRUE(names[0].starts_with("127.0.0.1:")) << names[0];
}

TEST(TcpLinks, CountsBytesThatMove) {
  const auto before = open_tcp_sockets();
  const Connection connection;
  TcpLinks links(tcp_sockets_since(before));
  const auto moved = [&] {
    std::uint64_t sum = 0;
    for (const LinkState& state : links.look()) sum += state.moved;
    return sum;
  };
  const auto at_first = moved();
  EXPECT_EQ(moved(), at_first);
  connection.send_bytes(1000);
  EXPECT_GE(moved(), at_first + 1000);
  for (const LinkState& state : links.look()) {
    EXPECT_FALSE(state.unanswered);
    EXPECT_EQ(state.rank, -1);
  }
}

TEST(TcpLinks, DataAndAcknowledgementsAreAnAnswer) {
  const auto before = open_tcp_sockets();
  const Connection connection;
  const auto longest_silence = [&] {  // of both ends; one of them only receives
    TcpLinks links(tcp_sockets_since(before));
    double longest = 0;
    for (const LinkState& state : links.look()) longest = std::max(longest, state.since_answer);
    return longest;
  };
  // The kernel's fast path begins after the first segments.
  for (int i = 0; i < 20; ++i) connection.send_bytes(1000);
  while (longest_silence() < 0.5) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  // Both ends have now heard of each other, unless this process was stopped for as long.
  EXPECT_TRUE(testing::eventually([&] {
    connection.send_bytes(1000);
    return longest_silence() < 0.25;
  }));
}

TEST(TcpLinks, RecognisesTheOtherEndByWhatItSays) {
  const auto before = open_tcp_sockets();
  const Connection connection;
  const auto names = tcp_sockets_since(before);
  ASSERT_EQ(names.size(), 2u);
  TcpLinks near({names[0]});
  const TcpLinks far({names[1]});
  for (const char* text : {"", "3", "-2", "2000000000000", "nobody", "0 0 0 0 3"}) {
    near.identify(text, 3);
    ASSERT_EQ(near.look().size(), 1u);
    EXPECT_LT(near.look()[0].rank, 1) << text;
  }
  // Rank 1 has nothing to say of it; what rank 3 says is cut off.
  const std::string other = "0123456789abcdef";
  const auto owners = link_owners_of({near.describe(), "", other + far.describe(), other.substr(7)});
  ASSERT_EQ(owners.size(), 4u);
  EXPECT_EQ(owners[2], "-1 0 ");
  near.identify(owners[0], 4);
  EXPECT_EQ(near.look()[0].rank, 2);
  // Of a list that was written twice.
  near.identify(link_owners_of({near.describe() + near.describe()})[0], 4);
  EXPECT_EQ(near.look()[0].rank, -1);
}

TEST(TcpLinks, ForgetsAConnectionThatWasClosed) {
  const auto before = open_tcp_sockets();
  std::optional<Connection> connection(std::in_place);
  TcpLinks links(tcp_sockets_since(before));
  links.probe(std::chrono::seconds(1), std::chrono::seconds(10));
  EXPECT_EQ(links.look().size(), 2u);
  connection.reset();
  const Connection other;  // with the same descriptors
  EXPECT_TRUE(links.look().empty());
  links.probe(std::chrono::seconds(1), std::chrono::seconds(10));
}

TEST(TcpLinks, ForgetsAConnectionThatTheOtherEndHasClosed) {
  const auto before = open_tcp_sockets();
  Connection connection;
  TcpLinks links(tcp_sockets_since(before));
  close(std::exchange(connection.far, -1));
  EXPECT_TRUE(links.look().empty());
}

TEST(TcpLinks, ARankIsLostOnceWhatItSentWasReadAndItsConnectionIsClosed) {
  const auto before = open_tcp_sockets();
  Connection connection;
  auto names = tcp_sockets_since(before);
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(connection.near_name()); });
  TcpLinks links(names);
  links.identify("3", 4);
  EXPECT_EQ(links.look().size(), 1u);
  EXPECT_TRUE(links.lost().empty());
  ASSERT_EQ(write(connection.far, "1", 1), 1);
  close(std::exchange(connection.far, -1));
  EXPECT_EQ(links.look().size(), 1u);
  EXPECT_TRUE(links.lost().empty());
  char byte = 0;
  ASSERT_EQ(read(connection.near, &byte, 1), 1);
  EXPECT_TRUE(links.look().empty());
  EXPECT_EQ(links.lost(), std::vector<int>{3});
}

TEST(TcpLinks, OfAConnectionThatNobodyHasNamedNoRankIsLost) {
  const auto before = open_tcp_sockets();
  Connection connection;
  TcpLinks links(tcp_sockets_since(before));
  close(std::exchange(connection.far, -1));
  EXPECT_TRUE(links.look().empty());
  EXPECT_TRUE(links.lost().empty());
}

}  // namespace
}  // namespace thinwire

#endif  // __linux__

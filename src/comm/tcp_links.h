#pragma once
// What the kernel knows of this process's TCP connections: whether bytes move, and whether the other end's
// machine answers. It tells a slow or interrupted network from a rank that has nothing to say. Linux only;
// elsewhere there are no sockets to see, and a deadline counts silence alone.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace thinwire {

/// Connected TCP sockets of this process as "local>remote", such as "10.0.0.1:4711>10.0.0.2:29500". The
/// connection's other end writes it the other way round. Sockets that came between two calls are those that
/// were opened meanwhile.
std::vector<std::string> open_tcp_sockets();

/// open_tcp_sockets() without those of `before`.
std::vector<std::string> tcp_sockets_since(const std::vector<std::string>& before);

/// A write to a connection whose other end is gone becomes an error of that write from now on. The default of
/// SIGPIPE would end this process without a word, and Gloo writes without MSG_NOSIGNAL. A handler that the
/// process has installed itself stays. For the whole process; may be called again.
void survive_broken_connections();

struct LinkState {
  int rank = -1;            ///< At the other end; -1: not known yet.
  std::string remote;       ///< Its address and port.
  std::uint64_t moved = 0;  ///< Payload bytes that came or were acknowledged since the connection exists.
  /// The last two segments or probes that were sent have had no answer, or the last probe for long.
  bool unanswered = false;
  std::uint32_t tries = 0;  ///< Segments and probes sent since the last answer, beyond the first.
  double since_answer = 0;  ///< Seconds since anything came from the other end's kernel.
};

/// lists: what every rank's Links::describe() says, or any text. For each rank: who is at the other ends of
/// its connections, for its Links::identify(). Only connections of two ranks are known.
std::vector<std::string> link_owners_of(const std::vector<std::string>& lists);

/// The connections of one communicator. One thread at a time.
class Links {
 public:
  virtual ~Links() = default;
  /// What link_owners_of() needs of this rank.
  virtual std::string describe() const = 0;
  /// owners: what link_owners_of() says of this rank, of `ranks` in all. May be any text.
  virtual void identify(const std::string& owners, int ranks) = 0;
  /// Has idle connections ask their other ends whether they are still there, every `interval`, and gives them
  /// up after `patience` without any answer.
  virtual void probe(std::chrono::seconds interval, std::chrono::seconds patience) = 0;
  /// Of those that are still open at both ends. One that the other end has closed counts as open until this
  /// process has read what came over it.
  virtual std::vector<LinkState> look() = 0;
  /// Ranks whose connections were all closed at the last look(), of those that identify() has named.
  virtual std::vector<int> lost() const = 0;
};

class TcpLinks final : public Links {
 public:
  /// sockets: as open_tcp_sockets() names them. Those that are gone are left out.
  explicit TcpLinks(const std::vector<std::string>& sockets);

  bool empty() const { return links_.empty(); }
  std::string describe() const override;
  void identify(const std::string& owners, int ranks) override;
  void probe(std::chrono::seconds interval, std::chrono::seconds patience) override;
  std::vector<LinkState> look() override;
  std::vector<int> lost() const override;

 private:
  struct Link {
    int descriptor;
    std::string name;
    int rank = -1;
    bool is_open = true;  ///< At the last look.
  };
  std::vector<Link> links_;
  double interval_ = 0;  ///< Of probes, in seconds; 0: there are none.
};

}  // namespace thinwire

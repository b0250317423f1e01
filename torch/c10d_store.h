#pragma once
// The rendezvous store that a c10d job has anyway, seen as the board on which failing ranks leave their
// notes. What c10d says of a store that is gone names a socket, and nobody: here it becomes words.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "comm/fault_board.h"
#include "torch/c10d_compat.h"

namespace thinwire {

/// "rank 0, whose process serves it,", or the agent where no rank does (-1).
std::string store_server(int store_host);

/// A client of the same store with a connection of its own where it has connections, once it has set this key
/// and been answered; else the store itself. `limit` is the client's own limit, too.
/// Throws std::runtime_error where that fails or takes longer.
/// A new client of c10d's waits for its first answer without a limit. So a thread asks, which is left behind
/// where no answer comes.
c10::intrusive_ptr<::c10d::Store> answered_client(c10::intrusive_ptr<::c10d::Store> store,
                                                  const std::string& key,
                                                  std::chrono::duration<double> limit);

class C10dFaultStore final : public FaultBoard::Store {
 public:
  /// store_host: the rank whose process serves the store, -1: none of them.
  C10dFaultStore(c10::intrusive_ptr<::c10d::Store> store, int store_host)
      : store_(std::move(store)), store_host_(store_host) {}

  // Each throws std::runtime_error that says whose process does not answer. Once the connection is closed the
  // store is not asked again: c10d would write a page of frames to stderr each time. Nor after an answer that
  // did not come in time: a client takes it for the answer to its next request.
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::string set_if_absent(const std::string& key, const std::string& value) override;
  std::int64_t add(const std::string& key, std::int64_t number) override;

 private:
  template <class Run>
  auto ask(Run run);

  c10::intrusive_ptr<::c10d::Store> store_;
  int store_host_;
  std::mutex mutex_;
  std::string end_;  ///< Why the store cannot be asked any more; empty while it can.
};

}  // namespace thinwire

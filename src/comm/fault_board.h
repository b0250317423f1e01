#pragma once
// Finds out which rank is dead when a communicator gives up. A rank only knows whom it waits for, and that
// one may be waiting itself: with one frozen rank in a ring, every other rank sees its live neighbour time
// out. So each rank writes whom it awaits into a store that all can reach. Then it follows the chain to a
// rank that is awaited and silent.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/fault_note.h"

namespace thinwire {

/// The end of an inquiry.
struct Verdict {
  std::vector<int> culprits;  ///< Empty: every awaited rank is alive, so they wait for each other.
  std::string reason;         ///< Half a sentence for the error message.
};

/// One rank's view of the board. Its methods are called by the thread that drives the communicator. Store
/// operations may block for ever when the store's host is frozen, so they run on a thread of the board's own,
/// which is given up rather than waited for.
class FaultBoard {
 public:
  using Seconds = std::chrono::duration<double>;

  /// The operations of a rendezvous store that are needed. Each may throw or block when its host is gone.
  class Store {
   public:
    virtual ~Store() = default;
    virtual void set(const std::string& key, const std::string& value) = 0;
    /// Nothing when nobody has set the key; does not wait for it.
    virtual std::optional<std::string> get(const std::string& key) = 0;
    /// Sets the key unless somebody has, in one operation of the store; returns what stands afterwards.
    virtual std::string set_if_absent(const std::string& key, const std::string& value) = 0;
  };

  struct Options {
    int rank = 0;
    int size = 1;
    int store_host = 0;  ///< The rank whose process serves the store; -1: none of them.
    std::string prefix = "thinwire/fault/";
  };

  FaultBoard(std::shared_ptr<Store> store, Options options);
  /// A store operation that does not come back soon is left to its thread.
  ~FaultBoard();
  FaultBoard(const FaultBoard&) = delete;
  FaultBoard& operator=(const FaultBoard&) = delete;

  /// Around every blocking call, so that a rank which waits for longer than a third of `grace` says so and is
  /// not taken for dead by one whose deadline ends earlier. `peer` -1: unknown. Costs two atomic stores; a
  /// wait that ends sooner causes no traffic.
  void wait_begins(int peer, Seconds grace) noexcept;
  void wait_ends() noexcept;

  /// This rank has failed while awaiting these ranks (empty: unknown). Returns at once.
  void report(std::vector<int> awaited, Seconds grace);

  /// After report(). Whom this rank, and all others that ask, should blame. Takes `grace` at most when the
  /// store answers, another `grace` when it does not (then its host is the culprit). The store's host then
  /// stays for up to 2 * grace until the others have their answers too.
  Verdict judge();

  /// At an orderly end: returns when every rank has called it, or when `patience` is over. Sockets closed
  /// earlier would cut off ranks that are still reading their last message.
  void leave(Seconds patience);

 private:
  struct Shared;
  struct Inquiry;
  void post(std::function<void()> job);
  bool await_store(const std::atomic<bool>& done, Seconds silence, Seconds in_all);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
  std::vector<int> awaited_;
  Seconds grace_{1.0};
};

}  // namespace thinwire

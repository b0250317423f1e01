#pragma once
// Ends waits that nothing will end, and no others. A thread looks at a wait that lasts for longer than a
// second or so, and tells apart
//   - a connection over which bytes still move, or others' bytes: the wait goes on, up to the step's limit;
//   - a connection whose other end does not answer: it has until the deadline, and as long again as TCP may
//     pause between two retransmissions, but at most 4 s;
//   - a connection that the other end has closed, and nothing else that moves: the fault board asks;
//   - another rank that has given up: the wait ends, and the fault board knows whom that one blames;
//   - a rank whose machine answers and whose process does not beat: it is frozen;
//   - silence although everybody answers: a rank is busy by itself or makes other calls. The fault board
//     asks.

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "comm/fault_board.h"
#include "comm/tcp_links.h"

namespace thinwire {

/// Why a wait was ended.
struct Ending {
  std::string what;         ///< Half a sentence: what this rank has seen.
  Verdict evidence;         ///< What others are told; where it says nothing, the board has to ask.
  bool is_certain = false;  ///< There is nobody to blame and nothing to ask.
};

class WaitWatch {
 public:
  using Seconds = std::chrono::duration<double>;

  struct Limits {
    Seconds deadline;  ///< Without any byte that moves.
    Seconds silence;   ///< Without a beat of an awaited process.
    Seconds step;      ///< Of all waits of one step together.
  };

  /// A blocking call that another thread can end.
  class Call {
   public:
    virtual ~Call() = default;
    /// Makes the call return soon, from another thread, while it lasts or just before it begins. Must not
    /// block.
    virtual void end() noexcept = 0;
  };

  struct Options {
    int rank = 0;
    int size = 1;
    int store_host = 0;  ///< -1: no rank serves the store.
    Seconds deadline;    ///< Until the first wait says another one.
  };

  /// board: outlives the watch. links: null where nothing is known of connections.
  WaitWatch(FaultBoard& board, std::unique_ptr<Links> links, Options options);

  /// Around every blocking call of the thread that drives the communicator. peer -1: a collective of the
  /// engine, which awaits both neighbours. call: ended when there is no hope; null: the caller asks ended()
  /// now and then, at least every look_period(). A wait that is over before the next look costs two locks and
  /// two looks at a clock.
  void begins(int peer, const Limits& limits, std::uint64_t step, Call* call) noexcept;
  /// Nothing, or why the watch has ended the wait.
  std::optional<Ending> ends();
  bool ended() const;

  static Seconds look_period(Seconds deadline);
  /// Both neighbours in the ring, each once.
  std::vector<int> neighbours() const;

 private:
  using Clock = std::chrono::steady_clock;

  void run(const std::stop_token& stop);
  void probe();
  void forget();
  void look(double elapsed);
  std::vector<LinkState> look_at_links(double elapsed);
  bool has_moved(const std::vector<LinkState>& links);
  void something_moves();
  void note_lost_peers(const std::vector<int>& left, double elapsed);
  void note_dead_links(const std::vector<LinkState>& links, double elapsed);
  std::optional<Ending> judge();
  std::optional<Ending> dead_links_ending() const;

  FaultBoard& board_;
  std::unique_ptr<Links> links_;
  const Options options_;

  mutable std::mutex mutex_;
  std::condition_variable_any end_;
  std::uint64_t number_ = 0;  ///< Of the wait; even: there is none.
  int peer_ = -1;
  Limits limits_{options_.deadline, options_.deadline, options_.deadline};
  Call* call_ = nullptr;
  Clock::time_point began_{};
  std::uint64_t step_ = 0;
  Seconds waited_{0};  ///< In earlier waits of this step.
  std::optional<Ending> ending_;

  // Of the watch's thread alone.
  struct LongWait {
    LongWait();
    std::vector<int> peers;
    Limits limits{Seconds(1), Seconds(1), Seconds(1)};
    double waited = 0;   ///< Of the whole step.
    Silence progress;    ///< Since anything has moved, outages excused.
    double unmoved = 0;  ///< Since anything has moved on this rank's connections.
    bool in_trouble = false;
    std::vector<std::string> moving;  ///< Connections on which bytes moved at the last look.
    bool others_gave_up = false;
    std::uint64_t movements = 0;
    std::uint64_t store_answers = 0;
    Silence store;
    double store_unanswered = 0;  ///< Seconds, outages included.
    std::vector<int> lost;        ///< Of the awaited, those that have closed their connections.
    double lost_for = 0;          ///< Seconds since then without a byte that moves.
    std::vector<LinkState> dead;
    bool all_dead = false;  ///< Or no less overdue.
  };
  std::optional<LongWait> long_wait_;
  struct Overdue {
    std::string remote;
    std::uint32_t tries;     ///< When the deadline passed.
    double since_retry = 0;  ///< Seconds that an answer to one more has had.
  };
  std::vector<Overdue> overdue_;                               ///< Connections whose deadline has passed.
  std::optional<std::map<std::string, std::uint64_t>> moved_;  ///< Bytes, by the connection's other end.
  bool settled_ = false;  ///< Whose connections are whose is known by now, or will not be.
  bool probing_ = false;

  std::jthread thread_;  // last: it uses the others
};

}  // namespace thinwire

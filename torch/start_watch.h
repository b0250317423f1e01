#pragma once
// While ranks open their connections to each other: who is missing when that fails. c10d's own errors name
// a key of the store or a socket, and nobody.

#include <chrono>
#include <memory>
#include <string>

#include "torch/c10d_compat.h"

namespace thinwire {

class FaultBoard;

/// Gloo's own limit on the steps of a collective, once a group is connected: only the communicator's deadline
/// is to end a wait.
constexpr std::chrono::hours kGlooTimeout{24};

class StartWatch {
 public:
  /// One of all `size` ranks that open connections together. store: a client with a connection of its own,
  /// since waiting on it must not hold up this one; keys under its prefix are of this start alone.
  /// store_host: the rank whose process serves the store, -1: none of them. Not collective.
  StartWatch(c10::intrusive_ptr<::c10d::Store> store, int rank, int size, int store_host,
             std::chrono::duration<double> deadline);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  /// Around every step that waits for other ranks, so that these learn that this rank is alive meanwhile.
  void begins();
  void ends();

  /// After a step has failed, once. Tells the other ranks of it and finds out with them who is to blame: half
  /// a sentence, such as "rank 2 is gone or silent (it said nothing for another 2.5 s)". Takes a few seconds.
  /// The store's host takes until all others that live have asked, since the store ends with it: the deadline
  /// and a few seconds at most.
  std::string blame();

 private:
  const std::chrono::duration<double> deadline_;
  std::unique_ptr<FaultBoard> board_;
};

/// Gives a Gloo group kGlooTimeout, which was opened with a shorter limit so that opening it ends. False
/// where this build does not reach into the group; its limit is then what it was.
bool lengthen_gloo_timeout(c10d_compat::Group& group);

}  // namespace thinwire

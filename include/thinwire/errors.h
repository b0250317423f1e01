#pragma once
// What can go wrong between ranks. Misuse by the caller is std::invalid_argument, with the value and the
// remedy; the two types here are for what another rank, or the network, did.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace thinwire {

/// Bytes from another rank that do not parse: a length, index, count or type that cannot be. Nothing of the
/// frame has been used.
class CorruptFrame : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A peer is gone or was silent for longer than the deadline. The communicator that threw is unusable
/// afterwards: destroy it; no residual or velocity of the failed step has been written.
class CommError : public std::runtime_error {
 public:
  CommError(int rank, int peer, std::uint32_t bucket, std::uint64_t step, const std::string& what);

  /// The rank that reports.
  int rank() const { return rank_; }
  /// The rank that is dead or silent; -1 when it cannot be told.
  int peer() const { return peer_; }
  std::uint32_t bucket() const { return bucket_; }
  std::uint64_t step() const { return step_; }

 private:
  int rank_;
  int peer_;
  std::uint32_t bucket_;
  std::uint64_t step_;
};

}  // namespace thinwire

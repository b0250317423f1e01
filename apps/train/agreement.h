#pragma once
// What ranks tell each other beside gradients: counts, costs, and whether they still hold the same model.

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "apps/train/models/models.h"
#include "thinwire/communicator.h"

namespace thinwire::train {

/// Every rank's value in rank order, the same on all ranks, with checksums. kind: what it is, for messages.
/// Collective.
template <class T>
requires std::is_trivially_copyable_v<T> std::vector<T> gather(Communicator& communicator, const T& mine,
                                                               std::string_view kind = "numbers") {
  std::vector<T> all(static_cast<std::size_t>(communicator.size()));
  Exchange exchange(communicator, {.elements = sizeof(T), .kind = kind});
  communicator.all_gather(as_bytes(Span<const T>(&mine, 1)), as_writable_bytes(Span<T>(all)));
  exchange.finish();
  return all;
}

/// Gives all ranks rank 0's parameters and buffers. Collective.
void broadcast_model(Model& model, Communicator& communicator);

/// Replaces floating-point buffers (BatchNorm's running statistics, which each rank gathers from its own
/// images) by their mean over ranks, bit-identical on all. They are few, so their sum always goes by the ring
/// with checksums. Collective.
void average_buffers(Model& model, Communicator& communicator);

/// 64-bit hash of the bytes of all parameters and buffers.
std::uint64_t hash_model(const Model& model);

/// Collective. Returns rank 0's hash; throws std::runtime_error on every rank, naming the ranks whose model
/// differs from rank 0's, with `when` saying at which point.
std::uint64_t require_agreement(const Model& model, Communicator& communicator, const std::string& when);

/// Compares hashes of all parameters' bits and of `step`. Collective. Throws std::runtime_error on every
/// rank, naming the ranks that differ from most others.
void require_same_parameters(const Model& model, std::uint64_t step, Communicator& communicator);

}  // namespace thinwire::train

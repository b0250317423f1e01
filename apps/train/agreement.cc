#include "apps/train/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/hashes.h"
#include "session/configuration.h"

namespace thinwire::train {

namespace {

Span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

void broadcast_model(Model& model, Communicator& communicator) {
  Exchange exchange(communicator, {.kind = "model"});
  for (const auto& parameter : model.parameters()) communicator.broadcast(bytes_of(parameter), 0);
  for (const auto& buffer : model.buffers()) communicator.broadcast(bytes_of(buffer), 0);
  exchange.finish();
}

void average_buffers(Model& model, Communicator& communicator) {
  std::vector<torch::Tensor> statistics;
  for (const auto& buffer : model.buffers()) {
    if (buffer.scalar_type() == torch::kFloat32) statistics.push_back(buffer);
  }
  if (statistics.empty()) return;
  std::vector<torch::Tensor> flattened;
  for (const auto& tensor : statistics) flattened.push_back(tensor.flatten());
  torch::Tensor flat = torch::cat(flattened);
  const Span<float> values(flat.data_ptr<float>(), static_cast<std::size_t>(flat.numel()));
  Exchange exchange(communicator, {.elements = values.size(), .kind = "buffers"});
  communicator.Communicator::all_reduce_sum(values);  // not an engine's own, which may have no checksums
  exchange.finish();
  flat.div_(communicator.size());
  std::int64_t offset = 0;
  for (auto& tensor : statistics) {
    tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

std::uint64_t hash_model(const Model& model) {
  // FNV-1a over 32-bit words, with a fold of the high half so that every bit reaches the low ones.
  std::uint64_t hash = 0xCBF29CE484222325u;
  const auto absorb = [&hash](const torch::Tensor& tensor) {
    const Span<std::byte> bytes = bytes_of(tensor);
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint32_t)) {
      std::uint32_t word = 0;
      std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
      hash = (hash ^ word) * 0x100000001B3u;
      hash ^= hash >> 32;
    }
  };
  for (const auto& parameter : model.parameters()) absorb(parameter);
  for (const auto& buffer : model.buffers()) absorb(buffer);
  return hash;
}

std::uint64_t require_agreement(const Model& model, Communicator& communicator, const std::string& when) {
  const std::vector<std::uint64_t> hashes = gather(communicator, hash_model(model), "hashes");
  if (const auto difference = replica_difference(hashes)) {
    throw std::runtime_error(fmt::format(
        "{}: {}; check that all run the same program on the same kind of machine", when, *difference));
  }
  return hashes[0];
}

void require_same_parameters(const Model& model, std::uint64_t step, Communicator& communicator) {
  std::uint64_t hash = step;
  for (const auto& parameter : model.parameters()) hash = content_hash(bytes_of(parameter), hash);
  const std::vector<std::uint64_t> hashes = gather(communicator, hash, "hashes");
  if (const auto difference = replica_difference(hashes)) {
    throw std::runtime_error(
        fmt::format("replicas differ before step {}: {}; resume from a checkpoint", step, *difference));
  }
}

}  // namespace thinwire::train

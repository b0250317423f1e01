#include "thinwire/synchronizer.h"

#include <limits>
#include <stdexcept>

#include "core/partition.h"

namespace thinwire {

std::uint64_t Workload::ring_sent_bytes(std::uint64_t n, std::size_t element_bytes) const {
  if (world_size == 1) return 0;
  return ring_sent_elements(n, static_cast<std::size_t>(world_size), static_cast<std::size_t>(rank)) *
         element_bytes;
}

bool Synchronizer::freezes_variance(std::uint64_t) const {
  return false;
}

void Synchronizer::require_world(int) const {}

bool Synchronizer::sum_in_type(BucketId, Span<const float> residual, Step&,
                               const std::function<void()>& sum) {
  if (!is_plain_sum() || !residual.empty()) return false;
  sum();
  return true;
}

RowSparse Synchronizer::synchronize_rows(BucketId, const RowSparse&, Span<float>, Step&) {
  throw std::logic_error("this system takes no rows: densify them first");
}

std::vector<Change> Synchronizer::changes() const {
  return {};
}
std::string Synchronizer::explain() const {
  return to_text(changes());
}

std::vector<float> Synchronizer::decision() const {
  return {};
}
void Synchronizer::follow(Span<const float>) {}

void Synchronizer::save(BucketWriter&) const {}
void Synchronizer::load(const BucketReader&) {}

void Synchronizer::keep_step(BucketId) {}
void Synchronizer::undo_step(BucketId) {}
void Synchronizer::undo_step(BucketId, std::size_t, std::size_t) {}

void Synchronizer::require_matching(Span<float> gradient, Span<float> residual) {
  if (!residual.empty() && residual.size() != gradient.size()) {
    throw std::invalid_argument("residual has " + std::to_string(residual.size()) +
                                " elements, the gradient " + std::to_string(gradient.size()) +
                                ": pass one of the same size, or an empty one to keep nothing");
  }
  if (gradient.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("a bucket of " + std::to_string(gradient.size()) +
                                " elements: indices are 32 bits, split it into buckets below 2^32 elements");
  }
}

}  // namespace thinwire

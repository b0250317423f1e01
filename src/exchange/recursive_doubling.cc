#include "exchange/recursive_doubling.h"

#include <algorithm>
#include <cmath>

#include "kernels/dense/dense.h"
#include "kernels/rows/row_access.h"

namespace thinwire {
namespace {

class Doubling {
 public:
  Doubling(BucketId bucket, const RowSparse& own, bool finite, Step& step)
      : step_(step),
        rows_(own),
        messages_(bucket, kDoublingTag, own.width, step),
        power_(largest_power_of_two(messages_.world())) {
    messages_.note(finite);
  }

  RowMean run() {
    step_.report.formula_bytes = 0;
    if (messages_.self() >= power_) {
      run_folded(messages_.self() - power_);
    } else {
      run_core(messages_.self() + power_);
    }
    messages_.finish();
    step_.report.finite = messages_.finite();
    return {rows_, messages_.finite(), true};
  }

 private:
  /// A rank beyond the power of two hands its rows to its partner and takes the result from it.
  void run_folded(std::size_t partner) {
    messages_.expect(partner);
    send(partner);
    const ReceivedRowList result = receive(partner);
    rows_ = {result.indices, result.values, rows_.rows, rows_.width};
  }

  void run_core(std::size_t folded) {
    const std::size_t self = messages_.self();
    const bool has_folded = folded < messages_.world();
    for (std::size_t distance = 1; distance < power_; distance *= 2) messages_.expect(self ^ distance);
    if (has_folded) {
      messages_.expect(folded);
      merge(folded);
    }
    for (std::size_t distance = 1; distance < power_; distance *= 2) {
      send(self ^ distance);
      merge(self ^ distance);
    }
    average();
    if (has_folded) send(folded);
  }

  void send(std::size_t peer) {
    const FrameContents contents = messages_.list_contents(rows_.size());
    const auto payload = messages_.list_payload(rows_);
    step_.report.formula_bytes += contents.payload_bytes;
    messages_.send(peer, messages_.seal(contents, payload), payload);
  }

  ReceivedRowList receive(std::size_t peer) {
    messages_.await_list_header(peer, rows_.rows);
    return messages_.await_list(peer, rows_.rows);
  }

  void merge(std::size_t peer) {
    const ReceivedRowList theirs = receive(peer);
    const std::size_t most = std::min(rows_.size() + theirs.indices.size(), rows_.rows);
    const auto indices = step_.scratch.take<std::uint32_t>(most);
    const auto values = step_.scratch.take<float>(most * rows_.width);
    const std::size_t merged = merge_sorted_rows(step_.executor, rows_.row_indices, rows_.values,
                                                 theirs.indices, theirs.values, rows_.width, indices, values);
    rows_ = {indices.first(merged), values.first(merged * rows_.width), rows_.rows, rows_.width};
  }

  void average() {
    step_.clock.enter(Phase::decompress);
    const auto values = step_.scratch.take<float>(rows_.values.size());
    copy(step_.executor, rows_.values, values);
    messages_.note(scale(step_.executor, values, 1.0f / static_cast<float>(messages_.world())));
    rows_.values = values;
  }

  Step& step_;
  RowSparse rows_;  // the union so far
  RowMessages messages_;
  std::size_t power_;
};

}  // namespace

RowMean recursive_doubling(BucketId bucket, const RowSparse& own, bool finite, Step& step) {
  return Doubling(bucket, own, finite, step).run();
}

std::uint64_t recursive_doubling_bytes(std::uint64_t rows, std::uint64_t union_rows, std::uint64_t world,
                                       std::uint64_t rank, std::uint64_t width) {
  if (world == 1 || rows == 0) return 0;
  const std::uint64_t power = largest_power_of_two(world);
  if (rank >= power) return row_list_bytes(rows, width);
  const double stages = std::log2(static_cast<double>(world));
  const double gamma = static_cast<double>(union_rows) / static_cast<double>(rows);
  auto bytes_of = [&](double ranks) {
    const double held = static_cast<double>(rows) * std::pow(gamma, std::log2(ranks) / stages);
    return row_list_bytes(static_cast<std::uint64_t>(std::llround(held)), width);
  };
  const double merged_ranks = static_cast<double>(world) / static_cast<double>(power);
  std::uint64_t bytes = 0;
  for (std::uint64_t ranks = 1; ranks < power; ranks *= 2)
    bytes += bytes_of(static_cast<double>(ranks) * merged_ranks);
  if (rank + power < world) bytes += row_list_bytes(union_rows, width);
  return bytes;
}

}  // namespace thinwire

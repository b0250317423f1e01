#include "exchange/recursive_doubling.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/stopwatch.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/row_merge.h"
#include "thinwire/errors.h"
#include "wire/row_payload.h"

namespace thinwire {
namespace {

constexpr Communicator::Tag kTag = 55;

class Doubling {
 public:
  Doubling(BucketId bucket, const RowSparse& own, bool finite, RowMessageStorage& storage, Step& step)
      : step_(step),
        rows_(own),
        finite_(finite),
        messages_(storage, bucket, kTag, step),
        world_(static_cast<std::size_t>(step.communicator.size())),
        self_(static_cast<std::size_t>(step.communicator.rank())),
        power_(largest_power_of_two(world_)) {}

  RowMean run() {
    step_.report.formula_bytes = 0;
    if (self_ >= power_) {
      const std::size_t partner = self_ - power_;
      messages_.expect(static_cast<int>(partner));
      send(partner);
      const ReceivedRowList result = receive(partner);
      rows_ = {result.indices, result.values, rows_.rows, rows_.width};
    } else {
      const std::size_t folded = self_ + power_;
      for (std::size_t distance = 1; distance < power_; distance *= 2) {
        messages_.expect(static_cast<int>(self_ ^ distance));
      }
      if (folded < world_) {
        messages_.expect(static_cast<int>(folded));
        merge(folded);
      }
      for (std::size_t distance = 1; distance < power_; distance *= 2) {
        send(self_ ^ distance);
        merge(self_ ^ distance);
      }
      average();
      if (folded < world_) send(folded);
    }
    messages_.finish();
    step_.report.seconds_wait += watch_.lap();
    step_.report.finite = finite_;
    return {rows_, finite_, true};
  }

 private:
  void send(std::size_t peer) {
    FrameHeader header = messages_.header();
    header.type = FrameType::row_list;
    header.flags = finite_ ? std::uint16_t{0} : FrameHeader::kNonFinite;
    header.width = static_cast<std::uint32_t>(rows_.width);
    header.count = rows_.size();
    header.payload_bytes = row_list_bytes(rows_.size(), rows_.width);
    const auto payload = step_.workspace.take<std::byte>(header.payload_bytes);
    const RowList list = row_list_in(payload, rows_.size(), rows_.width);
    copy(step_.executor, rows_.row_indices, list.indices);
    copy(step_.executor, rows_.values, list.values);
    step_.report.formula_bytes += row_list_bytes(rows_.size(), rows_.width);
    step_.report.seconds_compress += watch_.lap();
    messages_.send(static_cast<int>(peer), messages_.seal(header), payload);
  }

  ReceivedRowList receive(std::size_t peer) {
    const FrameHeader& header = messages_.await_header(static_cast<int>(peer), rows_.width, rows_.rows);
    if (header.type != FrameType::row_list) {
      throw CorruptFrame("frame of rows from rank " + std::to_string(peer) + " refused: type is " +
                         std::to_string(static_cast<int>(header.type)) + ", expected " +
                         std::to_string(static_cast<int>(FrameType::row_list)));
    }
    finite_ = finite_ && !header.non_finite();
    const auto payload = messages_.await_payload(static_cast<int>(peer));
    step_.report.seconds_wait += watch_.lap();
    return read_row_list(header, payload, rows_.rows);
  }

  void merge(std::size_t peer) {
    const ReceivedRowList theirs = receive(peer);
    const std::size_t most = std::min(rows_.size() + theirs.indices.size(), rows_.rows);
    const auto indices = step_.scratch.take<std::uint32_t>(most);
    const auto values = step_.scratch.take<float>(most * rows_.width);
    const std::size_t merged = merge_sorted_rows(step_.executor, rows_.row_indices, rows_.values,
                                                 theirs.indices, theirs.values, rows_.width, indices, values);
    rows_ = {indices.first(merged), values.first(merged * rows_.width), rows_.rows, rows_.width};
    step_.report.seconds_compress += watch_.lap();
  }

  void average() {
    const auto values = step_.scratch.take<float>(rows_.values.size());
    copy(step_.executor, rows_.values, values);
    finite_ = scale(step_.executor, values, 1.0f / static_cast<float>(world_)) && finite_;
    rows_.values = values;
    step_.report.seconds_decompress += watch_.lap();
  }

  Step& step_;
  RowSparse rows_;  // the union so far
  bool finite_;
  RowMessages messages_;
  std::size_t world_;
  std::size_t self_;
  std::size_t power_;
  Stopwatch watch_;
};

}  // namespace

RowMean recursive_doubling(BucketId bucket, const RowSparse& own, bool finite, RowMessageStorage& storage,
                           Step& step) {
  return Doubling(bucket, own, finite, storage, step).run();
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
  const double joined = static_cast<double>(world) / static_cast<double>(power);
  std::uint64_t bytes = 0;
  for (std::uint64_t ranks = 1; ranks < power; ranks *= 2)
    bytes += bytes_of(static_cast<double>(ranks) * joined);
  if (rank + power < world) bytes += row_list_bytes(union_rows, width);
  return bytes;
}

}  // namespace thinwire

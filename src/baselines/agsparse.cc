// AGsparse: every rank sends its non-zeros to every other and adds up what it gets.
//
// Source: the sparse all-reduce of PyTorch and Horovod, a baseline of Zen (section 2) and S2 Reducer.
//
//   rows --row_list to all--> union as a bitmap, sums by rank in it, in rank order, / W
//
// Bytes per rank: (W-1) * 8 nnz, rows of `width` values (W-1) * (4 + 4 width) each. They grow with W,
// whatever the ranks have in common.

#include <algorithm>

#include "baselines/baselines.h"
#include "core/stopwatch.h"
#include "exchange/sparse_synchronizer.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_merge.h"
#include "thinwire/errors.h"
#include "wire/row_payload.h"

namespace thinwire {
namespace {

constexpr Communicator::Tag kRowListTag = 60;

class AgSparse final : public SparseSynchronizer {
 public:
  std::uint64_t payload_bytes(const Workload& workload) const override {
    const Expected e = expected(workload);
    return (e.world - 1) * row_list_bytes(e.rows, e.width);
  }

 protected:
  RowMean exchange(BucketId bucket, const RowSparse& own, bool finite, Step& step) override {
    const auto world = static_cast<std::size_t>(step.communicator.size());
    const auto self = static_cast<std::size_t>(step.communicator.rank());
    StepReport& report = step.report;
    report.formula_bytes = (world - 1) * row_list_bytes(own.size(), own.width);
    Stopwatch watch;
    RowMessages messages(storage_, bucket, kRowListTag, step);
    auto for_peers = [&](auto body) {
      for (std::size_t shift = 1; shift < world; ++shift) body(static_cast<int>((self + shift) % world));
    };
    for_peers([&](int peer) { messages.expect(peer); });
    FrameHeader header = messages.header();
    header.type = FrameType::row_list;
    header.flags = finite ? std::uint16_t{0} : FrameHeader::kNonFinite;
    header.width = static_cast<std::uint32_t>(own.width);
    header.count = own.size();
    header.payload_bytes = row_list_bytes(own.size(), own.width);
    const auto payload = step.workspace.take<std::byte>(header.payload_bytes);
    const RowList list = row_list_in(payload, own.size(), own.width);
    copy(step.executor, own.row_indices, list.indices);
    copy(step.executor, own.values, list.values);
    const auto sealed = messages.seal(header);
    report.seconds_compress += watch.lap();
    for_peers([&](int peer) { messages.send(peer, sealed, payload); });
    for_peers([&](int peer) {
      const FrameHeader& arrived = messages.await_header(peer, own.width, own.rows);
      if (arrived.type != FrameType::row_list) {
        throw CorruptFrame("frame from rank " + std::to_string(peer) + " refused: it is no list of rows");
      }
      finite = finite && !arrived.non_finite();
    });

    const auto lists = step.workspace.take<ReceivedRowList>(world);
    const auto bitmap = step.scratch.take<std::uint64_t>(bitmap_words(own.rows));
    clear_bitmap(step.executor, bitmap);
    for (std::size_t rank = 0; rank < world; ++rank) {
      if (rank == self) {
        lists[rank] = {own.row_indices, own.values};
      } else {
        const int peer = static_cast<int>(rank);
        const auto arrived = messages.await_payload(peer);
        report.seconds_wait += watch.lap();
        lists[rank] = read_row_list(messages.header_of(peer), arrived, own.rows);
      }
      set_bits(step.executor, lists[rank].indices, bitmap);
      report.seconds_decompress += watch.lap();
    }
    const auto before = step.scratch.take<std::uint32_t>(bitmap.size());
    const std::size_t total = count_bits_before(step.executor, bitmap, before);
    const auto indices = step.scratch.take<std::uint32_t>(total);
    const auto sums = step.scratch.take<float>(total * own.width);
    list_bits(step.executor, bitmap, before, indices);
    fill(step.executor, sums, 0);
    for (const auto& one : lists) {
      accumulate_rows(step.executor, one.indices, one.values, own.width, bitmap, before, true, sums);
    }
    finite = scale(step.executor, sums, 1.0f / static_cast<float>(world)) && finite;
    report.finite = finite;
    report.seconds_decompress += watch.lap();
    messages.finish();
    report.seconds_wait += watch.lap();
    return {{indices, sums, own.rows, own.width}, finite, true};
  }

 private:
  RowMessageStorage storage_;
};

}  // namespace

SystemInfo agsparse_info() {
  SystemInfo info;
  info.name = "agsparse";
  info.summary = "all-gather of the non-zeros";
  info.paper = "PyTorch's and Horovod's sparse all-reduce; baseline of Zen and S2 Reducer";
  info.formula = "(W-1) * 8 nnz; rows: (W-1) * (4 + 4 width) each";
  info.lossless = true;
  info.takes_rows = true;
  info.make = [](const Options&, Inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<AgSparse>();
  };
  return info;
}

}  // namespace thinwire

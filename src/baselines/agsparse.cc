// AGsparse: every rank sends its non-zeros to every other and adds up what it gets.
//
// Source: the sparse all-reduce of PyTorch and Horovod, a baseline of Zen (section 2) and S2 Reducer.
//
//   rows --row_list to all--> union as a bitmap, sums by rank in it, in rank order, / W
//
// Bytes per rank: (W-1) * 8 nnz, rows of `width` values (W-1) * (4 + 4 width) each. They grow with W,
// whatever the ranks have in common.

#include "baselines/baselines.h"
#include "exchange/sparse_synchronizer.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"

namespace thinwire {
namespace {

class AgSparse final : public SparseSynchronizer {
 public:
  std::uint64_t payload_bytes(const Workload& workload) const override {
    const Expected e = expected(workload);
    return (e.world - 1) * row_list_bytes(e.rows, e.width);
  }

 protected:
  RowMean exchange(BucketId bucket, const RowSparse& own, bool finite, Step& step) override {
    RowMessages messages(bucket, kRowListTag, own.width, step);
    messages.note(finite);
    messages.for_peers([&](std::size_t peer) { messages.expect(peer); });
    const FrameContents contents = messages.list_contents(own.size());
    step.report.formula_bytes = (messages.world() - 1) * contents.payload_bytes;
    const auto payload = messages.list_payload(own);
    const auto sealed = messages.seal(contents, payload);
    messages.for_peers([&](std::size_t peer) { messages.send(peer, sealed, payload); });
    messages.for_peers([&](std::size_t peer) { messages.await_list_header(peer, own.rows); });
    step.clock.enter(Phase::decompress);
    const RowSparse mean = average(own, messages, step);
    messages.finish();
    step.report.finite = messages.finite();
    return {mean, messages.finite(), true};
  }

 private:
  /// The union as a bitmap, and the sums by rank in it, added up in rank order.
  static RowSparse average(const RowSparse& own, RowMessages& messages, Step& step) {
    const auto lists = step.workspace.take<ReceivedRowList>(messages.world());
    const auto bitmap = step.scratch.take<std::uint64_t>(bitmap_words(own.rows));
    clear_bitmap(step.executor, bitmap);
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      lists[rank] = rank == messages.self() ? ReceivedRowList{own.row_indices, own.values}
                                            : messages.await_list(rank, own.rows);
      set_bits(step.executor, lists[rank].indices, bitmap);
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
    messages.note(scale(step.executor, sums, 1.0f / static_cast<float>(messages.world())));
    return {indices, sums, own.rows, own.width};
  }
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
  info.make = [](const Options&, Inner) { return std::make_unique<AgSparse>(); };
  return info;
}

}  // namespace thinwire

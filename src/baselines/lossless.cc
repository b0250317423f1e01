// Systems for sparse gradients that deliver everything.
//
// AGsparse: every rank sends its non-zeros to every other and adds up what it gets.
//
// Source: the sparse all-reduce of PyTorch and Horovod, a baseline of Zen (section 2) and S2 Reducer.
//
//   rows --row_list to all--> union as a bitmap, sums by rank in it, in rank order, / W
//
// Bytes per rank: (W-1) * 8 nnz, rows of `width` values (W-1) * (4 + 4 width) each. They grow with W,
// whatever the ranks have in common.
//
// SparCML: recursive doubling on lists of non-zeros.
//
// Source: C. Renggli et al., "SparCML: High-performance sparse communication for machine learning", SC 2019,
// SSAR_Recursive_double; a baseline of Zen (section 2.4) and S2 Reducer.
//
// Bytes per rank: the sum over the stages of 8 times what the rank holds by then: nnz, |U_2|, |U_4|, ...;
// ranks beyond the largest power of two send their nnz once. As Zen's paper measures it, lists stay lists
// however long they grow. With switch=on a rank that holds more than half of the elements sends all of them
// without indices, 4d bytes, as SparCML itself does.
//
// Sparse PS and OmniReduce: rank p owns the p-th slice of the table, whose rows lie side by side, and lists
// of rows go both ways. Where gradients are skewed, one owner gets most of them: imbalance by design.
//
// Sparse PS is a sharded parameter server for sparse gradients. Source: Parallax (S. Kim et al., EuroSys
// 2019), as a baseline of Zen (section 4.2) and S2 Reducer.
//
//   rows --row_list to the owner of their slice--> rank-order sums / W --row_list--> everyone
//
// Bytes per rank: 8 per non-zero of the others' slices, and (W-1) * 8 |U_p|; rows of `width` values count 4 +
// 4 width.
//
// OmniReduce sends non-zero blocks to aggregators. Source: J. Fei et al., "Efficient sparse collective
// communication and its application to accelerate distributed deep learning", SIGCOMM 2021, as a baseline of
// Zen (section 2.4) and S2 Reducer.
//
//   blocks with a non-zero --to the aggregator of their slice--> rank-order sums / W --> everyone
//
// Blocks of 256 elements; of rows, every row is a block, or with rows=block as many as fill one. Each rank is
// also an aggregator. Bytes per rank: 4 + 4 * 256 for each non-zero block of the others' slices, and (W-1)
// times the same for each block of its slice that any rank has.

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
    messages.exchange(
        [&](std::size_t) {
          return RowMessages::Outgoing{sealed, payload};
        },
        [&](std::size_t peer) { messages.await_list_header(peer, own.rows); });
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

class SparCml final : public SparseSynchronizer {
 public:
  explicit SparCml(bool dense_switch) : dense_switch_(dense_switch) {}

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const Expected e = expected(workload);
    return recursive_doubling_bytes(e.rows, e.union_rows, e.world, static_cast<std::uint64_t>(workload.rank),
                                    e.width, dense_switch_ ? e.table_rows : 0);
  }

 protected:
  RowMean exchange(BucketId bucket, const RowSparse& own, bool finite, Step& step) override {
    return recursive_doubling(bucket, own, finite, step, dense_switch_);
  }

 private:
  bool dense_switch_;
};

class EvenSlices final : public SparseSynchronizer {
 public:
  using SparseSynchronizer::SparseSynchronizer;

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const Expected e = expected(workload);
    return row_list_bytes(e.rows - e.rows / e.world, e.width) +
           (e.world - 1) * row_list_bytes(e.union_rows / e.world, e.width);
  }

 protected:
  RowMean exchange(BucketId bucket, const RowSparse& own, bool finite, Step& step) override {
    return push_pull(bucket, own, finite,
                     {.slots = IndexPermutation::none(own.rows), .pull = PullFormat::list}, step);
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
  info.turns_residual = true;
  info.takes_rows = true;
  info.make = [](const Options&, Inner) { return std::make_unique<AgSparse>(); };
  return info;
}

SystemInfo sparcml_info() {
  SystemInfo info;
  info.name = "sparcml";
  info.summary = "recursive doubling on lists of non-zeros";
  info.paper = "Renggli et al., SC 2019; baseline of Zen and S2 Reducer";
  info.formula = "sum over stages i < log2 W of 8 |U_(2^i)|; switch=on: of min(8 |U_(2^i)|, 4 d)";
  info.lossless = true;
  info.turns_residual = true;
  info.takes_rows = true;
  info.options = {{"switch", "off", "on: send all elements once a list of them would be longer; on the CPU"}};
  info.make = [](const Options& options, Inner) {
    return std::make_unique<SparCml>(options.choice("switch", {"off", "on"}) == "on");
  };
  return info;
}

SystemInfo sparse_ps_info() {
  SystemInfo info;
  info.name = "sparse_ps";
  info.summary = "sharded server with even slices, lists both ways";
  info.paper = "Kim et al. (Parallax), EuroSys 2019; baseline of Zen and S2 Reducer";
  info.formula = "8 nnz outside the own slice + (W-1) * 8 |U_p|";
  info.lossless = true;
  info.turns_residual = true;
  info.takes_rows = true;
  info.make = [](const Options&, Inner) { return std::make_unique<EvenSlices>(1); };
  return info;
}

SystemInfo omnireduce_info() {
  SystemInfo info;
  info.name = "omnireduce";
  info.summary = "non-zero blocks to aggregators that own even slices";
  info.paper = "Fei et al., SIGCOMM 2021; baseline of Zen and S2 Reducer";
  info.formula = "(4 + 4 block) per non-zero block outside the own slice + (W-1) * the same per block of U_p";
  info.lossless = true;
  info.turns_residual = true;
  info.takes_rows = true;
  info.options = {{"block", "256", "elements per block of a dense bucket, 1 to 65536"},
                  {"rows", "row", "block: a table too goes in blocks of so many elements; row: in rows"}};
  info.make = [](const Options& options, Inner) {
    return std::make_unique<EvenSlices>(static_cast<std::size_t>(options.integer("block", 1, 65536)),
                                        options.choice("rows", {"row", "block"}) == "block");
  };
  return info;
}

}  // namespace thinwire

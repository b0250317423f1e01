#pragma once
// Synchronizing rows through owners: every slot of a table has one owner among the ranks. Each rank pushes to
// each owner the rows that it owns, the owner adds them up in rank order, and all pull the result. Zen,
// Sparse PS and OmniReduce differ in who owns what and in how the pull is written.
//
//   rows --permute--> slots --split by owner--> row_list to each owner
//   owner: union as a bitmap, sums by rank in it, / W --row_bitmap or row_list--> everyone
//
// Bytes sent per rank, rows of `width` values:
//   push: (4 + 4 width) per row that another rank owns;
//   pull: (W-1) times 4 width |U_p| + |I_p| / 8 as a bitmap or (4 + 4 width) |U_p| as a list, where I_p are
//         the slots owned and U_p those of them that any rank has.
//
// Synchronizing rows by exchanging ever larger unions: in stage i each rank swaps what it has with rank XOR
// 2^i and merges. SparCML's SSAR by recursive doubling (C. Renggli et al., SC 2019), which Zen's paper calls
// Hierarchical Centralization. With P = the largest power of two up to W, rank P + r first folds its rows
// into rank r's and in the end receives the result from it.
//
// Bytes sent per rank: (4 + 4 width) per row that it holds at each stage.

#include <optional>

#include "core/philox.h"
#include "exchange/row_messages.h"
#include "kernels/rows/hash_partition.h"
#include "kernels/rows/index_permutation.h"

namespace thinwire {

/// What an owner's result travels as: a bitmap of its slots, a list, or the smaller of the two.
enum class PullFormat { smaller, bitmap, list };

/// Whether an owner's result, which has `rows` of `slots` slots, travels as a bitmap.
constexpr bool pulls_bitmap(PullFormat format, std::uint64_t slots, std::uint64_t rows, std::uint64_t width) {
  if (format != PullFormat::smaller) return format == PullFormat::bitmap;
  return row_bitmap_bytes(slots, rows, width) < row_list_bytes(rows, width);
}

struct PushPullScheme {
  /// The owner of slot x is the part of the table in which it lies; the permutation gives rows their slots.
  IndexPermutation slots;
  PullFormat pull = PullFormat::smaller;
  /// Rows are split among owners by Zen's Algorithm 1, with second-level hashes of this stream, and not by a
  /// counting sort. What is sent is the same to the bit.
  std::optional<RandomStream> hash_split{};
  HierarchicalHashParameters hashing{};  ///< Of hash_split.
  /// Where the slots of owners 1, 2, ... begin, in place of nearly equal parts: ascending, at most the
  /// table's rows, the same on all ranks. Empty: equal parts. Slots are rows themselves then
  /// (IndexPermutation::none()), and rows must lie in memory of the CPU.
  Span<const std::uint32_t> thresholds{};
};

/// What an exchange of rows ends with.
struct RowMean {
  RowSparse rows;      ///< Distinct; ascending if `ascending`. Without meaning unless `finite`.
  bool finite = true;  ///< The same on all ranks.
  bool ascending = true;
};

/// One exchange: push(), merge(), pull() or keep(), in this order. More than one rank.
class PushPull {
 public:
  /// own: ascending, distinct rows of a table with at least one row; finite: whether this rank's values are.
  /// Both of them, and the scheme, outlive the exchange. Throws std::invalid_argument for
  /// thresholds of rows on a device, and for thresholds that are not what PushPullScheme says.
  PushPull(BucketId bucket, const RowSparse& own, bool finite, const PushPullScheme& scheme, Step& step);

  /// Splits this rank's rows and sends every owner its part.
  void push();
  /// Adds up what the ranks pushed to this one: the union as bits over the owned slots, and its sums.
  void merge();
  /// In place of pull() in a reduce-scatter (Step::reduce_scatter): this rank's result alone, and from all
  /// ranks whether theirs are finite. Slots are rows themselves then: IndexPermutation::none().
  RowMean keep();
  /// Sends this rank's result to all and collects everyone's. Fills in frame_header_bytes, formula_bytes,
  /// finite and both imbalances of the report.
  RowMean pull();

  // What the exchange shows on its way. Counts lie in the workspace, slots in scratch memory.

  /// After merge(): what each rank holds of the slots that this one owns, counted from the first of them.
  Span<const Span<const std::uint32_t>> merged_slots() const { return merged_slots_; }
  std::size_t owned_slots() const { return owned_slots(self_); }
  /// After push(): rows that this rank pushed to each owner.
  Span<const std::size_t> pushed_rows() const { return pushed_; }
  /// After pull(): bytes of each owner's result.
  Span<const std::uint64_t> pulled_bytes() const { return pulled_bytes_; }
  /// After merge(): rows of the rank that has fewest, the same on all ranks.
  std::uint64_t smallest() const { return smallest_; }

 private:
  template <class T>
  Span<T> take(std::size_t count) {
    return step_.workspace.take<T>(count);
  }
  /// For what only kernels touch.
  template <class T>
  Span<T> take_scratch(std::size_t count) {
    return step_.scratch.take<T>(count);
  }
  std::size_t first_slot(std::size_t owner) const;
  std::size_t owned_slots(std::size_t owner) const;
  void check_scheme() const;
  void split();
  void find_owners_of_rows(Span<std::uint16_t> owner_of);
  Span<const std::uint32_t> positions_by_hash(Span<const std::uint16_t> owner_of);
  Span<const std::uint32_t> owned_slots_of(std::size_t rank, Span<const std::uint32_t> indices);
  void await_push(std::size_t peer);
  void await_result(RowMessages& results, std::size_t owner);
  RowSparse collect(RowMessages& results);
  bool all_are_finite();
  Span<const std::byte> encode(FrameContents& contents);
  Span<const float> decode(const FrameHeader& header, Span<const std::byte> payload,
                           Span<std::uint32_t> slots);

  BucketId bucket_;
  const RowSparse& own_;
  const PushPullScheme& scheme_;
  Step& step_;
  Executor& executor_ = step_.executor;
  RowMessages pushes_;
  const std::size_t world_ = pushes_.world();
  const std::size_t self_ = pushes_.self();
  const std::size_t width_ = own_.width;
  std::uint64_t smallest_ = own_.size();
  Span<std::size_t> pushed_ = take<std::size_t>(world_);
  Span<std::uint64_t> pulled_rows_ = take<std::uint64_t>(world_);
  Span<std::uint64_t> pulled_bytes_ = take<std::uint64_t>(world_);
  Span<Span<std::byte>> parts_;
  Span<Span<const std::uint32_t>> merged_slots_;
  // What this rank owns, merged: which slots, how many before each word, their means.
  Span<std::uint64_t> bits_;
  Span<std::uint32_t> before_;
  Span<float> sums_;
};

/// All three steps; the third is keep() in a reduce-scatter.
RowMean push_pull(BucketId bucket, const RowSparse& own, bool finite, const PushPullScheme& scheme,
                  Step& step);

/// As push_pull, without owners: sums are taken pairwise, ((g0 + g1) + (g2 + g3)) + ..., which every rank
/// does alike. rows of the result ascend. Collective. dense_switch: where a list would be longer than the
/// values of all rows, these are sent instead, and the result has all rows; on the CPU.
RowMean recursive_doubling(BucketId bucket, const RowSparse& own, bool finite, Step& step,
                           bool dense_switch = false);

/// The largest power of two that is at most `world`.
constexpr std::size_t largest_power_of_two(std::size_t world) {
  std::size_t power = 1;
  while (power * 2 <= world) power *= 2;
  return power;
}

/// Payload bytes that `rank` sends when every rank has `rows` rows, all together `union_rows`, and unions
/// grow by the same factor from stage to stage. table_rows: where lists give way to all rows' values; 0: they
/// do not.
std::uint64_t recursive_doubling_bytes(std::uint64_t rows, std::uint64_t union_rows, std::uint64_t world,
                                       std::uint64_t rank, std::uint64_t width, std::uint64_t table_rows = 0);

}  // namespace thinwire

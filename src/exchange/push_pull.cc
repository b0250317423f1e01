#include "exchange/push_pull.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "core/partition.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// Largest of the counts, times their number, over their sum; -1 when all are 0.
template <class T>
double imbalance_of(Span<const T> counts) {
  const auto sum = static_cast<double>(std::accumulate(counts.begin(), counts.end(), T{0}));
  if (sum == 0) return -1;
  return static_cast<double>(*std::ranges::max_element(counts)) * static_cast<double>(counts.size()) / sum;
}

class Doubling {
 public:
  Doubling(BucketId bucket, const RowSparse& own, bool finite, Step& step, bool dense_switch)
      : step_(step),
        switches_(dense_switch),
        rows_(own),
        messages_(bucket, kDoublingTag, own.width, step),
        power_(largest_power_of_two(messages_.world())) {
    messages_.note(finite);
    if (!switches_) return;
    if (step_.executor.memory() != Memory::host) {
      throw std::invalid_argument(
          "switch=on works on the CPU and gradients are on a device: take switch=off, or compress on the "
          "CPU");
    }
    messages_.accept_tables(rows_.rows);
  }

  RowMean run() {
    step_.report.formula_bytes = 0;
    switch_if_shorter();
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
    const ReceivedRowList result = receive(partner);  // which stays as long as the messages' memory
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

  bool is_table() const { return switches_ && rows_.size() == rows_.rows; }

  void send(std::size_t peer) {
    if (is_table()) {
      const auto payload = step_.workspace.take<float>(rows_.values.size());
      copy(step_.executor, rows_.values, payload);
      step_.report.formula_bytes += payload.size_bytes();
      return messages_.send(peer, messages_.seal_table(as_bytes(Span<const float>(payload))),
                            as_bytes(Span<const float>(payload)));
    }
    const FrameContents contents = messages_.list_contents(rows_.size());
    const auto payload = messages_.list_payload(rows_);
    step_.report.formula_bytes += contents.payload_bytes;
    messages_.send(peer, messages_.seal(contents, payload), payload);
  }

  ReceivedRowList receive(std::size_t peer) {
    const FrameHeader& header = messages_.await_list_header(peer, rows_.rows);
    if (header.type != FrameType::floats) return messages_.await_list(peer, rows_.rows);
    const auto payload = messages_.await_payload(peer);
    return {all_rows(),
            Span<const float>(reinterpret_cast<const float*>(payload.data()), rows_.rows * rows_.width)};
  }

  Span<const std::uint32_t> all_rows() {
    if (all_rows_.empty()) {
      all_rows_ = step_.scratch.take<std::uint32_t>(rows_.rows);
      std::iota(all_rows_.begin(), all_rows_.end(), 0u);
    }
    return all_rows_;
  }

  /// The values of all rows instead of a list that is longer.
  void switch_if_shorter() {
    const std::uint64_t table = sizeof(float) * rows_.rows * rows_.width;
    if (!switches_ || row_list_bytes(rows_.size(), rows_.width) <= table) return;
    const auto values = step_.scratch.take<float>(rows_.rows * rows_.width);
    fill(step_.executor, values, 0);
    scatter_rows(step_.executor, rows_.row_indices, rows_.values, rows_.width, values);
    rows_ = {all_rows(), values, rows_.rows, rows_.width};
  }

  void merge(std::size_t peer) {
    const ReceivedRowList theirs = receive(peer);
    const std::size_t most = std::min(rows_.size() + theirs.indices.size(), rows_.rows);
    const auto indices = step_.scratch.take<std::uint32_t>(most);
    const auto values = step_.scratch.take<float>(most * rows_.width);
    const std::size_t merged = merge_sorted_rows(step_.executor, rows_.row_indices, rows_.values,
                                                 theirs.indices, theirs.values, rows_.width, indices, values);
    rows_ = {indices.first(merged), values.first(merged * rows_.width), rows_.rows, rows_.width};
    switch_if_shorter();
  }

  void average() {
    step_.clock.enter(Phase::decompress);
    const auto values = step_.scratch.take<float>(rows_.values.size());
    copy(step_.executor, rows_.values, values);
    messages_.note(scale(step_.executor, values, 1.0f / static_cast<float>(messages_.world())));
    rows_.values = values;
  }

  Step& step_;
  bool switches_;
  Span<std::uint32_t> all_rows_;
  RowSparse rows_;  // the union so far
  RowMessages messages_;
  std::size_t power_;
};

}  // namespace

PushPull::PushPull(BucketId bucket, const RowSparse& own, bool finite, const PushPullScheme& scheme,
                   Step& step)
    : bucket_(bucket), own_(own), scheme_(scheme), step_(step), pushes_(bucket, kPushTag, own.width, step) {
  check_scheme();
  pushes_.note(finite);
}

void PushPull::check_scheme() const {
  const auto thresholds = scheme_.thresholds;
  if (thresholds.empty()) return;
  if (executor_.memory() != Memory::host) {
    throw std::invalid_argument(
        "split=thresholds works on the CPU and gradients are on a device: take split=sort");
  }
  if (!scheme_.slots.identity || thresholds.size() + 1 != world_ || thresholds[world_ - 2] > own_.rows ||
      !std::ranges::is_sorted(thresholds)) {
    throw std::invalid_argument("thresholds of " + std::to_string(world_) + " owners of " +
                                std::to_string(own_.rows) + " rows: expected " + std::to_string(world_ - 1) +
                                " of them, ascending, at most that many rows, and rows as slots");
  }
}

std::size_t PushPull::first_slot(std::size_t owner) const {
  if (scheme_.thresholds.empty()) return part_begin(own_.rows, world_, owner);
  if (owner == world_) return own_.rows;
  return owner == 0 ? 0 : scheme_.thresholds[owner - 1];
}

std::size_t PushPull::owned_slots(std::size_t owner) const {
  return first_slot(owner + 1) - first_slot(owner);
}

void PushPull::push() {
  pushes_.for_peers([&](std::size_t peer) { pushes_.expect(peer); });
  split();
  const auto frame_for = [&](std::size_t owner) -> RowMessages::Outgoing {
    FrameContents contents = pushes_.list_contents(pushed_[owner]);
    contents.first = own_.size();  // in all, whoever owns them
    return {pushes_.seal(contents, parts_[owner]), parts_[owner]};
  };
  pushes_.exchange(frame_for, [&](std::size_t peer) { await_push(peer); });
}

/// The header of what a rank pushes here, checked.
void PushPull::await_push(std::size_t peer) {
  const FrameHeader& header = pushes_.await_list_header(peer, owned_slots());
  if (header.first < header.count || header.first > own_.rows) {
    throw CorruptFrame("frame of rows refused: its sender has " + std::to_string(header.first) +
                       " rows in all, expected at least the " + std::to_string(header.count) +
                       " listed and at most the table's " + std::to_string(own_.rows) + " (" + whose(header) +
                       ")");
  }
  smallest_ = std::min(smallest_, header.first);
}

/// parts_[p] = the row_list of the rows that p owns.
void PushPull::split() {
  const auto owner_of = take_scratch<std::uint16_t>(own_.size());
  find_owners_of_rows(owner_of);
  parts_ = take<Span<std::byte>>(world_);
  const auto cursors = take<RowCursor>(world_);
  for (std::size_t owner = 0; owner < world_; ++owner) {
    parts_[owner] = take<std::byte>(row_list_bytes(pushed_[owner], width_));
    const RowList list = row_list_in(parts_[owner], pushed_[owner], width_);
    cursors[owner] = {list.indices.data(), list.values.data()};
  }
  if (!scheme_.hash_split) {
    return split_by_owner(executor_, owner_of, own_.row_indices, own_.values, width_, cursors);
  }
  deliver_rows(executor_, positions_by_hash(owner_of), owner_of, own_.row_indices, own_.values, width_,
               cursors);
}

/// The same parts by Algorithm 1. Where more collide than the serial area has room for, it is made again with
/// room for all.
Span<const std::uint32_t> PushPull::positions_by_hash(Span<const std::uint16_t> owner_of) {
  const std::size_t count = own_.size();
  const HierarchicalHashShape shape = scheme_.hashing.shape(count, world_);
  HashMemory memory{.slots = take_scratch<std::uint32_t>(shape.owners * shape.slots),
                    .serial = take_scratch<std::uint32_t>(std::min(count, shape.owners * shape.serial_room)),
                    .cursors = take<std::size_t>(world_)};
  const auto positions = take_scratch<std::uint32_t>(count);
  const auto split = [&] {
    return split_positions_by_hash(executor_, shape, *scheme_.hash_split, own_.row_indices, owner_of, pushed_,
                                   memory, positions);
  };
  if (split() > memory.serial.size()) {
    memory.serial = take_scratch<std::uint32_t>(count);
    split();
  }
  return positions;
}

void PushPull::find_owners_of_rows(Span<std::uint16_t> owner_of) {
  if (!scheme_.thresholds.empty()) {
    return find_owners_by_thresholds(own_.row_indices, scheme_.thresholds, owner_of, pushed_);
  }
  const auto slots = take_scratch<std::uint32_t>(own_.size());
  permute(executor_, scheme_.slots, own_.row_indices, slots);
  find_owners(executor_, slots, own_.rows, world_, owner_of, pushed_);
}

void PushPull::merge() {
  const auto lists = take<ReceivedRowList>(world_);
  const auto slots = take<Span<const std::uint32_t>>(world_);
  bits_ = take_scratch<std::uint64_t>(bitmap_words(owned_slots()));
  clear_bitmap(executor_, bits_);
  for (std::size_t rank = 0; rank < world_; ++rank) {
    if (rank == self_) {
      const RowList list = row_list_in(parts_[self_], pushed_[self_], width_);
      lists[rank] = {list.indices, list.values};
    } else {
      lists[rank] = pushes_.await_list(rank, own_.rows);
    }
    slots[rank] = owned_slots_of(rank, lists[rank].indices);
    set_bits(executor_, slots[rank], bits_);
  }
  merged_slots_ = slots;
  before_ = take_scratch<std::uint32_t>(bits_.size());
  pulled_rows_[self_] = count_bits_before(executor_, bits_, before_);
  sums_ = take_scratch<float>(pulled_rows_[self_] * width_);
  fill(executor_, sums_, 0);
  for (std::size_t rank = 0; rank < world_; ++rank) {
    accumulate_rows(executor_, slots[rank], lists[rank].values, width_, bits_, before_, true, sums_);
  }
  pushes_.note(scale(executor_, sums_, 1.0f / static_cast<float>(world_)));
  pushes_.finish();
}

/// The slots of `indices`, counted from the first that this rank owns.
Span<const std::uint32_t> PushPull::owned_slots_of(std::size_t rank, Span<const std::uint32_t> indices) {
  const auto slots = take_scratch<std::uint32_t>(indices.size());
  if (!permute_into(executor_, scheme_.slots, static_cast<std::uint32_t>(first_slot(self_)),
                    static_cast<std::uint32_t>(owned_slots()), indices, slots)) {
    throw CorruptFrame("rank " + std::to_string(rank) + " pushed rows to rank " + std::to_string(self_) +
                       " that it does not own: do the ranks use one seed, and owners of one history?");
  }
  return slots;
}

RowMean PushPull::keep() {
  StepReport& report = step_.report;
  report.imbalance_push = imbalance_of(Span<const std::size_t>(pushed_));
  report.formula_bytes = row_list_bytes(own_.size() - pushed_[self_], width_);
  report.finite = all_are_finite();
  step_.clock.enter(Phase::decompress);
  const auto indices = take_scratch<std::uint32_t>(pulled_rows_[self_]);
  list_bits(executor_, bits_, before_, indices);
  unpermute(executor_, scheme_.slots, static_cast<std::uint32_t>(first_slot(self_)), indices, indices);
  return {{indices, sums_, own_.rows, width_}, report.finite, true};
}

/// Collective: by frames without elements.
bool PushPull::all_are_finite() {
  Frames news(bucket_, step_);
  news.note(pushes_.finite());
  const auto contents = [&](std::size_t owner) {
    return FrameContents{
        .type = FrameType::floats, .workers = static_cast<std::uint32_t>(world_), .first = first_slot(owner)};
  };
  const auto frames = take<std::byte>(world_ * FrameHeader::kBytes);
  const auto frame_of = [&](std::size_t rank) {
    return frames.subspan(rank * FrameHeader::kBytes, FrameHeader::kBytes);
  };
  news.for_peers([&](std::size_t peer) { news.receive(peer, kPullTag, frame_of(peer)); });
  news.seal(frame_of(self_), contents(self_));
  news.for_peers([&](std::size_t peer) { news.send(peer, kPullTag, frame_of(self_)); });
  news.for_peers([&](std::size_t peer) { news.await(peer, frame_of(peer), contents(peer)); });
  news.finish();
  return news.finite();
}

RowMean PushPull::pull() {
  RowMessages results(bucket_, kPullTag, width_, step_);
  results.note(pushes_.finite());
  results.for_peers([&](std::size_t peer) { results.expect(peer); });
  FrameContents contents;
  const auto payload = encode(contents);
  const auto sealed = results.seal(contents, payload);
  results.exchange(
      [&](std::size_t) {
        return RowMessages::Outgoing{sealed, payload};
      },
      [&](std::size_t owner) { await_result(results, owner); });
  const RowSparse rows = collect(results);
  results.finish();
  StepReport& report = step_.report;
  report.imbalance_push = imbalance_of(Span<const std::size_t>(pushed_));
  report.imbalance_pull = imbalance_of(Span<const std::uint64_t>(pulled_rows_));
  report.formula_bytes =
      row_list_bytes(own_.size() - pushed_[self_], width_) + (world_ - 1) * pulled_bytes_[self_];
  report.finite = results.finite();
  return {rows, report.finite, scheme_.slots.identity};
}

/// The header of an owner's result, checked.
void PushPull::await_result(RowMessages& results, std::size_t owner) {
  const FrameHeader& arrived = results.await_header(owner, owned_slots(owner), world_);
  const bool either = scheme_.pull == PullFormat::smaller && arrived.type == FrameType::row_bitmap;
  const bool bitmap = either || scheme_.pull == PullFormat::bitmap;
  require_field(arrived, "type", static_cast<std::uint64_t>(arrived.type),
                static_cast<std::uint64_t>(bitmap ? FrameType::row_bitmap : FrameType::row_list));
  if (bitmap) require_field(arrived, "slots", arrived.count, owned_slots(owner));
  require_field(arrived, "first slot", arrived.first, first_slot(owner));
  pulled_rows_[owner] = frame_rows(arrived);
  pulled_bytes_[owner] = arrived.payload_bytes;
}

/// Everyone's results, one owner's after the other.
RowSparse PushPull::collect(RowMessages& results) {
  step_.clock.enter(Phase::decompress);
  const std::size_t total = std::accumulate(pulled_rows_.begin(), pulled_rows_.end(), std::uint64_t{0});
  const auto indices = take_scratch<std::uint32_t>(total);
  const auto values = take_scratch<float>(total * width_);
  std::size_t at = 0;
  for (std::size_t owner = 0; owner < world_; ++owner) {
    const auto part = indices.subspan(at, pulled_rows_[owner]);
    const auto part_values = values.subspan(at * width_, part.size() * width_);
    at += part.size();
    if (owner == self_) {
      list_bits(executor_, bits_, before_, part);
      copy(executor_, Span<const float>(sums_), part_values);
    } else {
      const auto arrived = results.await_payload(owner);
      copy(executor_, decode(results.header_of(owner), arrived, part), part_values);
    }
    unpermute(executor_, scheme_.slots, static_cast<std::uint32_t>(first_slot(owner)), part, part);
  }
  return {indices, values, own_.rows, width_};
}

Span<const std::byte> PushPull::encode(FrameContents& contents) {
  const std::size_t slots = owned_slots();
  const std::size_t listed = pulled_rows_[self_];
  const bool bitmap = pulls_bitmap(scheme_.pull, slots, listed, width_);
  contents = {
      .type = bitmap ? FrameType::row_bitmap : FrameType::row_list,
      .workers = static_cast<std::uint32_t>(world_),
      .first = first_slot(self_),
      .count = bitmap ? slots : listed,
      .payload_bytes = bitmap ? row_bitmap_bytes(slots, listed, width_) : row_list_bytes(listed, width_)};
  pulled_bytes_[self_] = contents.payload_bytes;
  const auto payload = take<std::byte>(contents.payload_bytes);
  if (bitmap) {
    const RowBitmap part = row_bitmap_in(payload, listed, width_, slots);
    copy(executor_, Span<const float>(sums_), part.values);
    copy(executor_, as_bytes(Span<const std::uint64_t>(bits_)).first(part.bits.size()), part.bits);
  } else {
    const RowList list = row_list_in(payload, listed, width_);
    list_bits(executor_, bits_, before_, list.indices);
    copy(executor_, Span<const float>(sums_), list.values);
  }
  return payload;
}

/// Writes the slots that an owner's result has and views its values.
Span<const float> PushPull::decode(const FrameHeader& header, Span<const std::byte> payload,
                                   Span<std::uint32_t> slots) {
  if (header.type == FrameType::row_list) {
    const ReceivedRowList list = read_row_list(header, payload, owned_slots(header.source));
    copy(executor_, list.indices, slots);
    return list.values;
  }
  const auto bits = take<std::uint64_t>(bitmap_words(header.count));
  const auto before = take_scratch<std::uint32_t>(bits.size());
  const auto values = read_row_bitmap(header, payload, bits);
  count_bits_before(executor_, bits, before);
  list_bits(executor_, bits, before, slots);
  return values;
}

RowMean push_pull(BucketId bucket, const RowSparse& own, bool finite, const PushPullScheme& scheme,
                  Step& step) {
  PushPull exchange(bucket, own, finite, scheme, step);
  exchange.push();
  exchange.merge();
  return step.reduce_scatter ? exchange.keep() : exchange.pull();
}

RowMean recursive_doubling(BucketId bucket, const RowSparse& own, bool finite, Step& step,
                           bool dense_switch) {
  return Doubling(bucket, own, finite, step, dense_switch).run();
}

std::uint64_t recursive_doubling_bytes(std::uint64_t rows, std::uint64_t union_rows, std::uint64_t world,
                                       std::uint64_t rank, std::uint64_t width, std::uint64_t table_rows) {
  const std::uint64_t most =
      table_rows != 0 ? sizeof(float) * table_rows * width : std::numeric_limits<std::uint64_t>::max();
  if (world == 1 || rows == 0) return 0;
  const std::uint64_t power = largest_power_of_two(world);
  if (rank >= power) return std::min(row_list_bytes(rows, width), most);
  const double stages = std::log2(static_cast<double>(world));
  const double gamma = static_cast<double>(union_rows) / static_cast<double>(rows);
  auto bytes_of = [&](double ranks) {
    const double held = static_cast<double>(rows) * std::pow(gamma, std::log2(ranks) / stages);
    return std::min(row_list_bytes(static_cast<std::uint64_t>(std::llround(held)), width), most);
  };
  const double merged_ranks = static_cast<double>(world) / static_cast<double>(power);
  std::uint64_t bytes = 0;
  for (std::uint64_t ranks = 1; ranks < power; ranks *= 2)
    bytes += bytes_of(static_cast<double>(ranks) * merged_ranks);
  if (rank + power < world) bytes += std::min(row_list_bytes(union_rows, width), most);
  return bytes;
}

}  // namespace thinwire

#include "exchange/push_pull.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "core/partition.h"
#include "core/stopwatch.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/hash_partition.h"
#include "kernels/rows/row_merge.h"
#include "thinwire/errors.h"
#include "wire/row_payload.h"

namespace thinwire {
namespace {

constexpr Communicator::Tag kPushTag = 50;
constexpr Communicator::Tag kPullTag = 51;

/// Largest of the counts, times their number, over their sum; -1 when all are 0.
template <class T>
double imbalance_of(Span<const T> counts) {
  const auto sum = static_cast<double>(std::accumulate(counts.begin(), counts.end(), T{0}));
  if (sum == 0) return -1;
  return static_cast<double>(*std::max_element(counts.begin(), counts.end())) *
         static_cast<double>(counts.size()) / sum;
}

class Exchange {
 public:
  Exchange(BucketId bucket, const RowSparse& own, bool finite, const PushPullScheme& scheme,
           RowMessageStorage& storage, Step& step, PushPullObserver* observer)
      : bucket_(bucket),
        own_(own),
        finite_(finite),
        scheme_(scheme),
        storage_(storage),
        step_(step),
        observer_(observer),
        executor_(step.executor),
        world_(static_cast<std::size_t>(step.communicator.size())),
        self_(static_cast<std::size_t>(step.communicator.rank())),
        width_(own.width),
        smallest_(own.size()),
        pushed_(take<std::size_t>(world_)),
        pulled_rows_(take<std::uint64_t>(world_)),
        pulled_bytes_(take<std::uint64_t>(world_)) {}

  RowMean run() {
    push();
    RowMean mean = pull();
    StepReport& report = step_.report;
    report.imbalance_push = imbalance_of(Span<const std::size_t>(pushed_));
    report.imbalance_pull = imbalance_of(Span<const std::uint64_t>(pulled_rows_));
    report.formula_bytes =
        row_list_bytes(own_.size() - pushed_[self_], width_) + (world_ - 1) * pulled_bytes_[self_];
    report.finite = mean.finite;
    if (observer_ != nullptr) observer_->exchanged(pushed_, pulled_rows_, pulled_bytes_);
    return mean;
  }

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
  std::size_t first_place(std::size_t owner) const { return part_begin(own_.rows, world_, owner); }
  std::size_t owned_places(std::size_t owner) const { return part_size(own_.rows, world_, owner); }

  /// Splits this rank's rows, sends every owner its part, and adds up those that this rank owns.
  void push() {
    RowMessages messages(storage_, bucket_, kPushTag, step_);
    for_peers([&](int peer) { messages.expect(peer); });
    Stopwatch watch;
    split();
    step_.report.seconds_compress += watch.lap();
    for_peers([&](int peer) {
      const auto owner = static_cast<std::size_t>(peer);
      FrameHeader header = messages.header();
      header.type = FrameType::row_list;
      header.flags = finite_ ? std::uint16_t{0} : FrameHeader::kNonFinite;
      header.width = static_cast<std::uint32_t>(width_);
      header.count = pushed_[owner];
      header.first = own_.size();  // in all, whoever owns them
      header.payload_bytes = parts_[owner].size();
      messages.send(peer, messages.seal(header), parts_[owner]);
    });
    merge(messages, watch);
    messages.finish();
    step_.report.seconds_wait += watch.lap();
  }

  /// parts_[p] = the row_list of the rows that p owns.
  void split() {
    const auto places = take_scratch<std::uint32_t>(own_.size());
    const auto owner_of = take_scratch<std::uint16_t>(own_.size());
    permute(executor_, scheme_.places, own_.row_indices, places);
    find_owners(executor_, places, own_.rows, world_, owner_of, pushed_);
    parts_ = take<Span<std::byte>>(world_);
    const auto cursors = take<RowCursor>(world_);
    for (std::size_t owner = 0; owner < world_; ++owner) {
      parts_[owner] = take<std::byte>(row_list_bytes(pushed_[owner], width_));
      const RowList list = row_list_in(parts_[owner], pushed_[owner], width_);
      cursors[owner] = {list.indices.data(), list.values.data()};
    }
    split_by_owner(executor_, owner_of, own_.row_indices, own_.values, width_, cursors);
  }

  /// The union of what the ranks pushed here as bits over the owned places, and its sums by rank in them.
  void merge(RowMessages& messages, Stopwatch& watch) {
    for_peers([&](int peer) {
      const FrameHeader& header = messages.await_header(peer, width_, owned_places(self_));
      require_type(header, FrameType::row_list);
      smallest_ = std::min(smallest_, header.first);
      finite_ = finite_ && !header.non_finite();
    });
    step_.report.seconds_wait += watch.lap();
    const auto lists = take<ReceivedRowList>(world_);
    const auto places = take<Span<const std::uint32_t>>(world_);
    bits_ = take_scratch<std::uint64_t>(bitmap_words(owned_places(self_)));
    clear_bitmap(executor_, bits_);
    for (std::size_t rank = 0; rank < world_; ++rank) {
      if (rank == self_) {
        const RowList list = row_list_in(parts_[self_], pushed_[self_], width_);
        lists[rank] = {list.indices, list.values};
      } else {
        const int peer = static_cast<int>(rank);
        const auto payload = messages.await_payload(peer);
        step_.report.seconds_wait += watch.lap();
        lists[rank] = read_row_list(messages.header_of(peer), payload, own_.rows);
      }
      places[rank] = owned_places_of(rank, lists[rank].indices);
      set_bits(executor_, places[rank], bits_);
      step_.report.seconds_compress += watch.lap();
    }
    before_ = take_scratch<std::uint32_t>(bits_.size());
    pulled_rows_[self_] = count_bits_before(executor_, bits_, before_);
    sums_ = take_scratch<float>(pulled_rows_[self_] * width_);
    fill(executor_, sums_, 0);
    for (std::size_t rank = 0; rank < world_; ++rank) {
      accumulate_rows(executor_, places[rank], lists[rank].values, width_, bits_, before_, true, sums_);
    }
    finite_ = scale(executor_, sums_, 1.0f / static_cast<float>(world_)) && finite_;
    if (observer_ != nullptr) observer_->merged(places, owned_places(self_));
    step_.report.seconds_compress += watch.lap();
  }

  /// The places of `indices`, counted from the first that this rank owns.
  Span<const std::uint32_t> owned_places_of(std::size_t rank, Span<const std::uint32_t> indices) {
    const auto places = take_scratch<std::uint32_t>(indices.size());
    if (!permute_into(executor_, scheme_.places, static_cast<std::uint32_t>(first_place(self_)),
                      static_cast<std::uint32_t>(owned_places(self_)), indices, places)) {
      throw CorruptFrame("rank " + std::to_string(rank) + " pushed rows to rank " + std::to_string(self_) +
                         " that it does not own: do the ranks use one seed?");
    }
    return places;
  }

  /// Sends this rank's result to all and collects everyone's.
  RowMean pull() {
    RowMessages messages(storage_, bucket_, kPullTag, step_);
    for_peers([&](int peer) { messages.expect(peer); });
    Stopwatch watch;
    FrameHeader header = messages.header();
    const auto payload = encode(header);
    const auto sealed = messages.seal(header);
    step_.report.seconds_compress += watch.lap();
    for_peers([&](int peer) { messages.send(peer, sealed, payload); });
    for_peers([&](int peer) {
      const auto owner = static_cast<std::size_t>(peer);
      const FrameHeader& arrived = messages.await_header(peer, width_, owned_places(owner));
      if (scheme_.pull_bitmaps && arrived.type == FrameType::row_bitmap) {
        require_equal(arrived, "places", arrived.count, owned_places(owner));
      } else {
        require_type(arrived, FrameType::row_list);
      }
      require_equal(arrived, "first place", arrived.first, first_place(owner));
      finite_ = finite_ && !arrived.non_finite();
      pulled_rows_[owner] = frame_rows(arrived);
      pulled_bytes_[owner] = arrived.payload_bytes;
    });
    step_.report.seconds_wait += watch.lap();

    const std::size_t total = std::accumulate(pulled_rows_.begin(), pulled_rows_.end(), std::uint64_t{0});
    const auto indices = take_scratch<std::uint32_t>(total);
    const auto values = take_scratch<float>(total * width_);
    std::size_t at = 0;
    for (std::size_t owner = 0; owner < world_; ++owner) {
      const auto part = indices.subspan(at, pulled_rows_[owner]);
      const auto part_values = values.subspan(at * width_, part.size() * width_);
      at += part.size();
      Span<const std::byte> arrived;
      if (owner != self_) {
        arrived = messages.await_payload(static_cast<int>(owner));
        step_.report.seconds_wait += watch.lap();
      }
      const auto decoded = owner == self_
                               ? own_result(part)
                               : decode(messages.header_of(static_cast<int>(owner)), arrived, part);
      copy(executor_, decoded, part_values);
      unpermute(executor_, scheme_.places, static_cast<std::uint32_t>(first_place(owner)), part, part);
      step_.report.seconds_decompress += watch.lap();
    }
    messages.finish();
    step_.report.seconds_wait += watch.lap();
    return {{indices, values, own_.rows, width_}, finite_, scheme_.places.identity, smallest_};
  }

  Span<const std::byte> encode(FrameHeader& header) {
    const std::size_t places = owned_places(self_);
    const std::size_t listed = pulled_rows_[self_];
    const std::uint64_t as_list = row_list_bytes(listed, width_);
    const std::uint64_t as_bitmap = row_bitmap_bytes(places, listed, width_);
    const bool bitmap = scheme_.pull_bitmaps && as_bitmap < as_list;
    header.type = bitmap ? FrameType::row_bitmap : FrameType::row_list;
    header.flags = finite_ ? std::uint16_t{0} : FrameHeader::kNonFinite;
    header.workers = static_cast<std::uint32_t>(world_);
    header.width = static_cast<std::uint32_t>(width_);
    header.first = first_place(self_);
    header.count = bitmap ? places : listed;
    header.payload_bytes = bitmap ? as_bitmap : as_list;
    pulled_bytes_[self_] = header.payload_bytes;
    const auto payload = take<std::byte>(header.payload_bytes);
    if (bitmap) {
      const RowBitmap part = row_bitmap_in(payload, listed, width_, places);
      copy(executor_, Span<const float>(sums_), part.values);
      copy(executor_, as_bytes(Span<const std::uint64_t>(bits_)).first(part.bits.size()), part.bits);
    } else {
      const RowList list = row_list_in(payload, listed, width_);
      list_bits(executor_, bits_, before_, list.indices);
      copy(executor_, Span<const float>(sums_), list.values);
    }
    return payload;
  }

  Span<const float> own_result(Span<std::uint32_t> places) {
    list_bits(executor_, bits_, before_, places);
    return sums_;
  }

  /// Writes the places that an owner's result has and views its values.
  Span<const float> decode(const FrameHeader& header, Span<const std::byte> payload,
                           Span<std::uint32_t> places) {
    if (header.type == FrameType::row_list) {
      const std::size_t owned = owned_places(header.source);
      const ReceivedRowList list = read_row_list(header, payload, owned);
      copy(executor_, list.indices, places);
      return list.values;
    }
    const auto bits = take<std::uint64_t>(bitmap_words(header.count));
    const auto before = take_scratch<std::uint32_t>(bits.size());
    const auto values = read_row_bitmap(header, payload, bits);
    count_bits_before(executor_, bits, before);
    list_bits(executor_, bits, before, places);
    return values;
  }

  static void require_type(const FrameHeader& header, FrameType expected) {
    require_equal(header, "type", static_cast<std::uint64_t>(header.type),
                  static_cast<std::uint64_t>(expected));
  }
  static void require_equal(const FrameHeader& header, const char* field, std::uint64_t got,
                            std::uint64_t expected) {
    if (got == expected) return;
    throw CorruptFrame("frame of rows from rank " + std::to_string(header.source) + " refused: " + field +
                       " is " + std::to_string(got) + ", expected " + std::to_string(expected));
  }

  template <class Body>
  void for_peers(Body body) {
    for (std::size_t shift = 1; shift < world_; ++shift) body(static_cast<int>((self_ + shift) % world_));
  }

  BucketId bucket_;
  const RowSparse& own_;
  bool finite_;
  const PushPullScheme& scheme_;
  RowMessageStorage& storage_;
  Step& step_;
  PushPullObserver* observer_;
  Executor& executor_;
  std::size_t world_;
  std::size_t self_;
  std::size_t width_;
  std::uint64_t smallest_;
  Span<std::size_t> pushed_;
  Span<std::uint64_t> pulled_rows_;
  Span<std::uint64_t> pulled_bytes_;
  Span<Span<std::byte>> parts_;
  // What this rank owns, merged: which places, how many before each word, their means.
  Span<std::uint64_t> bits_;
  Span<std::uint32_t> before_;
  Span<float> sums_;
};

}  // namespace

RowMean push_pull(BucketId bucket, const RowSparse& own, bool finite, const PushPullScheme& scheme,
                  RowMessageStorage& storage, Step& step, PushPullObserver* observer) {
  return Exchange(bucket, own, finite, scheme, storage, step, observer).run();
}

}  // namespace thinwire

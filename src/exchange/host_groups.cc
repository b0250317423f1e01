#include "exchange/host_groups.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "comm/message_tags.h"
#include "core/hashes.h"
#include "core/partition.h"
#include "exchange/frames.h"
#include "exchange/rows.h"
#include "thinwire/errors.h"
#include "wire/crc32c.h"

namespace thinwire {
namespace {

std::vector<int> ranks_inside(const Communicator& all, int ranks_per_host) {
  if (ranks_per_host < 1 || all.size() % ranks_per_host != 0) {
    throw std::invalid_argument("ranks_per_host=" + std::to_string(ranks_per_host) + ": it must divide the " +
                                std::to_string(all.size()) + " ranks, so that every host has as many");
  }
  std::vector<int> ranks(static_cast<std::size_t>(ranks_per_host));
  std::iota(ranks.begin(), ranks.end(), all.rank() / ranks_per_host * ranks_per_host);
  return ranks;
}

std::vector<int> ranks_across(const Communicator& all, int ranks_per_host) {
  std::vector<int> ranks;
  for (int rank = all.rank() % ranks_per_host; rank < all.size(); rank += ranks_per_host) {
    ranks.push_back(rank);
  }
  return ranks;
}

/// Messages among ranks of a host, each with a checksum behind it where the engine may lose bits.
class SealedMessages {
 public:
  /// Of each kind, at most one to each rank.
  SealedMessages(GroupCommunicator& inside, Workspace& workspace, std::size_t kinds)
      : inside_(inside),
        size_(static_cast<std::size_t>(inside.size())),
        pendings_(workspace, 4 * kinds * size_),
        arriving_(workspace.take<Arriving>(kinds * size_)),
        seals_(workspace.take<std::uint32_t>(2 * kinds * size_)) {
    sealed_ = inside.seals();
  }

  void receive(std::size_t peer, Span<std::byte> bytes) {
    if (bytes.empty()) return;
    pendings_.push(inside_.receive(static_cast<int>(peer), kHostTag, bytes));
    if (!sealed_) return;
    const auto seal = seals_.subspan(sealed_messages_++, 1);
    pendings_.push(inside_.receive(static_cast<int>(peer), kHostTag, as_writable_bytes(seal)));
    arriving_[arrivals_++] = {bytes.data(), bytes.size(), static_cast<int>(peer), seal.data()};
  }
  void send(std::size_t peer, Span<const std::byte> bytes) {
    if (bytes.empty()) return;
    pendings_.push(inside_.send(static_cast<int>(peer), kHostTag, bytes));
    if (!sealed_) return;
    const auto seal = seals_.subspan(sealed_messages_++, 1);
    seal[0] = crc32c(bytes);
    pendings_.push(
        inside_.send_guard(static_cast<int>(peer), kHostTag, as_bytes(Span<const std::uint32_t>(seal))));
  }
  /// Until all is sent and has come. Throws CorruptFrame for what changed on the way.
  void finish() {
    pendings_.wait_all();
    for (const Arriving& one : arriving_.first(arrivals_)) {
      inside_.check_seal(one.peer, {one.bytes, one.size}, *one.seal);
    }
  }

 private:
  struct Arriving {
    const std::byte* bytes;
    std::size_t size;
    int peer;
    const std::uint32_t* seal;
  };

  GroupCommunicator& inside_;
  std::size_t size_;
  Pendings pendings_;
  Span<Arriving> arriving_;
  Span<std::uint32_t> seals_;
  std::size_t arrivals_ = 0;
  std::size_t sealed_messages_ = 0;
  bool sealed_ = false;
};

}  // namespace

HostGroups::HostGroups(Communicator& all, int ranks_per_host)
    : all_(all),
      inside_(all, ranks_inside(all, ranks_per_host), GroupCommunicator::Lanes::at_once),
      across_(all, ranks_across(all, ranks_per_host), GroupCommunicator::Lanes::take_turns) {}

std::vector<std::size_t> HostGroups::parts_of_rows(std::size_t rows) const {
  const auto parts = static_cast<std::size_t>(inside_.size());
  std::vector<std::size_t> begins;
  for (std::size_t part = 0; part <= parts; ++part) begins.push_back(part_begin(rows, parts, part));
  return begins;
}

namespace {

/// Fewer elements are not worth two messages.
constexpr std::size_t kLeastCut = 1 << 14;

/// A parameter as a matrix that is cut into pieces: of whole rows or of whole columns, the longer side.
struct Grid {
  std::size_t rows;
  std::size_t columns;
  std::size_t pieces;
  bool by_columns;
};

Grid grid_of(const Parameter& parameter, std::size_t places) {
  if (parameter.rows <= 1) {
    const std::size_t pieces = parameter.elements < kLeastCut ? 1 : places;
    return {parameter.elements, 1, pieces, false};
  }
  const std::size_t rows = parameter.rows;
  const std::size_t columns = parameter.elements / rows;
  const std::size_t longer = std::max(rows, columns);
  const std::size_t shorter = std::max<std::size_t>(1, std::min(rows, columns));
  const std::size_t pieces =
      parameter.elements < kLeastCut ? 1 : std::clamp<std::size_t>(longer / shorter, 1, places);
  return {rows, columns, pieces, columns > rows};
}

/// Adds a piece of the parameter that begins at `begin` to a part of `size` elements so far.
void add_slices(const Grid& grid, std::size_t piece, std::size_t begin, std::size_t size,
                std::vector<VectorChunk>& slices) {
  if (!grid.by_columns || grid.pieces == 1) {
    const std::size_t from = part_begin(grid.rows, grid.pieces, piece) * grid.columns;
    const std::size_t count = part_size(grid.rows, grid.pieces, piece) * grid.columns;
    if (count != 0) slices.push_back({begin + from, count, size});
    return;
  }
  const std::size_t from = part_begin(grid.columns, grid.pieces, piece);
  const std::size_t count = part_size(grid.columns, grid.pieces, piece);
  for (std::size_t row = 0; row < grid.rows; ++row) {
    slices.push_back({begin + row * grid.columns + from, count, size + row * count});
  }
}

}  // namespace

HostGroups::Parts HostGroups::parts(const BucketLayout& parameters) const {
  const auto places = static_cast<std::size_t>(inside_.size());
  Parts parts;
  parts.slices.resize(places);
  std::vector<std::size_t> sizes(places);
  std::size_t begin = 0;
  for (const Parameter& one : parameters) {
    const Grid grid = grid_of(one, places);
    // What is cut for all places is so as the rows of a table are. The rest is spread by names.
    const std::size_t first =
        grid.pieces == places ? 0 : content_hash(as_bytes(Span<const char>(one.name)), 0) % places;
    for (std::size_t piece = 0; piece < grid.pieces; ++piece) {
      const std::size_t place = (first + piece) % places;
      const bool whole = grid.pieces == 1;
      const std::size_t count = grid.by_columns && !whole
                                    ? part_size(grid.columns, grid.pieces, piece) * grid.rows
                                    : part_size(grid.rows, grid.pieces, piece) * grid.columns;
      if (count == 0) continue;
      add_slices(grid, piece, begin, sizes[place], parts.slices[place]);
      sizes[place] += count;
      if (place != this->place()) continue;
      const std::size_t rows = grid.by_columns ? grid.rows : part_size(grid.rows, grid.pieces, piece);
      parts.own.push_back({one.name, count, whole ? one.rows : one.rows > 1 ? rows : 0});
    }
    begin += one.elements;
  }
  parts.begins.push_back(0);
  for (const std::size_t size : sizes) parts.begins.push_back(parts.begins.back() + size);
  return parts;
}

bool HostGroups::all_say(Workspace& workspace, bool good) {
  const auto mine = static_cast<std::byte>(good ? 1 : 0);
  const auto all = workspace.take<std::byte>(static_cast<std::size_t>(inside_.size()));
  inside_.all_gather(Span<const std::byte>(&mine, 1), all);
  return std::ranges::all_of(all, [](std::byte one) { return one == std::byte{1}; });
}

void HostGroups::reduce(Executor& executor, Workspace& workspace, Span<float> gradient,
                        const std::vector<std::size_t>& begins) {
  const auto size = static_cast<std::size_t>(inside_.size());
  const auto part_of = [&](std::size_t peer) {
    return gradient.subspan(begins[peer], begins[peer + 1] - begins[peer]);
  };
  const Span<float> own = part_of(place());
  const auto arrived = workspace.take<float>(own.size() * (size - 1));
  SealedMessages messages(inside_, workspace, 1);
  for (std::size_t shift = 1; shift < size; ++shift) {
    messages.receive((place() + size - shift) % size,
                     as_writable_bytes(arrived.subspan((shift - 1) * own.size(), own.size())));
  }
  for (std::size_t shift = 1; shift < size; ++shift) {
    const std::size_t peer = (place() + shift) % size;
    messages.send(peer, as_bytes(Span<const float>(part_of(peer))));
  }
  messages.finish();
  for (std::size_t shift = 1; shift < size; ++shift) {
    add(executor, own, Span<const float>(arrived.subspan((shift - 1) * own.size(), own.size())));
  }
  const bool finite = all_say(workspace, scale(executor, own, 1 / static_cast<float>(size)));
  if (!finite && !own.empty()) own[0] = std::numeric_limits<float>::quiet_NaN();
}

void HostGroups::gather(Workspace& workspace, Span<float> gradient, const std::vector<std::size_t>& begins) {
  const auto bytes = workspace.take<std::size_t>(begins.size() - 1);
  for (std::size_t part = 0; part < bytes.size(); ++part) {
    bytes[part] = (begins[part + 1] - begins[part]) * sizeof(float);
  }
  const Span<const float> own = gradient.subspan(begins[place()], begins[place() + 1] - begins[place()]);
  inside_.all_gather_v(as_bytes(own), as_writable_bytes(gradient), bytes);
}

/// Every rank's counts one after the other, as many as this rank's.
Span<std::uint32_t> HostGroups::counts_of_all(Workspace& workspace, Span<const std::uint32_t> mine) {
  const auto all = workspace.take<std::uint32_t>(mine.size() * static_cast<std::size_t>(inside_.size()));
  inside_.all_gather(as_bytes(mine), as_writable_bytes(all));
  return all;
}

namespace {

/// Throws CorruptFrame unless indices, of this rank of all, are ascending, distinct and within [begin, end).
void check_indices(Span<const std::uint32_t> indices, std::size_t begin, std::size_t end, int rank) {
  std::size_t least = begin;
  for (const std::uint32_t index : indices) {
    if (index < least || index >= end) {
      throw CorruptFrame("rows refused: rank " + std::to_string(rank) + " sent row " + std::to_string(index) +
                         ", expected " + std::to_string(least) + " to " + std::to_string(end) +
                         " less 1: bytes changed on the way");
    }
    least = index + std::size_t{1};
  }
}

void check_count(std::size_t count, std::size_t most, int rank) {
  if (count <= most) return;
  throw CorruptFrame("rows refused: rank " + std::to_string(rank) + " announced " + std::to_string(count) +
                     " rows where there are " + std::to_string(most) + ": bytes changed on the way");
}

}  // namespace

/// This rank's rows go to the ranks of their parts; theirs of this part come, in the order of ranks and
/// counted in the whole table.
RowSparse HostGroups::scatter_rows(Workspace& workspace, const RowSparse& gradient,
                                   const std::vector<std::size_t>& begins) {
  const auto size = static_cast<std::size_t>(inside_.size());
  const std::size_t width = gradient.width;
  const std::size_t first = begins[place()];
  const std::size_t last = begins[place() + 1];
  // Those of one part lie side by side.
  const auto all = gradient.row_indices;
  const auto cuts = workspace.take<std::size_t>(size + 1);
  std::ranges::transform(begins, cuts.data(), [&](std::size_t begin) {
    return static_cast<std::size_t>(std::ranges::lower_bound(all, begin) - all.begin());
  });
  const auto mine = workspace.take<std::uint32_t>(size);
  for (std::size_t part = 0; part < size; ++part) {
    mine[part] = static_cast<std::uint32_t>(cuts[part + 1] - cuts[part]);
  }
  const auto counts = counts_of_all(workspace, Span<const std::uint32_t>(mine));
  const auto from = workspace.take<std::size_t>(size + 1);
  from[0] = 0;
  for (std::size_t peer = 0; peer < size; ++peer) {
    const std::size_t count = counts[peer * size + place()];
    check_count(count, last - first, inside_.number(static_cast<int>(peer)));
    from[peer + 1] = from[peer] + count;
  }
  const auto indices = workspace.take<std::uint32_t>(from[size]);
  const auto values = workspace.take<float>(from[size] * width);
  const auto of = [&](std::size_t peer) { return indices.subspan(from[peer], from[peer + 1] - from[peer]); };
  SealedMessages messages(inside_, workspace, 2);
  for (std::size_t shift = 1; shift < size; ++shift) {
    const std::size_t peer = (place() + size - shift) % size;
    messages.receive(peer, as_writable_bytes(of(peer)));
    messages.receive(peer, as_writable_bytes(values.subspan(from[peer] * width, of(peer).size() * width)));
  }
  for (std::size_t shift = 0; shift < size; ++shift) {
    const std::size_t peer = (place() + shift) % size;
    const auto own = all.subspan(cuts[peer], mine[peer]);
    const auto own_values = gradient.values.subspan(cuts[peer] * width, mine[peer] * width);
    if (shift == 0) {
      std::ranges::copy(own, of(peer).data());
      std::ranges::copy(own_values, values.data() + from[peer] * width);
    } else {
      messages.send(peer, as_bytes(own));
      messages.send(peer, as_bytes(own_values));
    }
  }
  messages.finish();
  for (std::size_t peer = 0; peer < size; ++peer)
    check_indices(of(peer), first, last, inside_.number(static_cast<int>(peer)));
  return {indices, values, begins.back(), width};
}

RowSparse HostGroups::reduce_rows(Executor& executor, Workspace& workspace, const RowSparse& gradient,
                                  const std::vector<std::size_t>& begins) {
  const std::size_t first = begins[place()];
  const RowSparse come = scatter_rows(workspace, gradient, begins);
  const auto indices = workspace.take<std::uint32_t>(come.size());
  std::ranges::transform(come.row_indices, indices.data(),
                         [first](std::uint32_t index) { return index - static_cast<std::uint32_t>(first); });
  const RowSparse part{indices, come.values, begins[place() + 1] - first, come.width};
  const RowSparse merged = merge_repeated_rows(executor, workspace, part);
  const auto mean = workspace.take<float>(merged.values.size());
  copy<float>(executor, merged.values, mean);
  if (!all_say(workspace, scale(executor, mean, 1 / static_cast<float>(inside_.size())))) {
    return row_of_nan(workspace, part);
  }
  return {merged.row_indices, mean, part.rows, part.width};
}

RowSparse HostGroups::gather_rows(Workspace& workspace, const RowSparse& mean,
                                  const std::vector<std::size_t>& begins) {
  const auto size = static_cast<std::size_t>(inside_.size());
  const auto mine = static_cast<std::uint32_t>(mean.size());
  const auto counts = counts_of_all(workspace, Span<const std::uint32_t>(&mine, 1));
  const auto index_bytes = workspace.take<std::size_t>(size);
  const auto value_bytes = workspace.take<std::size_t>(size);
  const auto from = workspace.take<std::size_t>(size + 1);
  from[0] = 0;
  for (std::size_t peer = 0; peer < size; ++peer) {
    const int rank = inside_.number(static_cast<int>(peer));
    check_count(counts[peer], begins[peer + 1] - begins[peer], rank);
    from[peer + 1] = from[peer] + counts[peer];
    index_bytes[peer] = counts[peer] * sizeof(std::uint32_t);
    value_bytes[peer] = counts[peer] * mean.width * sizeof(float);
  }
  const auto indices = workspace.take<std::uint32_t>(from[size]);
  const auto values = workspace.take<float>(from[size] * mean.width);
  const auto own = indices.subspan(from[place()], mean.size());
  std::ranges::transform(mean.row_indices, own.data(), [&](std::uint32_t index) {
    return index + static_cast<std::uint32_t>(begins[place()]);
  });
  inside_.all_gather_v(as_bytes(Span<const std::uint32_t>(own)), as_writable_bytes(indices), index_bytes);
  inside_.all_gather_v(as_bytes(mean.values), as_writable_bytes(values), value_bytes);
  for (std::size_t peer = 0; peer < size; ++peer) {
    check_indices(indices.subspan(from[peer], counts[peer]), begins[peer], begins[peer + 1],
                  inside_.number(static_cast<int>(peer)));
  }
  return {indices, values, begins.back(), mean.width};
}

}  // namespace thinwire

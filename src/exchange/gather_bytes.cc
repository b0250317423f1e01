#include "exchange/gather_bytes.h"

#include <numeric>

#include "thinwire/errors.h"

namespace thinwire {

std::vector<std::string> gather_bytes(Communicator& communicator, const ExchangeCall& call,
                                      std::string_view mine, std::size_t longest) {
  Exchange exchange(communicator, call);
  const auto world = static_cast<std::size_t>(communicator.size());
  const std::uint64_t own = mine.size();
  std::vector<std::uint64_t> lengths(world);
  communicator.all_gather(as_bytes(Span<const std::uint64_t>(&own, 1)),
                          as_writable_bytes(Span<std::uint64_t>(lengths)));
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (lengths[rank] <= longest) continue;
    throw CorruptFrame("rank " + std::to_string(rank) + " announces " + std::to_string(lengths[rank]) +
                       " bytes (" + std::string(call.kind) + "), and " + std::to_string(longest) +
                       " are the most that there can be");
  }
  const std::vector<std::size_t> counts(lengths.begin(), lengths.end());
  std::vector<std::byte> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  communicator.all_gather_v(as_bytes(Span<const char>(mine.data(), mine.size())), Span<std::byte>(all),
                            counts);
  exchange.finish();
  std::vector<std::string> parts;
  const char* at = reinterpret_cast<const char*>(all.data());
  for (const std::size_t count : counts) {
    parts.emplace_back(at, count);
    at += count;
  }
  return parts;
}

}  // namespace thinwire

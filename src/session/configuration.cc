#include "session/configuration.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string_view>

#include "comm/fault_note.h"
#include "core/hashes.h"
#include "thinwire/version.h"

namespace thinwire {
namespace {

constexpr int kFields = 8;
constexpr std::size_t kSpec = 1;  // its place among kNames
/// Of one rank's texts together. What would be longer ends there: hashes decide, texts are for the message.
constexpr std::size_t kMostTextBytes = std::size_t{1} << 24;
constexpr std::array<const char*, kFields> kNames = {
    "thinwire's version", "spec",         "seed", "step", "bucket sizes", "parameter shapes",
    "parameter names",    "configuration"};

/// What travels: a hash of each field, which decides, and, where they differ, the texts, for the message.
using Hashes = std::array<std::uint64_t, kFields>;
using Fields = std::array<std::string, kFields>;

std::uint64_t hash_of(std::string_view text) {
  Fnv1a hash;
  hash.add(text.data(), text.size());
  return hash.value();
}

std::string text_of(const std::vector<BucketLayout>& buckets) {
  std::string text;
  for (const auto& layout : buckets) {
    std::size_t elements = 0;
    for (const auto& parameter : layout) elements += parameter.elements;
    text += (text.empty() ? "" : " ") + std::to_string(elements);
  }
  return text;
}

/// What systems cut buckets by: each parameter's elements, with "/rows" where they are known.
std::string shapes_of(const std::vector<BucketLayout>& buckets) {
  std::string text;
  for (const auto& layout : buckets) {
    for (const auto& parameter : layout) {
      text += (text.empty() ? "" : " ") + std::to_string(parameter.elements);
      if (parameter.rows != 0) text += "/" + std::to_string(parameter.rows);
    }
  }
  return text;
}

/// Which parameters are in which bucket, in their order.
std::string names_of(const std::vector<BucketLayout>& buckets) {
  std::string text;
  for (const auto& layout : buckets) {
    text += text.empty() ? "" : " |";
    for (const auto& parameter : layout) text += (text.empty() ? "" : " ") + parameter.name;
  }
  return text;
}

Fields fields_of(const Communicator& communicator, const Configuration& configuration) {
  return {kVersion,
          configuration.spec,
          std::to_string(configuration.seed),
          std::to_string(configuration.step),
          text_of(configuration.buckets),
          shapes_of(configuration.buckets),
          names_of(configuration.buckets),
          configuration.other + (communicator.checked_sums() ? " checked sums" : "")};
}

/// The fields of rank `root`, on all ranks. They come from another rank: lengths are bounded, and only
/// printable characters are shown. Collective.
Fields fields_from(Communicator& communicator, const Fields& mine, int root) {
  std::string joined;
  for (const auto& field : mine) joined += field + '\n';
  std::uint64_t length = std::min(joined.size(), kMostTextBytes);
  communicator.broadcast(as_writable_bytes(Span<std::uint64_t>(&length, 1)), root);
  joined.resize(std::min<std::uint64_t>(length, kMostTextBytes));
  communicator.broadcast(as_writable_bytes(Span<char>(joined.data(), joined.size())), root);
  Fields fields;
  std::size_t begin = 0;
  for (auto& field : fields) {
    const std::size_t end = std::min(joined.find('\n', begin), joined.size());
    field = joined.substr(begin, end - begin);
    std::ranges::replace_if(
        field, [](char c) { return c < ' ' || c > '~'; }, '?');
    begin = std::min(end + 1, joined.size());
  }
  return fields;
}

/// "ONE against OTHER", from the word, or item of a list, on in which the texts first differ, shortened. Of
/// what both have before the difference the middle is left out where all is too long.
std::string difference(const std::string& one, const std::string& other) {
  constexpr std::size_t kShown = 60;
  const auto limit = std::min(one.size(), other.size());
  std::size_t place = 0;
  while (place < limit && one[place] == other[place]) ++place;
  std::size_t at = place;
  while (at > 0 && one[at - 1] != ' ' && one[at - 1] != ',') --at;
  // A spec is one word: from the option on that differs, behind the system's name.
  std::size_t option = place;
  while (option > at && one[option - 1] != ':' && one[option - 1] != '+') --option;
  const std::size_t name = std::min(one.find_first_of(":+", at), option);
  auto cut = [&](const std::string& text) {
    std::string shown = text.substr(at);
    if (shown.size() > kShown && name < option) {
      shown = text.substr(at, name - at) + (option - name > 1 ? ":..." : "") + text.substr(option - 1);
    }
    return shown.size() > kShown ? shown.substr(0, kShown) + "..." : shown;
  };
  return cut(one) + " against " + cut(other);
}

/// The same of specs with all options, shown without what stands at its default.
std::string difference_of_specs(const std::string& one, const std::string& other,
                                const Configuration& configuration) {
  const std::string shown = configuration.shown_spec(one);
  const std::string shown_other = configuration.shown_spec(other);
  // Ranks may have added systems of the same name with other defaults.
  if (shown == shown_other) return difference(one, other);
  // Whoever gave no system for rows shall not read of it.
  constexpr std::string_view kBehindRows = ",dense=";
  const auto end = shown.find(kBehindRows);
  const bool same_rows =
      end != std::string::npos && shown.starts_with("rows=") &&
      shown_other.compare(0, end + kBehindRows.size(), shown, 0, end + kBehindRows.size()) == 0;
  const std::size_t from = same_rows ? end + kBehindRows.size() : 0;
  return difference(shown.substr(from), shown_other.substr(from));
}

}  // namespace

std::uint64_t hash_of_names(const BucketLayout& parameters) {
  std::string text;
  for (const auto& parameter : parameters) text += parameter.name + '\n';
  return hash_of(text);
}

void compare_configurations(Communicator& communicator, const Configuration& configuration) {
  const Fields mine = fields_of(communicator, configuration);
  Hashes hashes{};
  std::transform(mine.begin(), mine.end(), hashes.begin(),
                 [](const std::string& text) { return hash_of(text); });
  std::vector<Hashes> all(static_cast<std::size_t>(communicator.size()));
  // Its messages have checksums. Without them a rank that got a changed bit would ask the others for texts,
  // and those know of no difference.
  Exchange exchange(communicator,
                    {.step = configuration.step, .kind = "start", .occasion = configuration.occasion});
  communicator.all_gather(as_bytes(Span<const Hashes>(&hashes, 1)), as_writable_bytes(Span<Hashes>(all)));
  // Every rank finds the same one, so all take part in what follows.
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const Fields expected = fields_from(communicator, mine, 0);
    const Fields found = fields_from(communicator, mine, static_cast<int>(rank));
    communicator.barrier();  // nobody leaves with the error while others still wait for their texts
    std::string message =
        "ranks are configured differently: rank " + std::to_string(rank) + " differs from rank 0 in";
    const char* separator = " ";
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      if (all[rank][i] == all[0][i]) continue;
      message += separator + std::string(kNames[i]) + " (" +
                 (i == kSpec ? difference_of_specs(found[i], expected[i], configuration)
                             : difference(found[i], expected[i])) +
                 ")";
      separator = ", ";
    }
    throw std::runtime_error(message + "; start all ranks alike");
  }
  exchange.finish();
}

std::optional<std::string> replica_difference(const std::vector<std::uint64_t>& hashes) {
  struct Holders {
    std::uint64_t hash;
    std::vector<int> ranks;
  };
  std::vector<Holders> sets;  // in order of their first ranks
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    auto set = std::ranges::find(sets, hashes[rank], &Holders::hash);
    if (set == sets.end()) set = sets.insert(sets.end(), Holders{hashes[rank], {}});
    set->ranks.push_back(static_cast<int>(rank));
  }
  if (sets.size() < 2) return std::nullopt;
  std::ranges::stable_sort(sets, std::greater(), [](const Holders& one) { return one.ranks.size(); });
  if (sets[0].ranks.size() == sets[1].ranks.size()) {
    std::string all;
    for (const Holders& set : sets) all += (all.empty() ? "" : ", ") + name_ranks(set.ranks);
    return "no set of parameters is that of most ranks: " + all + " hold different ones";
  }
  std::vector<int> others;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != sets[0].hash) others.push_back(static_cast<int>(rank));
  }
  return name_ranks(others) + (others.size() == 1 ? " holds" : " hold") +
         " other parameters than the rest of " + std::to_string(hashes.size()) + " ranks";
}

}  // namespace thinwire

#include "session/configuration.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "thinwire/version.h"

namespace thinwire {
namespace {

constexpr std::size_t kTextBytes = 1024;
constexpr int kFields = 7;
constexpr std::array<const char*, kFields> kNames = {
    "thinwire's version", "spec", "seed", "step", "bucket sizes", "parameter shapes", "configuration"};

/// What travels: a hash of each field, which decides, and, where they differ, as much of the texts as fits,
/// for the message.
using Hashes = std::array<std::uint64_t, kFields>;
using Texts = std::array<std::array<char, kTextBytes>, kFields>;

struct Record {
  Hashes hashes{};
  Texts texts{};
};

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
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

Record record_of(const Configuration& configuration) {
  const std::array<std::string, kFields> fields = {kVersion,
                                                   configuration.spec,
                                                   std::to_string(configuration.seed),
                                                   std::to_string(configuration.step),
                                                   text_of(configuration.buckets),
                                                   shapes_of(configuration.buckets),
                                                   configuration.other};
  Record record;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    record.hashes[i] = hash_of(fields[i]);
    fields[i].copy(record.texts[i].data(), kTextBytes - 1);
  }
  return record;
}

/// Texts come from another rank: they end where the field ends, and only printable characters are shown.
std::string printable(const std::array<char, kTextBytes>& text) {
  std::string result(text.begin(), std::find(text.begin(), text.end(), '\0'));
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

/// "ONE against OTHER", from the word, or item of a list, on in which the texts first differ, shortened.
std::string difference(const std::string& one, const std::string& other) {
  constexpr std::size_t kShown = 60;
  const auto limit = std::min(one.size(), other.size());
  std::size_t at = 0;
  while (at < limit && one[at] == other[at]) ++at;
  while (at > 0 && one[at - 1] != ' ' && one[at - 1] != ',') --at;
  auto cut = [at](const std::string& text) {
    return text.size() - at > kShown ? text.substr(at, kShown) + "..." : text.substr(at);
  };
  return cut(one) + " against " + cut(other);
}

}  // namespace

void compare_configurations(Communicator& communicator, const Configuration& configuration) {
  const Record mine = record_of(configuration);
  std::vector<Hashes> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(as_bytes(Span<const Hashes>(&mine.hashes, 1)),
                          as_writable_bytes(Span<Hashes>(all)));
  // Every rank finds the same one, so all take part in what follows.
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::array<Texts, 2> texts = {mine.texts, mine.texts};
    communicator.broadcast(as_writable_bytes(Span<Texts>(&texts[0], 1)), 0);
    communicator.broadcast(as_writable_bytes(Span<Texts>(&texts[1], 1)), static_cast<int>(rank));
    communicator.barrier();  // nobody leaves with the error while others still wait for their texts
    std::string message =
        "ranks are configured differently: rank " + std::to_string(rank) + " differs from rank 0 in";
    const char* separator = " ";
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      if (all[rank][i] == all[0][i]) continue;
      message += separator + std::string(kNames[i]) + " (" +
                 difference(printable(texts[1][i]), printable(texts[0][i])) + ")";
      separator = ", ";
    }
    throw std::runtime_error(message + "; start all ranks alike");
  }
}

}  // namespace thinwire

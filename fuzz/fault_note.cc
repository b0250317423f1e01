// Any text: what is no note becomes nothing, and what is one names ranks of this world alone. Following any
// notes ends, and finds each silent rank once.

#include "comm/fault_note.h"

#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  using thinwire::fuzz::require;
  fuzz::Input input(data, size);
  const int world = 1 + input.take<std::uint8_t>() % 16;
  const std::string text = input.rest();
  std::vector<std::optional<FaultNote>> notes;
  // One line for each rank, as far as they go.
  for (std::size_t at = 0; notes.size() < static_cast<std::size_t>(world);) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    notes.push_back(FaultNote::parse(text.substr(at, end - at), world));
    at = std::min(end + 1, text.size());
    if (!notes.back()) continue;
    for (const int rank : notes.back()->awaited) require(rank >= 0 && rank < world);
    const auto again = FaultNote::parse(notes.back()->encode(), world);
    require(again && again->state == notes.back()->state && again->beat == notes.back()->beat &&
            again->awaited == notes.back()->awaited);
  }
  const ChainEnds ends =
      follow_chain(0, world, {}, [&](int rank) { return notes[static_cast<std::size_t>(rank)]; });
  std::vector<int> found = ends.silent;
  found.insert(found.end(), ends.busy.begin(), ends.busy.end());
  std::sort(found.begin(), found.end());
  require(std::adjacent_find(found.begin(), found.end()) == found.end());
  for (const int rank : found) require(rank > 0 && rank < world);
  for (const int rank : ends.silent) require(!notes[static_cast<std::size_t>(rank)]);
  return 0;
}

// Any text under "culprit": it blames nobody or ranks of this world, in one line of ASCII. What a verdict of
// such ranks is written as is read as the same verdict.

#include "comm/verdict.h"

#include <algorithm>
#include <string>

#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  using thinwire::fuzz::require;
  fuzz::Input input(data, size);
  const int world = 1 + input.take<std::uint8_t>() % 16;
  const int rank = input.take<std::uint8_t>() % world;
  const std::string text = input.rest();
  const Verdict verdict = adopted_verdict(text, rank, world);
  for (const int culprit : verdict.culprits) require(culprit >= 0 && culprit < world);
  require(std::ranges::all_of(verdict.reason, [](char c) { return c >= ' ' && c <= '~'; }));
  require(!verdict.culprits.empty() || (!verdict.alive && !verdict.failed));
  require(!blames_the_gone(text, world) || (!verdict.culprits.empty() && !verdict.alive && !verdict.failed));
  const Verdict again = adopted_verdict(encode_verdict(verdict), rank, world);
  require(again.culprits == verdict.culprits && again.alive == verdict.alive &&
          again.failed == verdict.failed);
  const bool is_told = verdict.culprits.empty() || verdict.failed;
  require(!is_told || again.reason == verdict.reason);
  return 0;
}

#include "comm/verdict.h"

#include <algorithm>

#include "comm/fault_note.h"

namespace thinwire {
namespace {

/// In front of the ranks of a verdict whose processes live; the reason follows behind kReason.
constexpr char kAlive = '+';
/// In front of a reason that blames nobody.
constexpr char kNobody = '=';
/// In front of ranks that have failed; their reason follows behind kReason.
constexpr char kFailed = '!';
constexpr char kReason = ':';
/// Longer than any reason of ours: what comes from the store may be anything.
constexpr std::size_t kLongestReason = 1000;

std::string printable(std::string reason) {
  reason.resize(std::min(reason.size(), kLongestReason));
  std::replace_if(
      reason.begin(), reason.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return reason;
}

}  // namespace

const char* const kAway =
    "its process is alive, but busy with something else: give ranks a longer deadline where one evaluates or "
    "saves by itself, and let all make the same calls";

/// Whoever concluded first has concluded for all, so that all name the same ranks.
Verdict adopted_verdict(const std::string& text, int rank, int ranks) {
  if (text.starts_with(kNobody)) return {{}, printable(text.substr(1))};
  const bool failed = text.starts_with(kFailed);
  const bool alive = text.starts_with(kAlive);
  const std::size_t ranks_at = failed || alive ? 1 : 0;
  const std::size_t reason_at = ranks_at == 0 ? text.size() : std::min(text.find(kReason), text.size());
  const std::string why = printable(text.substr(std::min(reason_at + 1, text.size())));
  const std::vector<int> culprits = parse_ranks(text.substr(ranks_at, reason_at - ranks_at), ranks);
  if (culprits.empty()) return {{}, "what stands in the rendezvous store is no verdict of this build"};
  if (failed) return {.culprits = culprits, .reason = why, .failed = true};
  const bool me = std::ranges::find(culprits, rank) != culprits.end();
  std::string reason = "other ranks await it too and have heard nothing";
  if (me) {
    reason = "the others gave up on this rank: it was awaited and silent for too long";
    if (alive) reason = "the others gave up on this rank: it was awaited and did not come in time";
  } else if (alive) {
    reason = reason_at < text.size() ? why : kAway;
  }
  return {culprits, reason, alive};
}

std::string encode_verdict(const Verdict& verdict) {
  if (verdict.culprits.empty()) return kNobody + verdict.reason;
  if (verdict.failed) return kFailed + join_ranks(verdict.culprits, ",") + kReason + verdict.reason;
  if (verdict.alive) return kAlive + join_ranks(verdict.culprits, ",") + kReason + verdict.reason;
  return join_ranks(verdict.culprits, ",");
}

bool blames_the_gone(const std::string& text, int ranks) {
  return !text.empty() && text == join_ranks(parse_ranks(text, ranks), ",");
}

}  // namespace thinwire

#pragma once
// What an inquiry ends with, and how ranks tell each other by a text in the store.

#include <string>
#include <vector>

namespace thinwire {

/// The end of an inquiry.
struct Verdict {
  std::vector<int> culprits;  ///< Empty: nobody is to blame, as ranks wait for each other.
  std::string reason;         ///< Half a sentence for the error message.
  bool alive = false;         ///< The culprits' processes live: they have not come, or not in time.
  bool failed = false;        ///< The culprits have said themselves that they end, and why.

  bool says_something() const { return !culprits.empty() || !reason.empty(); }
};

/// Why a rank that lives is blamed where nothing else is known.
extern const char* const kAway;

std::string encode_verdict(const Verdict& verdict);

/// What `rank` of `ranks` reads in what another one has encoded, or in any text: then nobody is blamed, or
/// ranks of this world, and the reason is one line of ASCII.
Verdict adopted_verdict(const std::string& text, int rank, int ranks);

/// Of an encoded verdict, or any text: whether its culprits are gone or silent.
bool blames_the_gone(const std::string& text, int ranks);

}  // namespace thinwire

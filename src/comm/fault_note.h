#pragma once
// What ranks tell each other when a communicator gives up, and what follows from it. How the notes travel is
// the engine's affair: through a rendezvous store (fault_board.h) or as messages (mpi.cc).

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace thinwire {

inline std::string join_ranks(const std::vector<int>& ranks, const char* separator) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : separator) + std::to_string(rank);
  return text;
}

/// "rank 1", "ranks 1 and 3", "ranks 0, 1 and 3".
inline std::string name_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return "rank " + std::to_string(ranks[0]);
  return "ranks " + join_ranks({ranks.begin(), ranks.end() - 1}, ", ") + " and " +
         std::to_string(ranks.back());
}

/// "1,3" as join_ranks writes it; what is no list of ranks of this world becomes empty.
inline std::vector<int> parse_ranks(const std::string& text, int size) {
  std::vector<int> ranks;
  std::istringstream in(text);
  for (int rank = 0; in >> rank; in.ignore(1)) {
    if (rank < 0 || rank >= size) return {};
    ranks.push_back(rank);
  }
  return ranks;
}

/// What one rank says of itself.
struct FaultNote {
  enum class State {
    busy,     ///< Alive, and waits for nobody: it computes, or does something else.
    waiting,  ///< Alive, and has been waiting for a while.
    failed,   ///< It has given up, and asks why. Final once it has "done/".
  };

  State state = State::busy;
  std::vector<int> awaited;  ///< Empty: cannot be told, so any other rank. Means nothing when busy.
  std::uint64_t beat = 0;    ///< Grows while the process lives, until it knows why it has failed.

  std::string encode() const {
    static constexpr const char* kWords[] = {"busy ", "waiting ", "failed "};
    return kWords[static_cast<int>(state)] + std::to_string(beat) + " " + join_ranks(awaited, ",");
  }

  /// Nothing when the text is no note.
  static std::optional<FaultNote> parse(const std::string& text, int size) {
    std::istringstream in(text);
    std::string word;
    std::string ranks;
    FaultNote note;
    if (!(in >> word >> note.beat)) return std::nullopt;
    if (word == "waiting") {
      note.state = State::waiting;
    } else if (word == "failed") {
      note.state = State::failed;
    } else if (word != "busy") {
      return std::nullopt;
    }
    in >> ranks;
    note.awaited = parse_ranks(ranks, size);
    return note;
  }
};

/// Where the chain of who awaits whom ends.
struct ChainEnds {
  std::vector<int> silent;  ///< Ranks without a note.
  std::vector<int> busy;    ///< Ranks that live and wait for nobody.
};

/// The ranks that are reached from `awaited` (empty: all but self) by following notes; note(r) is what rank r
/// says, nothing where it is silent. Each rank is asked about once. Nearest first, never self. Both lists are
/// empty when the chain only leads to waiting ranks.
template <class Note>
ChainEnds follow_chain(int self, int size, const std::vector<int>& awaited, Note note) {
  std::vector<int> everyone;
  std::vector<bool> seen(static_cast<std::size_t>(size), false);
  std::deque<int> next;
  const auto follow = [&](const std::vector<int>& ranks) {
    for (int rank = static_cast<int>(everyone.size()); ranks.empty() && rank < size; ++rank)
      everyone.push_back(rank);
    for (const int rank : ranks.empty() ? everyone : ranks) {
      if (rank == self || seen[static_cast<std::size_t>(rank)]) continue;
      seen[static_cast<std::size_t>(rank)] = true;
      next.push_back(rank);
    }
  };
  ChainEnds ends;
  for (follow(awaited); !next.empty(); next.pop_front()) {
    const int rank = next.front();
    const std::optional<FaultNote> said = note(rank);
    if (!said) {
      ends.silent.push_back(rank);
    } else if (said->state == FaultNote::State::busy) {
      ends.busy.push_back(rank);
    } else {
      follow(said->awaited);
    }
  }
  return ends;
}

/// Whom a rank awaited in a collective of the engine's own, which does not say: the ranks whose connections
/// are broken, and its neighbours in the ring. Some may be broken only because their ranks have given up
/// before: those await others, but not always the one that is gone.
inline std::vector<int> awaited_in_collective(const std::vector<int>& broken,
                                              const std::vector<int>& neighbours, int size) {
  if (broken.size() + 1 >= static_cast<std::size_t>(size)) return neighbours;
  std::vector<int> awaited = broken;
  for (const int rank : neighbours) {
    if (std::ranges::find(awaited, rank) == awaited.end()) awaited.push_back(rank);
  }
  return awaited;
}

/// How long a rank may stay silent before it is blamed: a quarter of the deadline, within [1 s, 5 s].
inline std::chrono::duration<double> fault_grace(std::chrono::duration<double> deadline) {
  return std::clamp(deadline / 4, std::chrono::duration<double>(1.0), std::chrono::duration<double>(5.0));
}

/// "3 s", "0.5 s".
inline std::string seconds_text(std::chrono::duration<double> seconds) {
  std::ostringstream out;
  out << seconds.count() << " s";
  return out.str();
}

}  // namespace thinwire

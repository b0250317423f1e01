#pragma once
// The tags of all messages, so that no two exchanges share one by accident.

#include <stdexcept>
#include <string>

#include "thinwire/communicator.h"

namespace thinwire {

enum MessageTag : Communicator::Tag {
  // Systems.
  kOneBitTag = 10,
  kHalfUpTag = 20,
  kHalfDownTag = 21,
  kVotesTag = 30,
  kCascadeTag = 40,
  kSignsUpTag = 46,
  kSignsDownTag = 47,
  kCodesTag = 48,
  kPushTag = 50,
  kPullTag = 51,
  kCasqUpTag = 52,
  kCasqDownTag = 53,
  kBlocksUpTag = 56,
  kBlocksDownTag = 57,
  kDoublingTag = 55,
  kScatterTag = 58,
  kScatteredTag = 59,
  kRowListTag = 60,
  kHostTag = 62,
  kLevelsUpTag = 64,
  kLevelsDownTag = 65,
  // Collectives.
  kReduceTag = Communicator::kFirstReservedTag,
  kGatherTag = kReduceTag + 10,
  kBroadcastTag = kReduceTag + 30,
  kBarrierTag = kReduceTag + 40,
  kLinkProbeTag = kReduceTag + 50,
  kDeviceSumsTag = kReduceTag + 60,
  kStampTag = kReduceTag + 70,
};

// A message's tag and size in the one non-negative int that c10d has for a tag. Gloo ends the process when a
// message is longer than its receiver. Two sizes whose numbers differ never meet: they just time out, which
// is an error that a program can handle.

inline constexpr int kWireTagBits = 9;
inline constexpr int kWireSizeBits = 31 - kWireTagBits;
inline constexpr Communicator::Tag kWireTags = 1u << kWireTagBits;
static_assert(kWireTags == 2 * Communicator::kFirstReservedTag);

/// No message ever has it.
inline constexpr Communicator::Tag kSpareWireTag = kWireTags - 1;

/// Sizes below this one have numbers of their own; a longer one shares its number with one in so many others.
inline constexpr std::size_t kDistinctSizes = std::size_t{1} << (kWireSizeBits - 1);

/// Throws std::invalid_argument for a tag that does not fit.
inline int wire_tag(Communicator::Tag tag, std::size_t bytes) {
  if (tag >= kSpareWireTag) {
    throw std::invalid_argument("tag " + std::to_string(tag) + ": tags stay below " +
                                std::to_string(kSpareWireTag));
  }
  std::uint64_t size = bytes;
  if (bytes >= kDistinctSizes) {
    const std::uint64_t hash = size * 0x9E3779B97F4A7C15u;
    size = kDistinctSizes | hash >> (64 - (kWireSizeBits - 1));
  }
  return static_cast<int>(tag | static_cast<Communicator::Tag>(size) << kWireTagBits);
}

}  // namespace thinwire

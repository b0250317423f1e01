#pragma once
// The tags of all messages, so that no two exchanges share one by accident.

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
  // Collectives.
  kReduceTag = Communicator::kFirstReservedTag,
  kGatherTag = kReduceTag + 10,
  kBroadcastTag = kReduceTag + 30,
  kBarrierTag = kReduceTag + 40,
  kLinkProbeTag = kReduceTag + 50,
  kDeviceSumsTag = kReduceTag + 60,
  kStampTag = kReduceTag + 70,
};

}  // namespace thinwire

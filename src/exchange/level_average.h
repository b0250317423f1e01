#pragma once
// Elements as whole numbers of steps, in about as many bits as these numbers tell, through owners. Every
// rank owns a part of the bucket, averages what all ranks say of it, and tells all ranks the result. Both
// ways elements are rounded to levels (kernels/codes/rounded_levels.h), which travel in an entropy code
// (kernels/codes/entropy_code.h).
//
//   p --levels of each part--> its owner: mean --levels of it--> all ranks
//
// How long a frame is depends on the data, so it goes as header and payload (exchange/payload_messages.h).

#include "exchange/level_order.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

struct LevelRules {
  double step = 0.5;  ///< In units of a root mean square: of a block, or of an owner's part, by `local`.
  double local = 1;   ///< How far a block's own root mean square decides its step: 0 not at all, 1 alone.
  float up = 0.4f;    ///< See round_to_levels.
  /// Whether levels go by their place in the block: those of the first elements of 128 blocks, those of the
  /// second, and so on. Fewer bits where elements at the same place are alike. Owners' parts then are whole
  /// blocks, but for the last one.
  bool by_place = false;
  /// Ascending, and they do not overlap. A square has one owner. With by_place.
  Span<const LevelSquare> squares{};
  /// Of what gives levels their meaning beside these rules. Travels in the frames' headers: where ranks do
  /// not have the same, their frames are refused.
  std::uint32_t digest = 0;
};

/// gradient [n], n > 0, in memory of the step's executor: becomes the mean, the same bits on all ranks.
/// residual [n] or empty: becomes p - Q(p). In the part that this rank owns it also has what the result's
/// levels left out, times W: so the equation of thinwire/synchronizer.h holds. Where any rank has a value
/// that is not finite, or a sum over ranks is not, report.finite becomes false and residual stays.
/// Sets report.formula_bytes and residual_norm. Collective. Throws CorruptFrame, CommError.
/// base: the number of the first value, as average_blocks has it. `finite` false on any rank counts as a
/// value that is not.
void average_levels(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                    const LevelRules& rules, std::size_t base = 0, bool finite = true);

/// Bits that a level tells, of elements of a normal distribution.
double normal_level_bits(const LevelRules& rules);

/// Payload bytes that `rank` sends of elements that tell so many bits.
std::uint64_t level_average_bytes(std::size_t elements, std::size_t world, std::size_t rank,
                                  const LevelRules& rules, double bits);

}  // namespace thinwire

#include "kernels/codes/entropy_code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/codes/entropy_tables.h"
#include "thinwire/errors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codes/entropy_code.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

#ifndef THINWIRE_ENTROPY_CODE_ONCE
#define THINWIRE_ENTROPY_CODE_ONCE
namespace thinwire {

constexpr std::size_t kLanes = 16;
using States = std::array<std::uint32_t, kLanes>;

/// Of each mask of a vector's lanes.
using LaneRows = std::array<std::array<std::uint8_t, 8>, 256>;

/// Which of the packed values each lane takes that is set; other lanes take any.
constexpr LaneRows spread_rows() {
  LaneRows rows{};
  for (std::size_t mask = 0; mask < rows.size(); ++mask) {
    std::uint8_t next = 0;
    for (std::size_t lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) rows[mask][lane] = next++;
    }
  }
  return rows;
}
/// Which lanes that are set lie one behind the other at the end of a vector of so many.
constexpr LaneRows gathered_rows(std::size_t lanes) {
  LaneRows rows{};
  for (std::size_t mask = 0; mask < std::size_t{1} << lanes; ++mask) {
    std::size_t to = lanes;
    for (std::size_t lane = lanes; lane-- > 0;) {
      if ((mask >> lane & 1) != 0) rows[mask][--to] = static_cast<std::uint8_t>(lane);
    }
  }
  return rows;
}
constexpr LaneRows kSpread = spread_rows();
/// Of vectors of 1, 2, 4 and 8 lanes.
constexpr std::array<LaneRows, 4> kGathered = {gathered_rows(1), gathered_rows(2), gathered_rows(4),
                                               gathered_rows(8)};

}  // namespace thinwire
#endif

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

using WordTag = HWY_CAPPED(std::uint32_t, 8);
using SignedTag = hn::RebindToSigned<WordTag>;
using ShortTag = hn::Rebind<std::int16_t, WordTag>;
using PackedTag = hn::Rebind<std::uint16_t, WordTag>;
using Words = hn::Vec<WordTag>;

/// The sum of magnitudes of a block, and the largest one.
void MeasureBlock(Reads<std::int16_t> levels, std::uint32_t& sum, std::int32_t& most) {
  const SignedTag d;
  auto sums = hn::Zero(d);
  auto largest = hn::Zero(d);
  for (std::size_t i = 0; i < kLevelBlock; i += hn::Lanes(d)) {
    const auto magnitude = hn::Abs(hn::PromoteTo(d, hn::LoadU(ShortTag(), levels + i)));
    sums = hn::Add(sums, magnitude);
    largest = hn::Max(largest, magnitude);
  }
  sum = static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(d, sums)));
  most = hn::GetLane(hn::MaxOfLanes(d, largest));
}

HWY_INLINE Words Shuffled(const LaneRows& rows, std::size_t mask, Words values) {
  const WordTag d;
  const hn::Rebind<std::uint8_t, WordTag> d8;
  const auto lanes = hn::PromoteTo(d, hn::LoadU(d8, rows[mask].data()));
  return hn::TableLookupLanes(values, hn::IndicesFromVec(d, lanes));
}

HWY_INLINE std::size_t BitsOf(hn::Mask<WordTag> mask) {
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(WordTag(), mask, bits);
  return bits[0];
}

/// floor(state / frequency), which is below 2^20 as the state is below frequency * 2^20. A float's quotient
/// is off by one at most.
HWY_INLINE Words Quotient(Words state, Words frequency) {
  const WordTag d;
  const SignedTag di;
  const hn::Rebind<float, WordTag> df;
  const auto s = hn::BitCast(di, state);
  const auto f = hn::BitCast(di, frequency);
  const auto near = hn::ConvertTo(di, hn::Div(hn::ConvertTo(df, s), hn::ConvertTo(df, f)));
  const auto rest = hn::Sub(s, hn::Mul(near, f));
  // A mask is -1 where it is set.
  const auto less = hn::VecFromMask(di, hn::Lt(rest, hn::Zero(di)));
  const auto more = hn::VecFromMask(di, hn::Gt(rest, hn::Sub(f, hn::Set(di, 1))));
  return hn::BitCast(d, hn::Sub(hn::Add(near, less), more));
}

/// Codes a block's levels from the last to the first. words: where the first word lies that is there already;
/// those before it are written, and some room before these is.
std::byte* EncodeBlock(Reads<std::int16_t> levels, const LevelClass& one, States& states, std::byte* words) {
  const WordTag d;
  const SignedTag di;
  const std::size_t vector = hn::Lanes(d);
  const LaneRows& gathered = kGathered[static_cast<std::size_t>(std::countr_zero(vector))];
  const auto escape = hn::Set(d, 2 * one.limit + 1);
  const auto* const codes = one.codes.data();
  std::array<std::uint32_t, kLanes> own = states;
  for (std::size_t at = kLevelBlock; at != 0; at -= kLanes) {
    for (std::size_t lane = kLanes; lane != 0;) {
      lane -= vector;
      const auto level = hn::PromoteTo(di, hn::LoadU(ShortTag(), levels + at - kLanes + lane));
      const auto doubled = hn::Xor(hn::Add(level, level), hn::ShiftRight<31>(level));
      const auto symbol = hn::Min(hn::BitCast(d, doubled), escape);
      const auto code = hn::GatherIndex(d, codes, hn::BitCast(di, symbol));
      const auto frequency = hn::ShiftRight<16>(code);
      auto state = hn::LoadU(d, own.data() + lane);
      const auto most = hn::Sub(hn::ShiftLeft<31 - kProbabilityBits>(frequency), hn::Set(d, 1u));
      const auto full = hn::RebindMask(d, hn::Gt(hn::BitCast(di, state), hn::BitCast(di, most)));
      const std::size_t mask = BitsOf(full);
      const auto low = hn::And(state, hn::Set(d, 0xFFFFu));
      const auto packed = hn::DemoteTo(PackedTag(), hn::BitCast(di, Shuffled(gathered, mask, low)));
      hn::StoreU(packed, PackedTag(), reinterpret_cast<std::uint16_t*>(words) - vector);
      words -= 2 * hn::CountTrue(d, full);
      state = hn::IfThenElse(full, hn::ShiftRight<16>(state), state);
      const auto rest = hn::Sub(hn::Set(d, kProbabilities), frequency);
      state = hn::Add(hn::Add(state, hn::And(code, hn::Set(d, 0xFFFFu))),
                      hn::Mul(Quotient(state, frequency), rest));
      hn::StoreU(state, d, own.data() + lane);
    }
  }
  states = own;
  return words;
}

/// The reverse. Reads at most 2 * kLevelBlock bytes of words, and a vector's behind these. escapes: whether
/// there are any; they are kEscape in `levels`. Returns where the next word lies.
const std::byte* DecodeBlock(const LevelClass& one, States& states, const std::byte* words, bool& escapes,
                             Writes<std::int16_t> levels) {
  const WordTag d;
  const SignedTag di;
  const std::size_t vector = hn::Lanes(d);
  const auto low = hn::Set(d, kProbabilities - 1);
  const auto part = hn::Set(d, 0xFFFu);
  const auto* const entries = one.entries.data();
  std::array<std::uint32_t, kLanes> own = states;
  auto found = hn::Zero(di);
  for (std::size_t at = 0; at < kLevelBlock; at += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; lane += vector) {
      auto state = hn::LoadU(d, own.data() + lane);
      const auto entry = hn::GatherIndex(d, entries, hn::BitCast(di, hn::And(state, low)));
      state = hn::Add(hn::Mul(hn::And(entry, part), hn::ShiftRight<kProbabilityBits>(state)),
                      hn::And(hn::ShiftRight<12>(entry), part));
      const auto level = hn::ShiftRight<24>(hn::BitCast(di, entry));
      found = hn::Or(found, hn::VecFromMask(di, hn::Eq(level, hn::Set(di, kEscape))));
      hn::StoreU(hn::DemoteTo(ShortTag(), level), ShortTag(), levels + at + lane);
      const auto empty = hn::RebindMask(
          d, hn::Lt(hn::BitCast(di, state), hn::Set(di, static_cast<std::int32_t>(kLeastState))));
      const auto next =
          hn::PromoteTo(d, hn::LoadU(PackedTag(), reinterpret_cast<const std::uint16_t*>(words)));
      const auto filled = hn::Or(hn::ShiftLeft<16>(state), Shuffled(kSpread, BitsOf(empty), next));
      state = hn::IfThenElse(empty, filled, state);
      words += 2 * hn::CountTrue(d, empty);
      hn::StoreU(state, d, own.data() + lane);
    }
  }
  states = own;
  escapes = !hn::AllTrue(di, hn::Eq(found, hn::Zero(di)));
  return words;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(MeasureBlock);
HWY_EXPORT(EncodeBlock);
HWY_EXPORT(DecodeBlock);

namespace {

constexpr std::size_t kSegment = std::size_t{1} << 16;
constexpr std::size_t kClassBits = 5;
constexpr std::uint32_t kAsTheyAre = ~0u;
constexpr std::size_t kHead = 8;  // words, escapes
constexpr std::size_t kStateBytes = kLanes * sizeof(std::uint32_t);

using Classes = std::array<std::uint8_t, kSegment / kLevelBlock>;

std::size_t segments_of(std::size_t count) {
  return (count + kSegment - 1) / kSegment;
}
std::size_t blocks_of(std::size_t count) {
  return (count + kLevelBlock - 1) / kLevelBlock;
}
std::size_t class_bytes(std::size_t count) {
  return (blocks_of(count) * kClassBits + 15) / 16 * 2;
}
std::size_t most_segment_bytes(std::size_t count) {
  return kHead + 2 * count;
}

void put(std::byte* at, std::uint32_t value) {
  std::memcpy(at, &value, sizeof value);
}
std::uint32_t get(const std::byte* at) {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void put_classes(const Classes& classes, std::size_t blocks, std::byte* to) {
  std::uint32_t bits = 0;
  std::size_t held = 0;
  const std::byte* const end = to + (blocks * kClassBits + 15) / 16 * 2;
  for (std::size_t b = 0; b < blocks; ++b) {
    bits |= static_cast<std::uint32_t>(classes[b]) << held;
    held += kClassBits;
    for (; held >= 8; held -= 8, bits >>= 8) *to++ = static_cast<std::byte>(bits);
  }
  for (; to != end; bits >>= 8) *to++ = static_cast<std::byte>(bits);
}

/// Throws CorruptFrame unless the bits behind the last class are 0.
void get_classes(const std::byte* from, std::size_t blocks, Classes& classes) {
  std::uint32_t bits = 0;
  std::size_t held = 0;
  const std::byte* const end = from + (blocks * kClassBits + 15) / 16 * 2;
  for (std::size_t b = 0; b < blocks; ++b) {
    for (; held < kClassBits; held += 8) bits |= static_cast<std::uint32_t>(*from++) << held;
    classes[b] = bits & (kLevelClasses - 1);
    bits >>= kClassBits;
    held -= kClassBits;
  }
  for (; from != end; ++from) bits |= static_cast<std::uint32_t>(*from);
  if (bits != 0) throw CorruptFrame("frame refused: bits behind the last class of levels are not 0");
}

/// Writes segments. A writer's slot is as large as the levels themselves, so that a segment that would not
/// become shorter goes as it is.
class SegmentWriter {
 public:
  SegmentWriter(Span<const std::int16_t> levels, Span<std::byte> slot) : levels_(levels), slot_(slot) {}

  std::size_t run() {
    if (slot_.size() < kHead + class_bytes(levels_.size()) + kStateBytes) return write_as_they_are();
    std::byte* const classes = slot_.data() + kHead;
    escapes_ = classes + class_bytes(levels_.size());
    words_ = slot_.data() + slot_.size();
    if (!classify() || !encode()) return write_as_they_are();
    put_classes(classes_, blocks_of(levels_.size()), classes);
    return finish(classes);
  }

 private:
  std::size_t room() const { return static_cast<std::size_t>(words_ - escapes_); }

  /// The block's levels, filled up with zeros.
  const std::int16_t* block(std::size_t number, std::array<std::int16_t, kLevelBlock>& filled) const {
    const std::size_t begin = number * kLevelBlock;
    if (begin + kLevelBlock <= levels_.size()) return levels_.data() + begin;
    filled = {};
    std::copy(levels_.begin() + begin, levels_.end(), filled.begin());
    return filled.data();
  }

  /// Finds the classes and writes the escapes. False: there is no room.
  bool classify() {
    std::array<std::int16_t, kLevelBlock> filled;
    for (std::size_t b = 0; b < blocks_of(levels_.size()); ++b) {
      const std::int16_t* const levels = block(b, filled);
      std::uint32_t sum = 0;
      std::int32_t most = 0;
      HWY_DYNAMIC_DISPATCH(MeasureBlock)(levels, sum, most);
      classes_[b] = static_cast<std::uint8_t>(class_of_sum(sum));
      const auto limit = static_cast<std::int32_t>(level_classes()[classes_[b]].limit);
      if (most <= limit) continue;
      if (room() < 2 * kLevelBlock) return false;
      for (std::size_t i = 0; i < kLevelBlock; ++i) {
        if (std::abs(static_cast<std::int32_t>(levels[i])) <= limit) continue;
        std::memcpy(escapes_, &levels[i], 2);
        escapes_ += 2;
      }
    }
    return true;
  }

  /// From the last level to the first, as states give back in reverse what they were given.
  bool encode() {
    states_.fill(kLeastState);
    std::array<std::int16_t, kLevelBlock> filled;
    for (std::size_t b = blocks_of(levels_.size()); b-- > 0;) {
      if (classes_[b] == 0) continue;
      if (room() < kStateBytes + 2 * kLevelBlock) return false;
      words_ =
          HWY_DYNAMIC_DISPATCH(EncodeBlock)(block(b, filled), level_classes()[classes_[b]], states_, words_);
    }
    return room() >= kStateBytes;
  }

  std::size_t finish(std::byte* classes) {
    const auto words = static_cast<std::size_t>(slot_.data() + slot_.size() - words_);
    const std::byte* const first_escape = classes + class_bytes(levels_.size());
    put(slot_.data(), static_cast<std::uint32_t>(words / 2));
    put(slot_.data() + 4, static_cast<std::uint32_t>((escapes_ - first_escape) / 2));
    std::memcpy(escapes_, states_.data(), kStateBytes);
    std::memmove(escapes_ + kStateBytes, words_, words);
    return static_cast<std::size_t>(escapes_ - slot_.data()) + kStateBytes + words;
  }

  std::size_t write_as_they_are() {
    put(slot_.data(), kAsTheyAre);
    put(slot_.data() + 4, 0);
    std::memcpy(slot_.data() + kHead, levels_.data(), levels_.size_bytes());
    return kHead + levels_.size_bytes();
  }

  Span<const std::int16_t> levels_;
  Span<std::byte> slot_;
  std::byte* escapes_ = nullptr;  // behind the last one
  std::byte* words_ = nullptr;    // the first one
  Classes classes_;
  States states_;
};

class SegmentReader {
 public:
  SegmentReader(Span<const std::byte> bytes, Span<std::int16_t> levels) : bytes_(bytes), levels_(levels) {}

  void run() {
    require(bytes_.size() >= kHead, "a segment ends in its head");
    const std::uint32_t words = get(bytes_.data());
    const std::uint32_t escapes = get(bytes_.data() + 4);
    if (words == kAsTheyAre) return read_as_they_are(escapes);
    const std::uint64_t needed = kHead + class_bytes(levels_.size()) + std::uint64_t{2} * escapes +
                                 kStateBytes + std::uint64_t{2} * words;
    require(bytes_.size() == needed, "a segment has not the bytes that its head says");
    const std::byte* at = bytes_.data() + kHead;
    get_classes(at, blocks_of(levels_.size()), classes_);
    escape_ = at + class_bytes(levels_.size());
    escape_end_ = escape_ + std::size_t{2} * escapes;
    std::memcpy(states_.data(), escape_end_, kStateBytes);
    word_ = escape_end_ + kStateBytes;
    word_end_ = bytes_.data() + bytes_.size();
    for (const std::uint32_t state : states_) {
      require(state >= kLeastState && state < kLeastState << 16, "a state is out of range");
    }
    read_blocks();
    const bool over = word_ == word_end_ && escape_ == escape_end_ &&
                      std::ranges::all_of(states_, [](std::uint32_t one) { return one == kLeastState; });
    require(over, "a segment does not end with its last level");
  }

 private:
  static void require(bool right, const char* what) {
    if (!right) throw CorruptFrame(std::string("frame refused: of levels ") + what);
  }

  void read_as_they_are(std::uint32_t escapes) {
    require(escapes == 0 && bytes_.size() == kHead + levels_.size_bytes(), "a segment has a wrong length");
    std::memcpy(levels_.data(), bytes_.data() + kHead, levels_.size_bytes());
    const bool right = std::ranges::all_of(levels_, [](std::int16_t one) { return one != -32768; });
    require(right, "one is out of range");
  }

  void read_blocks() {
    std::array<std::int16_t, kLevelBlock> filled;
    for (std::size_t b = 0; b < blocks_of(levels_.size()); ++b) {
      const std::size_t begin = b * kLevelBlock;
      const std::size_t left = std::min(kLevelBlock, levels_.size() - begin);
      std::int16_t* const to = left == kLevelBlock ? levels_.data() + begin : filled.data();
      if (classes_[b] == 0) {
        std::fill_n(to, kLevelBlock, std::int16_t{0});
      } else {
        keep_words_apart();
        read_block(level_classes()[classes_[b]], to);
        require(word_ <= word_end_, "words end too soon");
      }
      if (left == kLevelBlock) continue;
      std::copy_n(filled.data(), left, levels_.data() + begin);
      require(std::all_of(filled.begin() + static_cast<std::ptrdiff_t>(left), filled.end(),
                          [](std::int16_t one) { return one == 0; }),
              "the last block goes on behind the last one");
    }
  }

  /// A block reads at most so many words, and looks at them before it knows that they are there. So the last
  /// ones are read from a copy with room behind it.
  static constexpr std::size_t kBlockWordBytes = 2 * kLevelBlock;

  void keep_words_apart() {
    const auto left = static_cast<std::size_t>(word_end_ - word_);
    if (are_apart_ || left >= kBlockWordBytes + 16) return;
    are_apart_ = true;
    std::copy(word_, word_end_, last_.data());
    word_ = last_.data();
    word_end_ = last_.data() + left;
  }

  void read_block(const LevelClass& one, std::int16_t* to) {
    bool escapes = false;
    word_ = HWY_DYNAMIC_DISPATCH(DecodeBlock)(one, states_, word_, escapes, to);
    if (escapes) read_escapes(one, to);
  }

  void read_escapes(const LevelClass& one, std::int16_t* to) {
    for (std::size_t i = 0; i < kLevelBlock; ++i) {
      if (to[i] != kEscape) continue;
      require(escape_ != escape_end_, "escapes end too soon");
      std::memcpy(to + i, escape_, 2);
      escape_ += 2;
      const std::int32_t magnitude = std::abs(static_cast<std::int32_t>(to[i]));
      require(magnitude > static_cast<std::int32_t>(one.limit) && magnitude < 32768,
              "an escape is out of range");
    }
  }

  Span<const std::byte> bytes_;
  Span<std::int16_t> levels_;
  const std::byte* escape_ = nullptr;
  const std::byte* escape_end_ = nullptr;
  const std::byte* word_ = nullptr;
  const std::byte* word_end_ = nullptr;
  Classes classes_;
  States states_;
  bool are_apart_ = false;
  alignas(2) std::array<std::byte, 2 * kBlockWordBytes + 32> last_{};
};

}  // namespace

std::size_t most_entropy_coded_bytes(std::size_t count) {
  return segments_of(count) * (sizeof(std::uint32_t) + kHead) + 2 * count;
}

std::size_t entropy_coded_head_bytes(std::size_t count) {
  const std::size_t segments = segments_of(count);
  return segments * (sizeof(std::uint32_t) + kHead + kStateBytes) + kClassBits * blocks_of(count) / 8;
}

std::size_t write_entropy_coded(Executor& executor, Span<const std::int16_t> levels, Span<std::byte> codes) {
  const std::size_t segments = segments_of(levels.size());
  std::byte* const slots = codes.data() + segments * sizeof(std::uint32_t);
  const auto slot_at = [&](std::size_t segment) { return segment * most_segment_bytes(kSegment); };
  executor.parallel_for(segments, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t segment = begin; segment < end; ++segment) {
      const std::size_t first = segment * kSegment;
      const std::size_t count = std::min(kSegment, levels.size() - first);
      SegmentWriter writer(levels.subspan(first, count),
                           {slots + slot_at(segment), most_segment_bytes(count)});
      put(codes.data() + segment * sizeof(std::uint32_t), static_cast<std::uint32_t>(writer.run()));
    }
  });
  std::byte* to = slots;
  for (std::size_t segment = 0; segment < segments; ++segment) {
    const std::size_t bytes = get(codes.data() + segment * sizeof(std::uint32_t));
    std::memmove(to, slots + slot_at(segment), bytes);
    to += bytes;
  }
  return static_cast<std::size_t>(to - codes.data());
}

void read_entropy_coded(Executor& executor, Span<const std::byte> codes, Span<std::int16_t> levels) {
  const std::size_t segments = segments_of(levels.size());
  const std::size_t table = segments * sizeof(std::uint32_t);
  if (codes.size() < table) throw CorruptFrame("frame refused: of levels the table of segments is cut off");
  std::uint64_t end = table;
  for (std::size_t segment = 0; segment < segments; ++segment) {
    const std::uint32_t bytes = get(codes.data() + 4 * segment);
    if (bytes % 2 != 0) {
      throw CorruptFrame("frame refused: a segment of levels has " + std::to_string(bytes) +
                         " bytes, expected an even number");
    }
    end += bytes;
  }
  if (end != codes.size()) {
    throw CorruptFrame("frame refused: the segments of levels have " + std::to_string(end) +
                       " bytes, the frame has " + std::to_string(codes.size()));
  }
  executor.parallel_for(segments, 1, [&](std::size_t begin, std::size_t last) {
    std::size_t at = table;
    for (std::size_t segment = 0; segment < begin; ++segment) at += get(codes.data() + 4 * segment);
    for (std::size_t segment = begin; segment < last; ++segment) {
      const std::size_t bytes = get(codes.data() + 4 * segment);
      const std::size_t first = segment * kSegment;
      SegmentReader(codes.subspan(at, bytes),
                    levels.subspan(first, std::min(kSegment, levels.size() - first)))
          .run();
      at += bytes;
    }
  });
}

}  // namespace thinwire
#endif

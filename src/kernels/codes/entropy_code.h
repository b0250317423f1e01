#pragma once
// Small integers in about as many bits as they tell, by fixed tables that are a part of the format.
//
// Levels are what a quantizer rounds to: integers, most of them near zero. 128 neighbours are a block. A
// block has one of 32 classes, by the sum of its levels' magnitudes: so a matrix's busy rows and its quiet
// ones have tables of their own. Within a class a level is taken to have a two-sided geometric distribution
// with the class's mean magnitude. No table travels.
//
// Levels are coded by range asymmetric numeral systems: a state is a number, to which coding a symbol of
// probability f / 2048 adds log2(2048 / f) bits. Sixteen states take turns, so that a processor works on
// many at once. They share one stream of 16-bit words.
//
// Sources: J. Duda, "Asymmetric numeral systems", arXiv 1311.2540, 2013, section 3 (range variants); F.
// Giesen, "Interleaved entropy coders", arXiv 1402.3392, 2014.
//
// The bytes, little-endian:
//
//   u32 per segment of 65536 levels: its bytes
//   segments:
//     u32 words, u32 escapes; words = 2^32 - 1: 16-bit levels follow as they are, and nothing else
//     classes of its blocks, 5 bits each, lowest bits first; padded to an even number of bytes
//     escapes: 16-bit levels that are too large for their class's table, in their order
//     16 states of 32 bits
//     words: 16 bits each, in the order in which they are read
//
// State i % 16 codes level i of a block. The last block is filled up with zeros. A level is read so: the
// lowest 11 bits of state x select the entry of the class's table, with the level, its probability f, and
// how far into its range the bits are, o. x becomes f * (x >> 11) + o, and where that is below 2^15, x << 16
// | the next word. Blocks of class 0 read nothing.

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// What `count` levels take at most.
std::size_t most_entropy_coded_bytes(std::size_t count);

/// Bytes of `count` levels' codes beside their words and escapes.
std::size_t entropy_coded_head_bytes(std::size_t count);

/// levels: each above -32768. codes: at least most_entropy_coded_bytes(levels.size()) bytes, at an address
/// that is a multiple of 2. Returns the bytes written. The same bytes on every machine, and with any number
/// of threads. Host memory.
std::size_t write_entropy_coded(Executor& executor, Span<const std::int16_t> levels, Span<std::byte> codes);

/// levels: as many as were written. codes: at an address that is a multiple of 2, from another rank: throws
/// CorruptFrame where they are not so many levels in this format; levels then mean nothing. Host memory.
void read_entropy_coded(Executor& executor, Span<const std::byte> codes, Span<std::int16_t> levels);

}  // namespace thinwire

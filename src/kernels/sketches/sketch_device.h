#pragma once
// What device code over count sketches shares: the elements in pieces, each a part of one run that lies
// together.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "cuda/executor.h"
#include "cuda/runtime.h"
#include "kernels/sketches/count_sketch.h"

namespace thinwire::cuda {

struct SketchPiece {
  std::uint32_t run;
  std::uint32_t offset;  // of the first element in its run
  std::uint32_t length;  // 0: there is none of this number
  std::size_t place;     // of the first element among the values
};

/// Of the first element of a piece in a row.
struct SketchPlace {
  std::uint32_t column;
  std::uint64_t signs;  // bit t: of element t of the piece
};

/// Numbered by ascending elements.
struct SketchPieces {
  const std::uint32_t* blocks;  // null: the bucket is one block
  std::size_t per_block;
  std::size_t width;
  std::size_t elements;
  unsigned run_shift;
  bool packed;
  std::size_t count;

  __device__ SketchPiece locate(std::size_t number) const {
    std::size_t k = 0;
    std::size_t first = 0;
    if (blocks != nullptr) {
      k = static_cast<std::uint32_t>(number) / static_cast<std::uint32_t>(per_block);
      number -= k * per_block;
      first = blocks[k] * width;
    }
    const std::size_t end = first + width < elements ? first + width : elements;
    const std::size_t run = (first >> run_shift) + number;
    const std::size_t begin = run << run_shift > first ? run << run_shift : first;
    const std::size_t stop = (run + 1) << run_shift < end ? (run + 1) << run_shift : end;
    return {static_cast<std::uint32_t>(run), static_cast<std::uint32_t>(begin - (run << run_shift)),
            begin < stop ? static_cast<std::uint32_t>(stop - begin) : 0,
            packed ? k * width + (begin - first) : begin};
  }
};

__device__ inline SketchPlace place_of(const CountSketch& sketch, const SketchPiece& piece,
                                       std::uint32_t row) {
  const SketchRun run = hash_run(sketch, piece.run, row);
  const std::size_t column = std::size_t{run.start} + piece.offset;
  return {static_cast<std::uint32_t>(column < sketch.columns ? column : column - sketch.columns),
          run.signs >> piece.offset};
}

/// The column `t` elements further on.
__device__ inline std::size_t column_after(const CountSketch& sketch, std::uint32_t column, unsigned t) {
  const std::size_t sum = std::size_t{column} + t;
  return sum < sketch.columns ? sum : sum - sketch.columns;
}

__device__ inline float flip_sign(float value, std::uint64_t signs, unsigned t) {
  return __uint_as_float(__float_as_uint(value) ^ (static_cast<std::uint32_t>(signs >> t) << 31));
}

/// blocks: those of the list where kernels reach them.
inline SketchPieces pieces_of(const CountSketch& sketch, const BlockList& list, const std::uint32_t* blocks,
                              BlockLayout layout) {
  const std::size_t length = sketch.run_length;
  const bool whole = list.width >= list.elements;
  const bool aligned = whole || list.width % length == 0;
  const std::size_t width = whole ? list.elements : list.width;
  const std::size_t per_block = aligned ? (width + length - 1) / length : (width + length - 2) / length + 1;
  return {whole ? nullptr : blocks,
          per_block,
          width,
          list.elements,
          static_cast<unsigned>(std::countr_zero(length)),
          layout == BlockLayout::packed,
          list.blocks.size() * per_block};
}

/// query with everything on the device; submitted.
void query(CudaExecutor& executor, const CountSketch& sketch, const SketchPieces& pieces, const float* table,
           float* values);

}  // namespace thinwire::cuda

// Inserting into count sketches on a CUDA device. Sums of floats depend on their order, and a column adds its
// elements in ascending order, as on a CPU. So the table is cut into tiles of columns; the pieces of runs
// that touch a tile are brought together by a stable sort; and a warp that owns a tile adds them one after
// the other, its lanes side by side.

#include "kernels/device/device.h"
#include "kernels/device/device_algorithms.h"
#include "kernels/device/resident.h"
#include "kernels/sketches/sketch_device.h"

namespace thinwire::cuda {
namespace {

/// Columns of a tile that a lane adds up, and pieces whose values are fetched at a time.
constexpr unsigned kSlots = 4;
constexpr unsigned kAhead = 4;

/// Tiles of a row, at most kSlots * kWarp columns each. Where there is more than one, none is narrower than a
/// run, so that a piece touches two at most.
struct SketchTiles {
  std::uint64_t columns;
  std::uint64_t count;

  explicit SketchTiles(std::size_t all)
      : columns(all), count((all + kSlots * kWarp - 1) / (kSlots * kWarp)) {}

  __device__ std::uint64_t begin(std::uint64_t tile) const { return columns * tile / count; }
  __device__ std::uint32_t of(std::uint64_t column) const {
    return static_cast<std::uint32_t>(((column + 1) * count - 1) / columns);
  }
};
static_assert(kSlots * kWarp / 2 >= kLongestRun, "a piece must not touch more than two tiles");

/// keys, numbers: [rows * pieces], for the two tiles that a piece touches; keys of none are past the last.
__global__ void __launch_bounds__(kThreads)
    key_kernel(CountSketch sketch, SketchPieces pieces, SketchTiles tiles, std::uint32_t first_row,
               std::uint32_t rows, uint2* __restrict__ keys, uint2* __restrict__ numbers) {
  const auto none = static_cast<std::uint32_t>(rows * tiles.count);
  for (std::size_t q = thread_of_grid(); q < pieces.count; q += threads_of_grid()) {
    const SketchPiece piece = pieces.locate(q);
    const auto number = static_cast<std::uint32_t>(q);
    for (std::uint32_t row = 0; row < rows; ++row) {
      std::uint32_t first = none;
      std::uint32_t second = none;
      if (piece.length != 0) {
        const SketchPlace place = place_of(sketch, piece, first_row + row);
        const std::uint32_t begin = tiles.of(place.column);
        const std::uint32_t end = tiles.of(column_after(sketch, place.column, piece.length - 1));
        const auto before = static_cast<std::uint32_t>(row * tiles.count);
        first = before + begin;
        if (begin != end) second = before + end;
      }
      keys[row * pieces.count + q] = uint2{first, second};
      numbers[row * pieces.count + q] = uint2{number, number};
    }
  }
}

/// begins[tile]: its first entry; [tiles + 1].
__global__ void __launch_bounds__(kThreads)
    begin_kernel(const std::uint32_t* __restrict__ keys, std::size_t count, std::size_t tiles,
                 std::size_t* __restrict__ begins) {
  for (std::size_t tile = thread_of_grid(); tile <= tiles; tile += threads_of_grid()) {
    std::size_t low = 0;
    std::size_t high = count;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (keys[middle] < tile) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    begins[tile] = low;
  }
}

/// A warp takes a tile, 32 entries at a time: each lane finds where one of them lies, then all add each.
__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(CountSketch sketch, SketchPieces pieces, SketchTiles tiles, std::uint32_t first_row,
                      std::uint32_t rows, const std::uint32_t* __restrict__ numbers,
                      const std::size_t* __restrict__ begins, const float* __restrict__ values,
                      const float* __restrict__ residual, float* __restrict__ table) {
  struct Entry {
    std::uint64_t signs;
    std::size_t place;
    std::uint32_t column;
    std::uint32_t length;
  };
  __shared__ Entry of_block[kThreads / kWarp][kWarp];
  Entry* const entries = of_block[threadIdx.x / kWarp];
  const unsigned lane = lane_of_warp();
  for (std::size_t tile = warp_of_grid(); tile < rows * tiles.count; tile += warps_of_grid()) {
    const std::size_t entries_end = begins[tile + 1];
    std::size_t entry = begins[tile];
    if (entry == entries_end) continue;
    const auto row = static_cast<std::uint32_t>(tile / tiles.count);
    const std::uint64_t begin = tiles.begin(tile - row * tiles.count);
    const auto first = static_cast<std::uint32_t>(begin) + lane;
    const auto width = static_cast<unsigned>(tiles.begin(tile - row * tiles.count + 1) - begin);
    const auto columns = static_cast<std::uint32_t>(sketch.columns);
    float* const cells = table + (first_row + row) * sketch.columns + begin;
    float sums[kSlots];
#pragma unroll
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      const unsigned i = slot * kWarp + lane;
      sums[slot] = i < width ? cells[i] : 0.0f;
    }
    for (; entry < entries_end; entry += kWarp) {
      __syncwarp();
      Entry own{0, 0, 0, 0};
      if (entry + lane < entries_end) {
        const SketchPiece piece = pieces.locate(numbers[entry + lane]);
        const SketchPlace place = place_of(sketch, piece, first_row + row);
        own = {place.signs, piece.place, place.column, piece.length};
      }
      entries[lane] = own;
      __syncwarp();
      const auto size = static_cast<unsigned>(entries_end - entry < kWarp ? entries_end - entry : kWarp);
      for (unsigned e = 0; e < size; e += kAhead) {
        float addends[kAhead][kSlots];
#pragma unroll
        for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
          const Entry at = entries[e + ahead];
#pragma unroll
          for (unsigned slot = 0; slot < kSlots; ++slot) {
            const std::uint32_t column = first + slot * kWarp;
            const std::uint32_t t = column - at.column + (column < at.column ? columns : 0);
            // A sum stays what it is, to its last bit, when -0 is added.
            float addend = -0.0f;
            if (slot * kWarp + lane < width && t < at.length) {
              addend = flip_sign(sum_at(values, residual, at.place + t), at.signs, t);
            }
            addends[ahead][slot] = addend;
          }
        }
#pragma unroll
        for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
          for (unsigned slot = 0; slot < kSlots; ++slot) sums[slot] += addends[ahead][slot];
        }
      }
    }
#pragma unroll
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      const unsigned i = slot * kWarp + lane;
      if (i < width) cells[i] = sums[slot];
    }
  }
}

/// A warp takes a piece; lane j finds its place in row j.
__global__ void __launch_bounds__(kThreads)
    add_kernel(CountSketch sketch, SketchPieces pieces, const float* __restrict__ values,
               const float* __restrict__ residual, float* __restrict__ table) {
  static_assert(kMostSketchRows <= kWarp && kLongestRun == 2 * kWarp, "a lane has a row, and two elements");
  const unsigned lane = lane_of_warp();
  for (std::size_t q = warp_of_grid(); q < pieces.count; q += warps_of_grid()) {
    const SketchPiece piece = pieces.locate(q);
    const SketchPlace own = lane < sketch.rows ? place_of(sketch, piece, lane) : SketchPlace{0, 0};
    float p[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned t = half * kWarp + lane;
      p[half] = t < piece.length ? sum_at(values, residual, piece.place + t) : 0.0f;
    }
    for (unsigned row = 0; row < sketch.rows; ++row) {
      const std::uint32_t column = __shfl_sync(kAllLanes, own.column, static_cast<int>(row));
      const std::uint64_t signs = __shfl_sync(kAllLanes, own.signs, static_cast<int>(row));
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned t = half * kWarp + lane;
        if (t >= piece.length) continue;
        atomicAdd(table + row * sketch.columns + column_after(sketch, column, t),
                  flip_sign(p[half], signs, t));
      }
    }
  }
}

/// As many rows at a time as keep the entries of a sort below so many, for the sake of memory.
constexpr std::size_t kMostEntries = std::size_t{1} << 24;

}  // namespace

void insert(Executor& executor, const CountSketch& sketch, const BlockList& list, BlockLayout layout,
            Span<const float> values, Span<const float> residual, Span<float> table) {
  CudaExecutor& own = executor_on_device(executor);
  Resident<const std::uint32_t> blocks(own, list.blocks);
  Resident<const float> v(own, values);
  Resident<const float> r(own, residual);
  Resident<float> cells(own, table);
  const SketchPieces pieces = pieces_of(sketch, list, blocks.data(), layout);
  const SketchTiles tiles(sketch.columns);
  const std::size_t at_once =
      std::min(sketch.rows, std::max<std::size_t>(1, kMostEntries / (2 * pieces.count)));
  const std::size_t most = 2 * pieces.count * at_once;
  const Scratch<std::uint32_t> keys(own, most);
  const Scratch<std::uint32_t> sorted_keys(own, most);
  const Scratch<std::uint32_t> numbers(own, most);
  const Scratch<std::uint32_t> sorted_numbers(own, most);
  const Scratch<std::size_t> begins(own, at_once * tiles.count + 1);
  for (std::size_t row = 0; row < sketch.rows; row += at_once) {
    const std::size_t rows = std::min(at_once, sketch.rows - row);
    const std::size_t entries = 2 * pieces.count * rows;
    const std::size_t all_tiles = rows * tiles.count;
    launch(own.stream(), grid_for(pieces.count), key_kernel, sketch, pieces, tiles,
           static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(rows),
           reinterpret_cast<uint2*>(keys.data()), reinterpret_cast<uint2*>(numbers.data()));
    sort_pairs(own, keys.data(), sorted_keys.data(), numbers.data(), sorted_numbers.data(), entries,
               static_cast<int>(std::bit_width(all_tiles)));
    launch(own.stream(), grid_for(all_tiles + 1), begin_kernel, sorted_keys.data(), entries, all_tiles,
           begins.data());
    launch(own.stream(), grid_for(all_tiles * kWarp), accumulate_kernel, sketch, pieces, tiles,
           static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(rows), sorted_numbers.data(),
           begins.data(), v.data(), r.data(), cells.data());
  }
  finish(own, blocks, v, r, cells);
}

void insert_in_any_order(Executor& executor, const CountSketch& sketch, const BlockList& list,
                         BlockLayout layout, Span<const float> values, Span<const float> residual,
                         Span<float> table) {
  if (list.blocks.empty()) return;
  CudaExecutor& own = executor_on_device(executor);
  Resident<const std::uint32_t> blocks(own, list.blocks);
  Operand<const float> v(own, values);
  Operand<const float> r(own, residual);
  Resident<float> cells(own, table);
  const SketchPieces pieces = pieces_of(sketch, list, blocks.data(), layout);
  launch(own.stream(), grid_for(pieces.count * kWarp), add_kernel, sketch, pieces, v.data(), r.data(),
         cells.data());
  finish(own, blocks, v, r, cells);
}

}  // namespace thinwire::cuda

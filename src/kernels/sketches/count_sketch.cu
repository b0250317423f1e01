// Count sketches on a CUDA device.
//
// Sums of floats depend on their order, and a column adds its elements in ascending order, as on a CPU. So
// for insertions the table is cut into tiles of columns. The chunks of runs that touch a tile are brought
// together by a stable sort, and a warp that owns a tile adds them one after the other, its lanes side by
// side.
//
// For estimates a warp takes some chunks of runs. Its lanes hash them, one chunk and row each. Then every
// lane estimates an element of a chunk, all rows of which it holds in registers.

#include "kernels/sketches/count_sketch.h"

#include <bit>

#include "kernels/device/device.h"
#include "kernels/device/device_algorithms.h"
#include "kernels/sketches/median_network.h"

namespace thinwire {
using namespace cuda;
namespace {

// --- Elements in chunks, each a part of one run that lies together.

struct SketchChunk {
  std::uint32_t run;
  std::uint32_t offset;  // of the first element in its run
  std::uint32_t length;  // 0: there is none of this number
  std::size_t first;     // element, among the values
};

/// Of the first element of a chunk in a row.
struct ChunkHash {
  std::uint32_t column;
  std::uint64_t signs;  // bit t: of element t of the chunk
};

/// Numbered by ascending elements.
struct SketchChunks {
  const std::uint32_t* blocks;  // null: the bucket is one block
  std::size_t per_block;
  std::size_t width;
  std::size_t elements;
  unsigned run_shift;
  bool packed;
  std::size_t count;

  __device__ SketchChunk locate(std::size_t number) const {
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

__device__ ChunkHash hash_chunk(const CountSketch& sketch, const SketchChunk& chunk, std::uint32_t row) {
  const SketchRun run = hash_run(sketch, chunk.run, row);
  const std::size_t column = std::size_t{run.start} + chunk.offset;
  return {static_cast<std::uint32_t>(column < sketch.columns ? column : column - sketch.columns),
          run.signs >> chunk.offset};
}

/// The column `t` elements further on.
__device__ std::size_t column_after(const CountSketch& sketch, std::uint32_t column, unsigned t) {
  const std::size_t sum = std::size_t{column} + t;
  return sum < sketch.columns ? sum : sum - sketch.columns;
}

__device__ float flip_sign(float value, std::uint64_t signs, unsigned t) {
  return __uint_as_float(__float_as_uint(value) ^ (static_cast<std::uint32_t>(signs >> t) << 31));
}

bool is_one_block(const BlockList& list) {
  return list.width >= list.elements;
}

/// blocks: those of the list where kernels reach them, null where the bucket is one block.
SketchChunks chunks_of(const CountSketch& sketch, const BlockList& list, const std::uint32_t* blocks,
                       BlockLayout layout) {
  const std::size_t length = sketch.run_length;
  const bool whole = is_one_block(list);
  const bool aligned = whole || list.width % length == 0;
  const std::size_t width = whole ? list.elements : list.width;
  const std::size_t per_block = aligned ? (width + length - 1) / length : (width + length - 2) / length + 1;
  return {blocks,
          per_block,
          width,
          list.elements,
          static_cast<unsigned>(std::countr_zero(length)),
          layout == BlockLayout::packed,
          list.blocks.size() * per_block};
}

// --- Insertions.

/// Columns of a tile that a lane adds up, and chunks whose values are fetched at a time.
constexpr unsigned kSlots = 4;
constexpr unsigned kAhead = 4;

/// Tiles of a row, at most kSlots * kWarp columns each. Where there is more than one, none is narrower than a
/// run, so that a chunk touches two at most.
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
static_assert(kSlots * kWarp / 2 >= kLongestRun, "a chunk must not touch more than two tiles");

/// keys, numbers: [rows * chunks], for the two tiles that a chunk touches; keys of none are past the last.
THINWIRE_KERNEL void key_kernel(CountSketch sketch, SketchChunks chunks, SketchTiles tiles,
                                std::uint32_t first_row, std::uint32_t rows, Writes<uint2> keys,
                                Writes<uint2> numbers) {
  const auto none = static_cast<std::uint32_t>(rows * tiles.count);
  for (std::size_t q = thread_of_grid(); q < chunks.count; q += threads_of_grid()) {
    const SketchChunk chunk = chunks.locate(q);
    const auto number = static_cast<std::uint32_t>(q);
    for (std::uint32_t row = 0; row < rows; ++row) {
      std::uint32_t first = none;
      std::uint32_t second = none;
      if (chunk.length != 0) {
        const ChunkHash hash = hash_chunk(sketch, chunk, first_row + row);
        const std::uint32_t begin = tiles.of(hash.column);
        const std::uint32_t end = tiles.of(column_after(sketch, hash.column, chunk.length - 1));
        const auto before = static_cast<std::uint32_t>(row * tiles.count);
        first = before + begin;
        if (begin != end) second = before + end;
      }
      keys[row * chunks.count + q] = uint2{first, second};
      numbers[row * chunks.count + q] = uint2{number, number};
    }
  }
}

/// begins[tile]: its first entry; [tiles + 1].
THINWIRE_KERNEL void begin_kernel(Reads<std::uint32_t> keys, std::size_t count, std::size_t tiles,
                                  Writes<std::size_t> begins) {
  for (std::size_t tile = thread_of_grid(); tile <= tiles; tile += threads_of_grid()) {
    begins[tile] = partition_point(0, count, [&](std::size_t k) { return keys[k] < tile; });
  }
}

/// A chunk that touches a tile, as a warp finds it in shared memory.
struct TileEntry {
  std::uint64_t signs;
  std::size_t first;  // element, among the values
  std::uint32_t column;
  std::uint32_t length;
};

/// The columns of a tile that a lane adds up: column + slot * kWarp.
struct TileLane {
  std::uint32_t column;
  unsigned width;  // of the tile
  std::uint32_t columns;
};

/// Adds kAhead entries to the lane's sums.
__device__ __forceinline__ void add_entries(const TileEntry* entries, const TileLane& own,
                                            Reads<float> values, Reads<float> residual,
                                            float (&sums)[kSlots]) {
  float addends[kAhead][kSlots];
#pragma unroll
  for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
    const TileEntry at = entries[ahead];
#pragma unroll
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      const std::uint32_t column = own.column + slot * kWarp;
      const std::uint32_t t = column - at.column + (column < at.column ? own.columns : 0);
      // A sum stays what it is, to its last bit, when -0 is added.
      float addend = -0.0f;
      if (slot * kWarp + lane_of_warp() < own.width && t < at.length) {
        addend = flip_sign(sum_at(values, residual, at.first + t), at.signs, t);
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

/// A warp takes a tile, 32 entries at a time: each lane finds where one of them lies, then all add each.
THINWIRE_KERNEL void accumulate_kernel(CountSketch sketch, SketchChunks chunks, SketchTiles tiles,
                                       std::uint32_t first_row, std::uint32_t rows,
                                       Reads<std::uint32_t> numbers, Reads<std::size_t> begins,
                                       Reads<float> values, Reads<float> residual, Writes<float> table) {
  __shared__ TileEntry of_block[kThreads / kWarp][kWarp];
  TileEntry* const entries = of_block[threadIdx.x / kWarp];
  const unsigned lane = lane_of_warp();
  for (std::size_t tile = warp_of_grid(); tile < rows * tiles.count; tile += warps_of_grid()) {
    const std::size_t entries_end = begins[tile + 1];
    std::size_t entry = begins[tile];
    if (entry == entries_end) continue;
    const auto row = static_cast<std::uint32_t>(tile / tiles.count);
    const std::uint64_t begin = tiles.begin(tile - row * tiles.count);
    const auto width = static_cast<unsigned>(tiles.begin(tile - row * tiles.count + 1) - begin);
    const TileLane own{static_cast<std::uint32_t>(begin) + lane, width,
                       static_cast<std::uint32_t>(sketch.columns)};
    float* const cells = table + (first_row + row) * sketch.columns + begin;
    float sums[kSlots];
#pragma unroll
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      const unsigned i = slot * kWarp + lane;
      sums[slot] = i < width ? cells[i] : 0.0f;
    }
    for (; entry < entries_end; entry += kWarp) {
      __syncwarp();
      TileEntry found{0, 0, 0, 0};
      if (entry + lane < entries_end) {
        const SketchChunk chunk = chunks.locate(numbers[entry + lane]);
        const ChunkHash hash = hash_chunk(sketch, chunk, first_row + row);
        found = {hash.signs, chunk.first, hash.column, chunk.length};
      }
      entries[lane] = found;
      __syncwarp();
      const auto size = static_cast<unsigned>(entries_end - entry < kWarp ? entries_end - entry : kWarp);
      for (unsigned e = 0; e < size; e += kAhead) add_entries(entries + e, own, values, residual, sums);
    }
#pragma unroll
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      const unsigned i = slot * kWarp + lane;
      if (i < width) cells[i] = sums[slot];
    }
  }
}

/// As many rows at a time as keep the entries of a sort below so many, for the sake of memory.
constexpr std::size_t kMostEntries = std::size_t{1} << 24;

// --- Estimates.

constexpr unsigned kChunksAtOnce = 16;
/// With more rows medians go through memory.
constexpr unsigned kMostRowsInRegisters = 7;

constexpr std::size_t hash_bytes(std::size_t rows) {
  return kThreads / kWarp * kChunksAtOnce * rows * (sizeof(std::uint64_t) + sizeof(std::uint32_t));
}
static_assert(hash_bytes(kMostSketchRows) <= 48 * 1024, "hashes must fit shared memory");

// Of two zeros the second, as vector instructions of CPUs have it.
__device__ float lesser(float a, float b) {
  return a < b ? a : b;
}
__device__ float greater(float a, float b) {
  return a > b ? a : b;
}
__device__ float median_of_3(float a, float b, float c) {
  return greater(lesser(a, b), lesser(greater(a, b), c));
}
__device__ void exchange(float& low, float& high) {
  const float a = low;
  const float b = high;
  low = lesser(a, b);
  high = greater(a, b);
}
__device__ float mean_of(float a, float b) {
  return __fmaf_rn(a, 0.5f, b * 0.5f);
}

template <unsigned kRows>
inline constexpr MedianNetwork kNetworkOf = median_network(kRows);

template <unsigned kRows, std::size_t... kAt>
__device__ void bring_middle(float (&v)[kRows], std::index_sequence<kAt...>) {
  (exchange(v[std::integral_constant<unsigned, kNetworkOf<kRows>.exchanges[kAt].first>::value],
            v[std::integral_constant<unsigned, kNetworkOf<kRows>.exchanges[kAt].second>::value]),
   ...);
}

/// The same operations as the CPU's, so the same bits.
template <unsigned kRows>
__device__ float median(float (&v)[kRows]) {
  if constexpr (kRows == 1) {
    return v[0];
  } else if constexpr (kRows == 3) {
    return median_of_3(v[0], v[1], v[2]);
  } else if constexpr (kRows == 5) {
    const float low = greater(lesser(v[0], v[1]), lesser(v[2], v[3]));
    const float high = lesser(greater(v[0], v[1]), greater(v[2], v[3]));
    return median_of_3(low, high, v[4]);
  } else {
    bring_middle(
        v, std::make_index_sequence<std::integral_constant<std::size_t, kNetworkOf<kRows>.size>::value>{});
    return kRows % 2 == 1 ? v[kRows / 2] : mean_of(v[kRows / 2 - 1], v[kRows / 2]);
  }
}

__device__ float median(const MedianNetwork& network, unsigned rows, float* v) {
  for (std::size_t e = 0; e < network.size; ++e) {
    exchange(v[network.exchanges[e].first], v[network.exchanges[e].second]);
  }
  return rows % 2 == 1 ? v[rows / 2] : mean_of(v[rows / 2 - 1], v[rows / 2]);
}

/// kRows: those of the sketch, or 0 for any number, with their network.
template <unsigned kRows>
THINWIRE_KERNEL void query_kernel(CountSketch sketch, SketchChunks chunks, MedianNetwork network,
                                  Reads<float> table, Writes<float> values) {
  const auto rows = static_cast<unsigned>(kRows == 0 ? sketch.rows : kRows);
  const unsigned lane = lane_of_warp();
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned hashes = kChunksAtOnce * rows;
  THINWIRE_SHARED_MEMORY(std::uint64_t, memory);
  std::uint64_t* const signs = memory + warp * hashes;
  std::uint32_t* const columns =
      reinterpret_cast<std::uint32_t*>(memory + kThreads / kWarp * hashes) + warp * hashes;
  for (std::size_t first = warp_of_grid() * kChunksAtOnce; first < chunks.count;
       first += warps_of_grid() * kChunksAtOnce) {
    const auto size =
        static_cast<unsigned>(chunks.count - first < kChunksAtOnce ? chunks.count - first : kChunksAtOnce);
    __syncwarp();
    for (unsigned h = lane; h < size * rows; h += kWarp) {
      const ChunkHash hash = hash_chunk(sketch, chunks.locate(first + h / rows), h % rows);
      signs[h] = hash.signs;
      columns[h] = hash.column;
    }
    __syncwarp();
    for (unsigned k = 0; k < size; ++k) {
      const SketchChunk chunk = chunks.locate(first + k);
      for (unsigned t = lane; t < chunk.length; t += kWarp) {
        float v[kRows == 0 ? kMostSketchRows : kRows];
#pragma unroll
        for (unsigned row = 0; row < rows; ++row) {
          const unsigned h = k * rows + row;
          v[row] = flip_sign(table[row * sketch.columns + column_after(sketch, columns[h], t)], signs[h], t);
        }
        if constexpr (kRows == 0) {
          values[chunk.first + t] = median(network, rows, v);
        } else {
          values[chunk.first + t] = median(v);
        }
      }
    }
  }
}

template <unsigned kRows>
void launch_query(CudaExecutor& executor, const CountSketch& sketch, const SketchChunks& chunks,
                  const float* table, float* values) {
  if constexpr (kRows != 0) {
    if (kRows != sketch.rows) {
      launch_query<kRows - 1>(executor, sketch, chunks, table, values);
      return;
    }
  }
  Grid grid = grid_for((chunks.count + kChunksAtOnce - 1) / kChunksAtOnce * kWarp);
  grid.shared_bytes = hash_bytes(sketch.rows);
  launch(executor.stream(), grid, query_kernel<kRows>, sketch, chunks,
         kRows == 0 ? median_network(sketch.rows) : MedianNetwork{}, table, values);
}

}  // namespace

void insert_blocks_on_cuda(Executor& executor, const CountSketch& sketch, const BlockList& list,
                           BlockLayout layout, Span<const float> values, Span<const float> residual,
                           Span<float> table) {
  CudaExecutor& own = executor_on_device(executor);
  Resident<const std::uint32_t> blocks(own, is_one_block(list) ? Span<const std::uint32_t>() : list.blocks);
  Resident<const float> v(own, values);
  Resident<const float> r(own, residual);
  Resident<float> cells(own, table);
  const SketchChunks chunks = chunks_of(sketch, list, blocks.data(), layout);
  const SketchTiles tiles(sketch.columns);
  const std::size_t at_once =
      std::min(sketch.rows, std::max<std::size_t>(1, kMostEntries / (2 * chunks.count)));
  const std::size_t most = 2 * chunks.count * at_once;
  const Scratch<std::uint32_t> keys(own, most);
  const Scratch<std::uint32_t> sorted_keys(own, most);
  const Scratch<std::uint32_t> numbers(own, most);
  const Scratch<std::uint32_t> sorted_numbers(own, most);
  const Scratch<std::size_t> begins(own, at_once * tiles.count + 1);
  for (std::size_t row = 0; row < sketch.rows; row += at_once) {
    const std::size_t rows = std::min(at_once, sketch.rows - row);
    const std::size_t entries = 2 * chunks.count * rows;
    const std::size_t all_tiles = rows * tiles.count;
    launch(own.stream(), grid_for(chunks.count), key_kernel, sketch, chunks, tiles,
           static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(rows),
           reinterpret_cast<uint2*>(keys.data()), reinterpret_cast<uint2*>(numbers.data()));
    sort_pairs(own, keys.data(), sorted_keys.data(), numbers.data(), sorted_numbers.data(), entries,
               static_cast<int>(std::bit_width(all_tiles)));
    launch(own.stream(), grid_for(all_tiles + 1), begin_kernel, sorted_keys.data(), entries, all_tiles,
           begins.data());
    launch(own.stream(), grid_for(all_tiles * kWarp), accumulate_kernel, sketch, chunks, tiles,
           static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(rows), sorted_numbers.data(),
           begins.data(), v.data(), r.data(), cells.data());
  }
  finish(own, blocks, v, r, cells);
}

void query_blocks_on_cuda(Executor& executor, const CountSketch& sketch, const BlockList& list,
                          BlockLayout layout, Span<const float> table, Span<float> values) {
  CudaExecutor& own = executor_on_device(executor);
  Resident<const std::uint32_t> blocks(own, is_one_block(list) ? Span<const std::uint32_t>() : list.blocks);
  Resident<const float> cells(own, table);
  Operand<float> v(own, values);
  launch_query<kMostRowsInRegisters>(own, sketch, chunks_of(sketch, list, blocks.data(), layout),
                                     cells.data(), v.data());
  finish(own, blocks, cells, v);
}

}  // namespace thinwire

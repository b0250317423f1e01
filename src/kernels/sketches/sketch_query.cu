// Estimates of a count sketch on a CUDA device. A warp takes some pieces of runs: its lanes hash them, one
// piece and row each, then every lane estimates an element of a piece, all rows of which it holds in
// registers.

#include "kernels/device/device.h"
#include "kernels/device/resident.h"
#include "kernels/sketches/median_network.h"
#include "kernels/sketches/sketch_device.h"

namespace thinwire::cuda {
namespace {

constexpr unsigned kPiecesAtOnce = 16;
/// With more rows medians go through memory.
constexpr unsigned kMostRowsInRegisters = 7;

constexpr std::size_t hash_bytes(std::size_t rows) {
  return kThreads / kWarp * kPiecesAtOnce * rows * (sizeof(std::uint64_t) + sizeof(std::uint32_t));
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
__global__ void __launch_bounds__(kThreads)
    query_kernel(CountSketch sketch, SketchPieces pieces, MedianNetwork network,
                 const float* __restrict__ table, float* __restrict__ values) {
  const auto rows = static_cast<unsigned>(kRows == 0 ? sketch.rows : kRows);
  const unsigned lane = lane_of_warp();
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned hashes = kPiecesAtOnce * rows;
  THINWIRE_SHARED_MEMORY(std::uint64_t, memory);
  std::uint64_t* const signs = memory + warp * hashes;
  std::uint32_t* const columns =
      reinterpret_cast<std::uint32_t*>(memory + kThreads / kWarp * hashes) + warp * hashes;
  for (std::size_t first = warp_of_grid() * kPiecesAtOnce; first < pieces.count;
       first += warps_of_grid() * kPiecesAtOnce) {
    const auto size =
        static_cast<unsigned>(pieces.count - first < kPiecesAtOnce ? pieces.count - first : kPiecesAtOnce);
    __syncwarp();
    for (unsigned h = lane; h < size * rows; h += kWarp) {
      const SketchPlace place = place_of(sketch, pieces.locate(first + h / rows), h % rows);
      signs[h] = place.signs;
      columns[h] = place.column;
    }
    __syncwarp();
    for (unsigned k = 0; k < size; ++k) {
      const SketchPiece piece = pieces.locate(first + k);
      for (unsigned t = lane; t < piece.length; t += kWarp) {
        float v[kRows == 0 ? kMostSketchRows : kRows];
#pragma unroll
        for (unsigned row = 0; row < rows; ++row) {
          const unsigned h = k * rows + row;
          v[row] = flip_sign(table[row * sketch.columns + column_after(sketch, columns[h], t)], signs[h], t);
        }
        if constexpr (kRows == 0) {
          values[piece.place + t] = median(network, rows, v);
        } else {
          values[piece.place + t] = median(v);
        }
      }
    }
  }
}

template <unsigned kRows>
void launch_query(CudaExecutor& executor, const CountSketch& sketch, const SketchPieces& pieces,
                  const float* table, float* values) {
  if constexpr (kRows != 0) {
    if (kRows != sketch.rows) {
      launch_query<kRows - 1>(executor, sketch, pieces, table, values);
      return;
    }
  }
  Grid grid = grid_for((pieces.count + kPiecesAtOnce - 1) / kPiecesAtOnce * kWarp);
  grid.shared_bytes = hash_bytes(sketch.rows);
  launch(executor.stream(), grid, query_kernel<kRows>, sketch, pieces,
         kRows == 0 ? median_network(sketch.rows) : MedianNetwork{}, table, values);
}

}  // namespace

void query(CudaExecutor& executor, const CountSketch& sketch, const SketchPieces& pieces, const float* table,
           float* values) {
  launch_query<kMostRowsInRegisters>(executor, sketch, pieces, table, values);
}

void query(Executor& executor, const CountSketch& sketch, const BlockList& list, BlockLayout layout,
           Span<const float> table, Span<float> values) {
  CudaExecutor& own = executor_on_device(executor);
  Resident<const std::uint32_t> blocks(own, list.blocks);
  Resident<const float> cells(own, table);
  Operand<float> v(own, values);
  query(own, sketch, pieces_of(sketch, list, blocks.data(), layout), cells.data(), v.data());
  finish(own, blocks, cells, v);
}

}  // namespace thinwire::cuda

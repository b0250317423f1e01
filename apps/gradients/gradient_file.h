#pragma once
// Gradients of real training as files, one per rank. `thinwire train --record` writes them, and
// `thinwire simulate --gradients` replays them, so that systems are compared on what models really
// produce without training again.
//
// Layout, everything little-endian (docs/wire_formats.md has the table):
//
//   file    "TWGRADS1"  u32 rank  u32 world size  step*
//   step    u64 step  u32 tensors  tensor*  u64 FNV-1a hash of the step's bytes before it
//   tensor  u32 name length  name  u32 kind (0 dense, 1 rows)  u64 rows  u64 width  u64 count
//           u32 indices[count] (rows only)  f32 values[count * width]
//
// A dense tensor has rows = count = its elements, and width 1. A table lists `count` of its rows in the order
// in which backward() made them, so a row may come more than once. Each step stands for itself: a file that
// training left in the middle of a step is recognised as cut short.

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iosfwd>
#include <string>
#include <vector>

namespace thinwire::apps {

/// One parameter's gradient.
struct RecordedTensor {
  std::string name{};
  bool row_sparse = false;
  std::size_t rows = 0;                  ///< Of the table; dense: all elements.
  std::size_t width = 1;                 ///< Values per row; dense: 1.
  std::vector<std::uint32_t> indices{};  ///< [count], each below rows, repetitions allowed; dense: empty.
  std::vector<float> values{};           ///< [count * width]; dense: [rows].
};

struct RecordedStep {
  std::uint64_t step = 0;  ///< Of training, from 0.
  std::vector<RecordedTensor> tensors{};
};

struct GradientFile {
  int rank = 0;
  int world_size = 1;
  std::vector<RecordedStep> steps{};  ///< Ascending; all with the same tensors in the same order.
};

/// Throws std::runtime_error naming the file, the field and its value when it is missing, cut short, or holds
/// what cannot be: nothing is allocated that the file's own length does not pay for.
GradientFile read_gradient_file(const std::string& path);

/// The same from any stream that can be sought in; `name` is what errors call it.
GradientFile read_gradients(std::istream& stream, const std::string& name);

/// Writes one rank's file, step after step.
class GradientFileWriter {
 public:
  /// Begins the file anew. Throws std::runtime_error if it cannot be written, std::invalid_argument for a
  /// rank outside [0, world_size).
  GradientFileWriter(std::string path, int rank, int world_size);

  /// Throws std::invalid_argument for a step that a reader would refuse (an index outside the table, a length
  /// that does not fit, other tensors than the first step's), std::runtime_error if the disk is full.
  void append(const RecordedStep& step);

 private:
  std::string path_;
  std::ofstream stream_;
  bool any_ = false;
  RecordedStep last_;  // without indices and values
};

}  // namespace thinwire::apps

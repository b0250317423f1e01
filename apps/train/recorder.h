#pragma once
// `train --record N`: gradients of a run's steps, kept for `thinwire simulate`.

#include <memory>
#include <string>

#include "apps/train/gradients.h"
#include "thinwire/communicator.h"

namespace thinwire::train {

class Recorder {
 public:
  /// Writes this rank's file into `folder`: `steps` of the next steps, those whose number is a multiple of
  /// `every` (at least 1). No steps: does nothing at all.
  Recorder(const std::string& folder, int steps, int every, const Communicator& communicator);

  /// Between backward() and the synchronization. Throws std::runtime_error if the disk is full.
  void step(const Gradients& gradients, std::uint64_t step);

  /// gradients-rank-R.twg
  static std::string file_name(int rank);

 private:
  int left_;
  std::uint64_t every_;
  std::unique_ptr<apps::GradientFileWriter> writer_;
};

}  // namespace thinwire::train

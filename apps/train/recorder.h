#pragma once
// `train --record N`: the gradients of a run's first steps, kept for `thinwire simulate`.

#include <memory>
#include <string>

#include "gradients.h"
#include "thinwire/communicator.h"

namespace thinwire::train {

class Recorder {
 public:
  /// Writes this rank's file into `folder` during the next `steps` steps; 0: does nothing at all.
  Recorder(const std::string& folder, int steps, const Communicator& communicator);

  /// Between backward() and the synchronization. Throws std::runtime_error if the disk is full.
  void step(const Gradients& gradients, std::uint64_t step);

  /// gradients-rank-R.twg
  static std::string file_name(int rank);

 private:
  int left_;
  std::unique_ptr<apps::GradientFileWriter> writer_;
};

}  // namespace thinwire::train

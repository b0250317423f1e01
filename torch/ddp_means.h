#pragma once
// A step's means that go out together.
//
// With find_unused_parameters DDP sums a map of used parameters by its own group.
// After backward it takes the first bucket's mean, and then waits for that sum.
// Where a rank has gone meanwhile, the sum fails first, with an error that names nobody.
// So there no mean goes out before the step's last one has come.
// If a rank goes, the first bucket ends with the error that names it.

#include <ATen/ATen.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "torch/ddp_layout.h"

namespace thinwire {

class StepMeans : public std::enable_shared_from_this<StepMeans> {
 public:
  /// One more bucket of the step. The result holds a mean back and passes an error on at once.
  DdpDone add(DdpDone done);

  /// No more buckets come: when the means of all that were added are here, they go out.
  void all_were_added();

  /// What is held back ends with the error, and so does what comes from now on.
  void fail(const std::exception_ptr& error);

 private:
  struct Held {
    DdpDone done;
    at::Tensor mean;
  };

  void take(Held held, const std::exception_ptr& error);
  std::vector<Held> take_out();

  std::mutex mutex_;
  std::size_t added_ = 0;
  bool all_added_ = false;
  std::vector<Held> held_;
  std::exception_ptr error_;
};

}  // namespace thinwire

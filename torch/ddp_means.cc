#include "torch/ddp_means.h"

namespace thinwire {
namespace {

/// One throws: the others go out all the same.
template <typename Range>
void give(Range&& range, const std::exception_ptr& error) {
  std::exception_ptr first;
  for (auto& held : range) {
    try {
      held.done(error ? at::Tensor() : std::move(held.mean), error);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace

DdpDone StepMeans::add(DdpDone done) {
  const std::lock_guard lock(mutex_);
  ++added_;
  return [means = shared_from_this(), done = std::move(done)](at::Tensor mean,
                                                              const std::exception_ptr& error) mutable {
    means->take({std::move(done), std::move(mean)}, error);
  };
}

void StepMeans::take(Held held, const std::exception_ptr& error) {
  std::vector<Held> out;
  std::exception_ptr shared;
  {
    const std::lock_guard lock(mutex_);
    if (error && !error_) error_ = error;
    held_.push_back(std::move(held));
    shared = error_;
    out = take_out();
  }
  give(out, shared);
}

void StepMeans::all_were_added() {
  std::vector<Held> out;
  {
    const std::lock_guard lock(mutex_);
    all_added_ = true;
    out = take_out();
  }
  give(out, nullptr);
}

void StepMeans::fail(const std::exception_ptr& error) {
  std::vector<Held> out;
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    out = take_out();
  }
  give(out, error);
}

/// With the lock held.
std::vector<StepMeans::Held> StepMeans::take_out() {
  const bool complete = all_added_ && held_.size() == added_;
  if (!error_ && !complete) return {};
  return std::exchange(held_, {});
}

}  // namespace thinwire

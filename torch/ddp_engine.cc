#include "torch/ddp_engine.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

#include "torch/ddp_lane.h"

namespace thinwire {

DdpEngine::DdpEngine(std::vector<std::unique_ptr<C10dCommunicator>> lanes,
                     const c10::intrusive_ptr<c10d_compat::Group>& device_group, std::string spec,
                     Options options)
    : options_(options), spec_(std::move(spec)) {
  if (lanes.empty()) throw std::invalid_argument("an engine of 0 lanes: at least 1 is needed");
  for (auto& communicator : lanes) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->communicator = std::move(communicator);
    lanes_.back()->executor = make_cpu_executor(options_.threads);
    if (device_group) {
      lanes_.back()->communicator->set_device_group(device_group,
                                                    [this, &lane = *lanes_.back()] { wait_for_turn(lane); });
    }
  }
  spec_ = Session(spec_, *lanes_[0]->communicator).spec();
  for (auto& lane : lanes_) lane->thread = std::thread([this, &lane = *lane] { drive(lane); });
}

DdpEngine::~DdpEngine() {
  close();
  const KeepCurrentDevice current;
  lanes_.clear();
}

void DdpEngine::close() {
  {
    const Lock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    changed_.notify_all();
  }
  for (auto& lane : lanes_) lane->thread.join();
  for (Item& item : std::exchange(held_, {})) {
    item.done({}, std::make_exception_ptr(std::runtime_error("Thinwire's engine was closed")));
  }
  // Each waits a little for the other ranks to come to this point: all at the same time.
  std::vector<std::thread> leaving;
  for (auto& lane : lanes_) leaving.emplace_back([&lane] { lane->communicator.reset(); });
  for (auto& thread : leaving) thread.join();
}

DdpEngine::Layout DdpEngine::layout_of(const Bucket& bucket) const {
  const at::Tensor& gradient = bucket.gradient;
  Layout layout;
  layout.parameters = bucket.parameters;
  layout.compressible = is_compressible(gradient.scalar_type());
  if (!gradient.is_sparse()) {
    if (layout.compressible && options_.devices_compress) layout.device = session_device(gradient);
    if (!gradient.is_contiguous() || static_cast<std::size_t>(gradient.numel()) != layout.elements()) {
      throw std::invalid_argument("bucket " + std::to_string(bucket.index) + " has " +
                                  std::to_string(gradient.numel()) + " elements, its parameters " +
                                  std::to_string(layout.elements()) + ", or its elements are not contiguous");
    }
    return layout;
  }
  if (bucket.parameters.size() != 1 || gradient.sparse_dim() != 1 || !layout.compressible) {
    throw std::invalid_argument(
        "bucket " + std::to_string(bucket.index) + " holds a sparse gradient of type " +
        c10::toString(gradient.scalar_type()) + " with " + std::to_string(gradient.sparse_dim()) +
        " sparse dimensions for " + std::to_string(bucket.parameters.size()) +
        " parameters: only rows of one parameter in float32, float16 or bfloat16 can be synchronized" +
        (gradient.sparse_dim() == 1 ? ""
                                    : ". Join hands over such zeros for sparse embeddings, which plain DDP "
                                      "cannot join either: take sparse=False, or leave out Join"));
  }
  layout.row_sparse = true;
  layout.rows = static_cast<std::size_t>(gradient.size(0));
  layout.width = layout.rows == 0 ? 1 : std::max<std::size_t>(layout.elements() / layout.rows, 1);
  return layout;
}

void DdpEngine::submit(Bucket bucket, Done done) {
  const Layout layout = layout_of(bucket);
  if (!bucket.gradient.device().is_cpu()) bucket.complete = Completion(bucket.gradient.device());
  Lock lock(mutex_);
  if (closed_ || failure_) {
    const auto error = failure_ ? failure_
                                : std::make_exception_ptr(std::runtime_error(
                                      "Thinwire's engine was closed: register the model again"));
    lock.unlock();
    done({}, error);
    return;
  }
  if (bucket.index == 0) {
    give_up_step(lock);
    try {
      begin_step(lock);
    } catch (...) {
      // No memory for another system's state: ranks that wait for this one's frames learn of it when it ends.
      fail(std::current_exception());
    }
  }
  const bool last = bucket.last;
  const std::size_t count = bucket.index + 1;
  // DDP groups parameters anew in its second step. Where a step may have to be undone, nothing of it may be
  // done before it is known whether it does.
  const bool may_be_undone = options_.skips_steps && submitted_steps_ < 2;
  const bool known =
      !may_be_undone && held_.empty() && bucket.index < layouts_.size() && layouts_[bucket.index] == layout;
  Item item{std::move(bucket), std::move(done)};
  if (known) {
    push(std::move(item));
  } else {
    held_.push_back(std::move(item));
  }
  if (!last) return;
  if (!held_.empty() || count != layouts_.size()) {
    settle(lock);
    std::vector<Layout> layouts(layouts_.begin(),
                                layouts_.begin() + static_cast<std::ptrdiff_t>(count - held_.size()));
    for (const Item& held : held_) layouts.push_back(layout_of(held.bucket));
    try {
      if (resumes_) {
        const std::vector<Layout> saved = loaded_ ? saved_layouts(*loaded_, layouts) : layouts_;
        const std::size_t first = layouts.size() - held_.size();
        auto items = saved == layouts ? std::vector<Item>() : regrouped(held_, saved, first);
        if (!items.empty()) {
          held_ = std::move(items);
          layouts = saved;
        }
      }
      if (layouts != layouts_) rebuild(std::move(layouts), spec_);
    } catch (...) {
      fail(std::current_exception());
    }
    for (Item& held : std::exchange(held_, {})) push(std::move(held));
  }
  end_step();
}

/// Ends a step whose last bucket never came, since its backward was given up, and fails what was held back of
/// it.
void DdpEngine::give_up_step(Lock& lock) {
  if (!within_step_) return;
  std::vector<Item> abandoned = std::exchange(held_, {});
  end_step();
  lock.unlock();
  const auto error =
      std::make_exception_ptr(std::runtime_error("backward ended before the last bucket of its step"));
  for (Item& item : abandoned) item.done({}, error);
  lock.lock();
}

void DdpEngine::begin_step(Lock& lock) {
  conclude_step(lock);
  within_step_ = true;
  if (next_spec_) {
    if (layouts_.empty()) {
      spec_ = *next_spec_;
    } else {
      rebuild(layouts_, *next_spec_);
    }
    next_spec_.reset();
  }
}

/// Waits for the last step; where it is left out by the optimizer, so is what it changed.
void DdpEngine::conclude_step(Lock& lock) {
  settle(lock);
  const bool undo = std::exchange(skipped_, false) && options_.skips_steps;
  std::optional<KeepCurrentDevice> current;
  if (undo) current.emplace();
  for (auto& lane : lanes_) {
    if (undo) {
      for (const BucketId bucket : lane->kept) lane->session->restore_residual(bucket);
      for (const auto& [name, values] : lane->kept_owed) owed_[name] = values;
    }
    lane->kept.clear();
    lane->kept_owed.clear();
  }
}

void DdpEngine::end_step() {
  for (auto& lane : lanes_) lane->queue.push_back({});
  ++step_;
  ++submitted_steps_;
  resumes_ = false;
  within_step_ = false;
  changed_.notify_all();
}

void DdpEngine::push(Item item) {
  lanes_[item.bucket.index % lanes_.size()]->queue.push_back(std::move(item));
  changed_.notify_all();
}

/// Returns when every lane is idle.
void DdpEngine::settle(Lock& lock) {
  changed_.wait(lock, [&] {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return lane->queue.empty() && !lane->busy; });
  });
}

void DdpEngine::fail(std::exception_ptr error) {
  if (!failure_) failure_ = std::move(error);
}

void DdpEngine::drive(Lane& lane) {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !lane.queue.empty(); });
    if (lane.queue.empty()) return;
    Item item = std::move(lane.queue.front());
    lane.queue.pop_front();
    if (!item.done) {
      if (lane.session) lane.session->next_step();
      changed_.notify_all();
      continue;
    }
    std::exception_ptr error = failure_;
    lane.busy = true;
    lane.bucket = item.bucket.index;
    lock.unlock();
    StepReport report;
    at::Tensor mean;
    if (!error) {
      try {
        mean = synchronize(lane, item.bucket, report);
      } catch (...) {
        error = std::current_exception();
      }
    }
    // Before anyone learns of it, so that a report taken after backward holds this step.
    lock.lock();
    if (error) {
      fail(error);
    } else {
      report.bucket = static_cast<std::uint32_t>(item.bucket.index);
      reports_[item.bucket.index] = report;
      total_.accumulate(report);
      skipped_ = skipped_ || !report.finite;
    }
    lock.unlock();
    try {
      const auto device = item.bucket.gradient.device();
      const auto current =
          device.is_cpu() ? DeviceStaging::Guard() : DeviceStaging::Guard(lane.device.stream(device));
      item.done(std::move(mean), error);
      error = nullptr;
    } catch (...) {
      error = std::current_exception();
    }
    item = {};
    lock.lock();
    if (error) fail(error);
    lane.busy = false;
    changed_.notify_all();
  }
}

/// Returns when no bucket before the one on this lane is on another; for the lane's own thread.
void DdpEngine::wait_for_turn(const Lane& lane) {
  Lock lock(mutex_);
  const auto is_behind = [&](const std::unique_ptr<Lane>& other) {
    if (other->busy && other->bucket < lane.bucket) return false;
    return other->queue.empty() || !other->queue.front().done ||
           other->queue.front().bucket.index > lane.bucket;
  };
  changed_.wait(lock, [&] { return failure_ || std::all_of(lanes_.begin(), lanes_.end(), is_behind); });
  // The bucket before may have failed on this rank alone; its operations would be missing.
  if (failure_) std::rethrow_exception(failure_);
}

void DdpEngine::set_spec(std::string spec) {
  const Lock lock(mutex_);
  if (closed_) throw std::runtime_error("Thinwire's engine was closed: register the model again");
  next_spec_ = Session(spec, *lanes_[0]->communicator).spec();
}

std::string DdpEngine::spec() const {
  const Lock lock(mutex_);
  return next_spec_.value_or(spec_);
}

std::uint64_t DdpEngine::step() const {
  const Lock lock(mutex_);
  return loaded_ ? loaded_->get_integer("step") : step_;
}

std::string DdpEngine::report() const {
  const Lock lock(mutex_);
  std::string buckets;
  StepReport last;
  for (const StepReport& report : reports_) {
    buckets += (buckets.empty() ? "" : ", ") + to_json(report);
    last.accumulate(report);
  }
  return "{\"buckets\": [" + buckets + "], \"last_step\": " + to_json(last) +
         ", \"total\": " + to_json(total_) + "}";
}

std::vector<std::optional<int>> DdpEngine::bucket_devices() const {
  const Lock lock(mutex_);
  std::vector<std::optional<int>> devices;
  for (std::size_t index = 0; index < layouts_.size(); ++index) {
    const bool may = layouts_[index].compressible && !layouts_[index].row_sparse;
    devices.push_back(may ? lanes_[index % lanes_.size()]->session_device : std::nullopt);
  }
  return devices;
}

std::vector<std::vector<std::string>> DdpEngine::bucket_parameters() const {
  const Lock lock(mutex_);
  std::vector<std::vector<std::string>> names;
  for (const Layout& layout : layouts_) {
    names.emplace_back();
    for (const Parameter& parameter : layout.parameters) names.back().push_back(parameter.name);
  }
  return names;
}

}  // namespace thinwire

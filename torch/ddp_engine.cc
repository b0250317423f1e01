#include "torch/ddp_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/stopwatch.h"
#include "kernels/half.h"

namespace thinwire {
namespace {

bool is_half(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16;
}

/// Whether a system can take it: everything else is summed as it is.
bool is_compressible(at::ScalarType type) {
  return type == at::kFloat || is_half(type);
}

HalfFormat half_format(at::ScalarType type) {
  return type == at::kHalf ? HalfFormat::fp16 : HalfFormat::bf16;
}

Span<std::uint16_t> halves_of(const at::Tensor& tensor) {
  return {static_cast<std::uint16_t*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

Span<float> floats_of(const at::Tensor& tensor, Memory memory = Memory::host) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel()), memory};
}

/// values += what is owed, wherever `values` lies.
void add_owed(const at::Tensor& values, std::vector<float>& owed) {
  values.add_(
      at::from_blob(owed.data(), {static_cast<std::int64_t>(owed.size())}, at::kFloat).to(values.device()));
}

std::string residual_entry(const std::string& parameter) {
  return "residual/" + parameter;
}

/// Kinds of values in units of gradients. Everything else that systems keep is relative, or about time.
bool in_units_of_gradients(std::string_view name) {
  constexpr std::array<std::string_view, 6> kKinds = {"residual",     "velocity",           "casq_momentum",
                                                      "casq_centres", "casq_shard_centres", "marsit_eta"};
  return std::find(kKinds.begin(), kKinds.end(), name.substr(0, name.find('/'))) != kKinds.end();
}

/// The same state, what is in units of gradients times `factor`.
StateWriter rewritten(const StateReader& state, float factor) {
  StateWriter writer;
  for (const std::string& name : state.names("")) {
    switch (state.type(name)) {
      case StateReader::Type::floats: {
        std::vector<float> values(state.length(name));
        state.get(name, values);
        if (in_units_of_gradients(name)) {
          for (float& value : values) value *= factor;
        }
        writer.put(name, Span<const float>(values));
        break;
      }
      case StateReader::Type::integer:
        writer.put(name, state.get_integer(name));
        break;
      case StateReader::Type::real:
        writer.put(name, state.get_real(name));
        break;
      case StateReader::Type::text:
        writer.put(name, std::string_view(state.get_text(name)));
        break;
    }
  }
  return writer;
}

}  // namespace

/// What a bucket is, apart from its values.
struct DdpEngine::Layout {
  BucketLayout parameters;
  bool row_sparse = false;
  std::size_t rows = 0;
  std::size_t width = 1;
  bool compressible = true;
  std::optional<int> device;  // where a session can compress it; nullopt: on the host

  std::size_t elements() const {
    std::size_t total = 0;
    for (const Parameter& parameter : parameters) total += parameter.elements;
    return total;
  }
  bool operator==(const Layout& other) const {
    const auto same = [](const Parameter& a, const Parameter& b) {
      return a.name == b.name && a.elements == b.elements && a.rows == b.rows;
    };
    return std::equal(parameters.begin(), parameters.end(), other.parameters.begin(), other.parameters.end(),
                      same) &&
           row_sparse == other.row_sparse && rows == other.rows && width == other.width &&
           compressible == other.compressible && device == other.device;
  }
};

/// What a lane does next: a bucket, or (no `done`) the end of a step.
struct DdpEngine::Item {
  Bucket bucket;
  Done done;
};

struct DdpEngine::Lane {
  std::unique_ptr<C10dCommunicator> communicator;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Session> session;  // replaced only while the lane is idle
  std::optional<int> session_device;
  std::map<std::size_t, at::Tensor> staging;  // float32 of half-precision buckets
  /// Buckets of the last step whose residuals the session kept, and what parameters in owed_ owed before it.
  /// Only where steps may be skipped.
  std::vector<BucketId> kept;
  std::map<std::string, std::vector<float>> kept_owed;
  std::vector<std::uint32_t> row_indices;
  std::vector<float> row_values;
  DeviceStaging device;
  std::deque<Item> queue;
  bool busy = false;
  std::thread thread;
};

DdpEngine::DdpEngine(std::vector<std::unique_ptr<C10dCommunicator>> lanes, std::string spec, Options options)
    : options_(options), spec_(std::move(spec)) {
  if (lanes.empty()) throw std::invalid_argument("an engine of 0 lanes: at least 1 is needed");
  for (auto& communicator : lanes) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->communicator = std::move(communicator);
    lanes_.back()->executor = make_cpu_executor(options_.threads);
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
    std::vector<Item> abandoned;
    try {
      abandoned = begin_step(lock);
    } catch (...) {
      // No memory for another system's state: ranks that wait for this one's frames learn of it when it ends.
      fail(std::current_exception());
    }
    if (!abandoned.empty()) {
      lock.unlock();
      const auto error =
          std::make_exception_ptr(std::runtime_error("backward ended before the last bucket of its step"));
      for (Item& item : abandoned) item.done({}, error);
      lock.lock();
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
      if (layouts != layouts_) rebuild(std::move(layouts), spec_);
    } catch (...) {
      fail(std::current_exception());
    }
    for (Item& held : std::exchange(held_, {})) push(std::move(held));
  }
  end_step();
}

/// Also ends a step whose last bucket never came, since its backward was given up; returns what was held back
/// of it.
std::vector<DdpEngine::Item> DdpEngine::begin_step(Lock& lock) {
  std::vector<Item> abandoned;
  if (within_step_) {
    abandoned = std::exchange(held_, {});
    end_step();
  }
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
  return abandoned;
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

/// Before the bucket's step, in case that it is left out.
void DdpEngine::keep(Lane& lane, const Bucket& bucket) {
  if (!options_.skips_steps) return;
  const auto id = static_cast<BucketId>(bucket.index);
  lane.session->keep_residual(id);
  lane.kept.push_back(id);
  for (const Parameter& parameter : bucket.parameters) {
    const auto owed = owed_.find(parameter.name);
    if (owed != owed_.end()) lane.kept_owed[parameter.name] = owed->second;
  }
}

void DdpEngine::end_step() {
  for (auto& lane : lanes_) lane->queue.push_back({});
  ++step_;
  ++submitted_steps_;
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

StateWriter DdpEngine::merged_state() const {
  StateWriter writer;
  for (const auto& lane : lanes_) {
    StateWriter own;
    if (lane->session) lane->session->save(own);
    writer.absorb(std::move(own));
  }
  return writer;
}

/// The one on which a session can compress all of a lane's dense buckets, if there is one.
std::optional<int> DdpEngine::device_of_lane(const std::vector<Layout>& layouts, std::size_t lane) const {
  std::optional<int> device;
  for (std::size_t index = lane; index < layouts.size(); index += lanes_.size()) {
    const Layout& layout = layouts[index];
    if (!layout.compressible || layout.row_sparse) continue;
    if (!layout.device || (device && device != layout.device)) return std::nullopt;
    device = layout.device;
  }
  return device;
}

/// Sessions for these buckets; lanes must be idle. Moves over what the old sessions, or a loaded state, hold.
/// An exception leaves everything as it was.
void DdpEngine::rebuild(std::vector<Layout> layouts, const std::string& spec) {
  const KeepCurrentDevice current;
  std::optional<StateReader> state;
  auto owed = owed_;
  std::uint64_t step = step_;
  if (loaded_) {
    state = *loaded_;
    owed.clear();
    step = state->get_integer("step");
  } else if (lanes_[0]->session) {
    state.emplace(merged_state());
  }
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::optional<int>> devices;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    devices.push_back(device_of_lane(layouts, lane));
    sessions.push_back(std::make_unique<Session>(
        spec, *lanes_[lane]->communicator,
        SessionOptions{.seed = options_.seed,
                       .threads = options_.threads,
                       .cuda_device = devices.back(),
                       .configuration = "lane " + std::to_string(lane) + " of " +
                                        std::to_string(lanes_.size()) + ", compressed on " +
                                        (devices.back() ? "a CUDA device" : "the CPU")}));
    Session& session = *sessions.back();
    for (std::size_t index = 0; index < layouts.size(); ++index) {
      const Layout& layout = layouts[index];
      // Ids count over all lanes: randomness depends on them.
      if (index % lanes_.size() != lane || !layout.compressible) {
        session.add_bucket({});
      } else if (layout.row_sparse) {
        session.add_rows(layout.parameters[0].name, layout.rows, layout.width);
      } else {
        session.add_bucket(layout.parameters);
      }
    }
    if (state && state->get_text("spec") == session.spec()) session.load(*state);
  }
  // What the sessions did not load: residuals of another spec, or of one that has none.
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    Session& session = *sessions[index % lanes_.size()];
    const auto id = static_cast<BucketId>(index);
    const bool feedback = session.pipeline(id).feedback;
    const bool loaded = feedback && state && state->get_text("spec") == session.spec();
    std::vector<float> owing(layouts[index].compressible && feedback ? layouts[index].elements() : 0);
    std::size_t begin = 0;
    bool owes = false;
    for (const Parameter& parameter : layouts[index].parameters) {
      auto& sum = owed[parameter.name];
      const std::string entry = residual_entry(parameter.name);
      if (!loaded && state && state->contains(entry)) {
        std::vector<float> values(parameter.elements);
        state->get(entry, values);
        sum.resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
      }
      if (owing.empty()) continue;
      owes = owes || !sum.empty();
      std::copy(sum.begin(), sum.end(), owing.begin() + static_cast<std::ptrdiff_t>(begin));
      sum.clear();
      begin += parameter.elements;
    }
    if (owes) session.add_to_residual(id, owing);
  }
  // From here on nothing throws.
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    while (sessions[lane]->step() < step) sessions[lane]->next_step();
    lanes_[lane]->session = std::move(sessions[lane]);
    lanes_[lane]->session_device = devices[lane];
    lanes_[lane]->staging.clear();
    lanes_[lane]->kept.clear();
    lanes_[lane]->kept_owed.clear();
  }
  step_ = step;
  loaded_.reset();
  owed_ = std::move(owed);
  reports_.assign(layouts.size(), StepReport());
  layouts_ = std::move(layouts);
  spec_ = lanes_[0]->session->spec();
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

at::Tensor DdpEngine::synchronize(Lane& lane, const Bucket& bucket, StepReport& report) {
  keep(lane, bucket);
  lane.session->set_learning_rate(learning_rate_);
  const at::Tensor& gradient = bucket.gradient;
  if (gradient.is_sparse()) return synchronize_rows(lane, bucket, report);
  if (lane.session_device && is_compressible(gradient.scalar_type())) {
    synchronize_on_device(lane, bucket, report);
  } else if (gradient.device().is_cpu()) {
    synchronize_dense(lane, bucket, gradient, report);
  } else {
    const at::Tensor host = lane.device.to_host(gradient, bucket.complete);
    synchronize_dense(lane, bucket, host, report);
    lane.device.to_device(host, gradient);
  }
  return gradient;
}

/// gradient: the bucket's, in host memory.
void DdpEngine::synchronize_dense(Lane& lane, const Bucket& bucket, const at::Tensor& gradient,
                                  StepReport& report) {
  if (!is_compressible(gradient.scalar_type())) {
    synchronize_plainly(lane, bucket, gradient, report);
  } else if (gradient.scalar_type() == at::kFloat) {
    synchronize_floats(lane, bucket, gradient, Memory::host, report);
  } else {
    at::Tensor& staging = lane.staging[bucket.index];
    if (!staging.defined()) staging = at::empty({gradient.numel()}, at::kFloat);
    const HalfFormat format = half_format(gradient.scalar_type());
    decode_half(*lane.executor, format, halves_of(gradient), floats_of(staging));
    synchronize_floats(lane, bucket, staging, Memory::host, report);
    // Also a mean that is too large for the type is for the optimizer to leave out.
    report.finite =
        encode_half(*lane.executor, format, Span<const float>(floats_of(staging)), {}, halves_of(gradient)) &&
        report.finite;
  }
}

/// Where the session has the gradient's device.
void DdpEngine::synchronize_on_device(Lane& lane, const Bucket& bucket, StepReport& report) {
  const at::Tensor& gradient = bucket.gradient;
  const auto current = lane.device.enter(gradient, bucket.complete);
  if (gradient.scalar_type() == at::kFloat) {
    synchronize_floats(lane, bucket, gradient, Memory::cuda, report);
  } else {
    at::Tensor& staging = lane.staging[bucket.index];
    if (!staging.defined()) staging = at::empty({gradient.numel()}, gradient.options().dtype(at::kFloat));
    staging.copy_(gradient.view(-1));
    synchronize_floats(lane, bucket, staging, Memory::cuda, report);
    gradient.view(-1).copy_(staging);
    report.finite = report.finite && at::isfinite(gradient).all().item<bool>();
  }
}

/// values: float32, of the bucket's elements in their order.
void DdpEngine::synchronize_floats(Lane& lane, const Bucket& bucket, const at::Tensor& values, Memory memory,
                                   StepReport& report) {
  std::vector<std::vector<float>*> delivering;
  if (!owed_.empty()) {
    std::int64_t begin = 0;
    for (const Parameter& parameter : bucket.parameters) {
      const auto elements = static_cast<std::int64_t>(parameter.elements);
      const auto owed = owed_.find(parameter.name);
      if (owed != owed_.end() && !owed->second.empty()) {
        add_owed(values.view(-1).narrow(0, begin, elements), owed->second);
        delivering.push_back(&owed->second);
      }
      begin += elements;
    }
  }
  // The session's stream is another.
  if (memory == Memory::cuda) lane.device.wait();
  report = lane.session->synchronize(static_cast<BucketId>(bucket.index), floats_of(values, memory));
  if (report.finite) {
    for (auto* owed : delivering) owed->clear();
  }
}

at::Tensor DdpEngine::synchronize_rows(Lane& lane, const Bucket& bucket, StepReport& report) {
  const at::Tensor& gradient = bucket.gradient;
  const auto current = lane.device.enter(gradient, bucket.complete);
  const auto rows = static_cast<std::size_t>(gradient.size(0));
  const auto width = layouts_[bucket.index].width;
  const at::Tensor indices = gradient._indices().to(at::kCPU, at::kLong).contiguous();
  const at::Tensor values = gradient._values().to(at::kCPU, at::kFloat).contiguous();
  const auto count = static_cast<std::size_t>(indices.numel());
  lane.row_indices.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t row = indices.data_ptr<std::int64_t>()[i];
    // Only the session can say it well; it refuses what is not below `rows`.
    lane.row_indices[i] = row < 0 || static_cast<std::uint64_t>(row) >= rows
                              ? static_cast<std::uint32_t>(rows)
                              : static_cast<std::uint32_t>(row);
  }
  Span<float> row_values = floats_of(values);
  std::vector<float>* delivering = nullptr;
  if (const auto owed = owed_.find(bucket.parameters[0].name); owed != owed_.end() && !owed->second.empty()) {
    delivering = &owed->second;
    lane.row_values.assign(row_values.begin(), row_values.end());
    for (std::size_t row = 0; row < rows; ++row) {
      const auto begin = delivering->begin() + static_cast<std::ptrdiff_t>(row * width);
      const auto end = begin + static_cast<std::ptrdiff_t>(width);
      if (std::all_of(begin, end, [](float value) { return value == 0; })) continue;
      lane.row_indices.push_back(static_cast<std::uint32_t>(row));
      lane.row_values.insert(lane.row_values.end(), begin, end);
    }
    row_values = lane.row_values;
  }
  RowSparse own;
  own.row_indices = lane.row_indices;
  own.values = row_values;
  own.rows = rows;
  own.width = width;
  const auto id = static_cast<BucketId>(bucket.index);
  const RowSparse mean = lane.session->synchronize_rows(id, own);
  report = lane.session->report(id);
  if (delivering != nullptr && report.finite) delivering->clear();

  const auto kept = static_cast<std::int64_t>(mean.size());
  at::Tensor mean_indices = at::empty({1, kept}, at::kLong);
  std::copy(mean.row_indices.begin(), mean.row_indices.end(), mean_indices.data_ptr<std::int64_t>());
  std::vector<std::int64_t> shape = gradient.sizes().vec();
  shape[0] = kept;
  at::Tensor mean_values = at::empty(shape, at::kFloat);
  std::copy(mean.values.begin(), mean.values.end(), mean_values.data_ptr<float>());
  at::Tensor result = at::_sparse_coo_tensor_unsafe(mean_indices.to(gradient.device()),
                                                    mean_values.to(gradient.device(), gradient.scalar_type()),
                                                    gradient.sizes(), gradient.options());
  result._coalesced_(true);
  return result;
}

/// For types that no system takes.
void DdpEngine::synchronize_plainly(Lane& lane, const Bucket& bucket, const at::Tensor& gradient,
                                    StepReport& report) {
  Stopwatch watch;
  C10dCommunicator& communicator = *lane.communicator;
  communicator.set_context(static_cast<BucketId>(bucket.index), lane.session->step());
  const Traffic before = communicator.traffic();
  // In the order of plain DDP, whose result this is to the last bit.
  gradient.mul_(1.0 / communicator.size());
  communicator.all_reduce_tensor(gradient);
  report.step = lane.session->step();
  report.elements = static_cast<std::uint64_t>(gradient.numel());
  report.raw_bytes = static_cast<std::uint64_t>(gradient.nbytes());
  report.wire = communicator.traffic() - before;
  report.formula_bytes = report.wire.sent_bytes;
  report.finite = at::isfinite(gradient).all().item<bool>();
  report.seconds_total = watch.seconds();
  report.seconds_communicate = report.seconds_total;
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

void DdpEngine::scale_state(float factor) {
  if (!std::isfinite(factor)) throw std::invalid_argument("a state times a factor that is not finite");
  Lock lock(mutex_);
  conclude_step(lock);
  if (loaded_) {
    loaded_.emplace(rewritten(*loaded_, factor));
  } else if (!layouts_.empty()) {
    const KeepCurrentDevice current;
    loaded_.emplace(rewritten(StateReader(whole_state()), factor));
    rebuild(layouts_, spec_);
  }
}

std::uint64_t DdpEngine::step() const {
  const Lock lock(mutex_);
  return step_;
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

StateWriter DdpEngine::save() {
  Lock lock(mutex_);
  conclude_step(lock);
  const KeepCurrentDevice current;
  return whole_state();
}

StateWriter DdpEngine::whole_state() const {
  if (loaded_) return rewritten(*loaded_, 1.0f);
  StateWriter writer = merged_state();
  if (!lanes_[0]->session) {
    writer.put("spec", spec_);
    writer.put("seed", options_.seed);
    writer.put("step", step_);
  }
  for (const auto& [name, values] : owed_) {
    if (!values.empty()) writer.put(residual_entry(name), Span<const float>(values));
  }
  return writer;
}

void DdpEngine::load(StateReader state) {
  Lock lock(mutex_);
  if (closed_) throw std::runtime_error("Thinwire's engine was closed: register the model again");
  conclude_step(lock);
  // What a session would refuse, said now although its buckets may not be known yet.
  if (const std::uint64_t seed = state.get_integer("seed");
      state.get_text("spec") == spec_ && seed != options_.seed) {
    throw std::runtime_error("the state was saved with seed " + std::to_string(seed) +
                             ", this engine has seed " + std::to_string(options_.seed) +
                             ": register with the same seed");
  }
  state.get_integer("step");
  auto before = std::exchange(loaded_, std::move(state));
  if (layouts_.empty()) return;
  try {
    rebuild(layouts_, spec_);
  } catch (...) {
    loaded_ = std::move(before);
    throw;
  }
}

}  // namespace thinwire

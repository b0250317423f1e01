// What `import thinwire` has from C++: the engine behind DDP's hook, and what thinwire.doctor asks about this
// build. No Python object is touched while a bucket is compressed or under way; the lock is taken to hand
// over rows, which come back as a new tensor.

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <hwy/targets.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/link_probe.h"
#include "comm/tcp_links.h"
#include "core/hashes.h"
#include "core/srun.h"
#include "planner/link_text.h"
#include "session/configuration.h"
#include "session/plan/plan.h"
#include "thinwire/cuda.h"
#include "thinwire/known_losses.h"
#include "thinwire/state_changes.h"
#include "thinwire/version.h"
#include "torch/c10d_communicator.h"
#include "torch/c10d_compat.h"
#include "torch/c10d_store.h"
#include "torch/ddp_engine.h"
#include "torch/kept_groups.h"
#include "torch/loopback_listener.h"
#include "torch/start_watch.h"

namespace py = pybind11;

namespace thinwire {

/// A store of torch's, which Python holds.
struct StoreObject : py::object {
  explicit StoreObject(py::object store) : py::object(std::move(store)) {}
};

}  // namespace thinwire

/// In docstrings.
template <>
struct pybind11::detail::handle_type_name<thinwire::StoreObject> {
  static constexpr auto name = const_name("Store");
};

namespace thinwire {
namespace {

/// A reference of our own to an object that Python holds. By reference, since torch's holders of these
/// classes differ between versions.
template <class T>
c10::intrusive_ptr<T> share(const py::handle& object) {
  return c10::intrusive_ptr<T>::reclaim_copy(&object.cast<T&>());
}

std::unique_ptr<C10dCommunicator> open_communicator(const py::handle& group, const py::handle& store,
                                                    int store_host, double deadline_seconds,
                                                    std::vector<std::string> sockets = {}) {
  return std::make_unique<C10dCommunicator>(
      share<c10d_compat::Group>(group), share<::c10d::Store>(store),
      C10dCommunicator::Options{.store_host = store_host,
                                .leave_together = true,
                                .sockets = std::move(sockets),
                                .deadline = std::chrono::duration<double>(deadline_seconds)});
}

using Future = c10::intrusive_ptr<c10::ivalue::Future>;
using WithoutLock = py::call_guard<py::gil_scoped_release>;

/// Parameters by the identity of their tensors, as DDP's buckets name them.
class Names {
 public:
  explicit Names(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
    for (const auto& [name, tensor] : parameters) names_[tensor.unsafeGetTensorImpl()] = name;
  }

  Parameter describe(const at::Tensor& tensor) const {
    const auto name = names_.find(tensor.unsafeGetTensorImpl());
    if (name == names_.end()) {
      throw std::runtime_error(
          "DDP handed over a parameter that the model did not have when it was registered: register the "
          "model after wrapping it, and again when its parameters are replaced");
    }
    const auto elements = static_cast<std::size_t>(tensor.numel());
    return {name->second, elements, rows_of(tensor, elements)};
  }

 private:
  /// A vector has as many rows as elements, by which systems know it (docs/systems.md, whole and power_sgd).
  /// 0, not known, for what stands for a flat shard of a parameter of any shape (python/thinwire/units.py).
  static std::size_t rows_of(const at::Tensor& tensor, std::size_t elements) {
    if (tensor.dim() == 0) return elements;
    const bool stands_for_a_shard = tensor.dim() == 1 && elements > 1 && tensor.stride(0) == 0;
    return stands_for_a_shard ? 0 : static_cast<std::size_t>(tensor.size(0));
  }

  std::map<const void*, std::string> names_;
};

/// A state's entries as Python has them: numbers, texts, and tensors of one dimension.
py::dict to_dict(StateWriter writer) {
  const StateReader reader(std::move(writer));
  py::dict values;
  for (const std::string& name : reader.names("")) {
    switch (reader.type(name)) {
      case StateReader::Type::floats: {
        at::Tensor tensor = at::empty({static_cast<std::int64_t>(reader.length(name))}, at::kFloat);
        reader.get(name, {tensor.data_ptr<float>(), reader.length(name)});
        values[py::str(name)] = tensor;
        break;
      }
      case StateReader::Type::integer:
        values[py::str(name)] = reader.get_integer(name);
        break;
      case StateReader::Type::real:
        values[py::str(name)] = reader.get_real(name);
        break;
      case StateReader::Type::text:
        values[py::str(name)] = reader.get_text(name);
        break;
    }
  }
  return values;
}

StateReader to_state(const py::dict& values) {
  StateWriter writer;
  for (const auto& [key, value] : values) {
    const auto name = key.cast<std::string>();
    if (py::isinstance<py::str>(value)) {
      writer.put(name, std::string_view(value.cast<std::string>()));
    } else if (py::isinstance<py::int_>(value)) {
      writer.put(name, value.cast<std::uint64_t>());
    } else if (py::isinstance<py::float_>(value)) {
      writer.put(name, value.cast<double>());
    } else {
      const at::Tensor tensor = value.cast<at::Tensor>().to(at::kCPU, at::kFloat).contiguous();
      writer.put(name, Span<const float>(tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())));
    }
  }
  return StateReader(std::move(writer));
}

// See thinwire/state_changes.h.

py::dict merge_states(const std::vector<py::dict>& ranks) {
  std::vector<StateReader> states;
  for (const py::dict& values : ranks) states.push_back(to_state(values));
  return to_dict(merged_state(states, builtin_registry()));
}

py::dict share_state(const py::dict& merged, int merged_ranks, int ranks) {
  return to_dict(shared_state(to_state(merged), merged_ranks, ranks, builtin_registry()));
}

py::dict fit_state(const py::dict& values, const std::map<std::string, std::size_t>& model,
                   const std::vector<std::string>& known) {
  std::vector<Parameter> parameters;
  for (const auto& [name, elements] : model) parameters.push_back({name, elements});
  return to_dict(state_for_model(to_state(values), parameters, known, builtin_registry()));
}

/// With how ranks are numbered, where it tells of any.
std::string numbered(const std::string& text, const std::string& numbering) {
  return text.find("rank") == std::string::npos ? text : text + numbering;
}

/// As users read it: torch's own errors without the frames of C++ that they carry.
std::exception_ptr in_words(const std::exception_ptr& error, const std::string& numbering) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& torch_error) {
    const std::string text = torch_error.what_without_backtrace();
    return std::make_exception_ptr(std::runtime_error(numbered(text.substr(0, text.find('\n')), numbering)));
  } catch (const std::runtime_error& known) {
    return std::make_exception_ptr(std::runtime_error(numbered(known.what(), numbering)));
  } catch (...) {
    return error;
  }
}

/// Ends a torch.futures.Future with an error, as C++ does. What Python sets DDP does not take for one; and
/// what a hook raises reaches the user among the frames of everybody who called it.
void fail_future(const py::object& future, const std::string& text) {
  const Future plain = future.cast<torch::jit::PythonFutureWrapper&>().fut;
  const py::gil_scoped_release release;
  plain->setError(std::make_exception_ptr(std::runtime_error(text)));
}

class PythonEngine {
 public:
  /// sockets: of each group, or none. step_limit_seconds: 0 for the communicator's default. numbering: what
  /// errors add that name ranks.
  PythonEngine(const py::list& groups, const std::vector<std::vector<std::string>>& sockets,
               const py::list& stores, const py::object& device_group, int store_host,
               double deadline_seconds, double step_limit_seconds, const std::string& spec,
               std::uint64_t seed, int threads, bool devices_compress, bool reduce_scatter,
               int ranks_per_host, bool means_together, bool checked_sums, std::string numbering,
               const std::vector<std::pair<std::string, at::Tensor>>& parameters)
      : names_(parameters), numbering_(std::move(numbering)) {
    std::vector<std::unique_ptr<C10dCommunicator>> lanes;
    for (std::size_t lane = 0; lane < groups.size(); ++lane) {
      lanes.push_back(
          open_communicator(groups[lane], stores[lane], store_host, deadline_seconds, sockets.at(lane)));
      if (step_limit_seconds > 0)
        lanes.back()->set_step_limit(std::chrono::duration<double>(step_limit_seconds));
      lanes.back()->set_checked_sums(checked_sums);
    }
    c10::intrusive_ptr<c10d_compat::Group> sums;
    if (!device_group.is_none()) sums = share<c10d_compat::Group>(device_group);
    const py::gil_scoped_release release;
    engine_ = std::make_unique<DdpEngine>(std::move(lanes), sums, spec,
                                          DdpOptions{.seed = seed,
                                                     .threads = threads,
                                                     .devices_compress = devices_compress,
                                                     .reduce_scatter = reduce_scatter,
                                                     .ranks_per_host = ranks_per_host,
                                                     .means_together = means_together});
  }

  ~PythonEngine() {
    const py::gil_scoped_release release;
    engine_.reset();
  }

  /// gradient: a tensor. future: a torch.futures.Future that gets the mean, in `gradient` itself where it is
  /// dense; it then ends without Python's lock. awaits_end: end_backward() will be called.
  void submit(std::size_t index, bool last, bool awaits_end, const py::handle& gradient,
              const std::vector<at::Tensor>& parameters, py::object future) {
    DdpBucket bucket;
    bucket.index = index;
    bucket.last = last;
    bucket.awaits_end = awaits_end;
    bucket.parameters.reserve(parameters.size());
    for (const at::Tensor& parameter : parameters) bucket.parameters.push_back(names_.describe(parameter));
    bucket.gradient = gradient.cast<at::Tensor>();
    const Future plain = future.cast<torch::jit::PythonFutureWrapper&>().fut;
    // Released under Python's lock, wherever the last copy of what is done with the mean goes.
    std::shared_ptr<py::object> object;
    c10::IValue result;
    if (bucket.gradient.is_sparse()) {
      object = std::shared_ptr<py::object>(new py::object(std::move(future)), [](py::object* held) {
        const py::gil_scoped_acquire acquire;
        delete held;
      });
    } else {
      // The form in which DDP wants its own tensor back.
      result = torch::jit::toIValue(gradient, c10::PyObjectType::get());
    }
    const py::gil_scoped_release release;
    engine_->submit(std::move(bucket), [plain, result, object, numbering = numbering_](
                                           at::Tensor mean, std::exception_ptr error) {
      if (error) {
        plain->setError(in_words(error, numbering));
      } else if (!object) {
        plain->markCompleted(result);
      } else {
        const py::gil_scoped_acquire acquire;
        object->attr("set_result")(mean);
      }
    });
  }

  /// A bucket of DDP's, see submit().
  void submit_bucket(const ::c10d::GradBucket& bucket, bool awaits_end, py::object future) {
    submit(bucket.getIndex(), bucket.isLast(), awaits_end, py::cast(bucket.getBuffer()),
           bucket.getParameters(), std::move(future));
  }

  py::dict state() {
    StateWriter writer;
    {
      const py::gil_scoped_release release;
      writer = engine_->save();
    }
    return to_dict(std::move(writer));
  }

  void load_state(const py::dict& values) {
    StateReader state = to_state(values);
    const py::gil_scoped_release release;
    engine_->load(std::move(state));
  }

  /// Of each bucket, what its report does not say.
  py::list buckets() const {
    py::list buckets;
    for (const DdpLayout& layout : engine_->buckets()) {
      py::list parameters;
      for (const Parameter& parameter : layout.parameters) parameters.append(parameter.name);
      py::dict bucket;
      bucket["parameters"] = parameters;
      bucket["compressed_on"] = layout.device ? "cuda:" + std::to_string(*layout.device) : "cpu";
      buckets.append(bucket);
    }
    return buckets;
  }

  /// Steps and reasons.
  std::vector<std::pair<std::uint64_t, std::string>> changes() {
    std::vector<std::pair<std::uint64_t, std::string>> all;
    for (thinwire::Change& change : engine_->changes())
      all.emplace_back(change.step, std::move(change.reason));
    return all;
  }

  /// Every rank's bytes. Collective; see DdpEngine::gather.
  py::list gather(const std::string& kind, const py::bytes& mine, std::size_t longest) {
    const std::string own = mine;
    std::vector<std::string> parts;
    {
      const py::gil_scoped_release release;
      try {
        parts = engine_->gather(kind, own, longest);
      } catch (...) {
        std::rethrow_exception(in_words(std::current_exception(), numbering_));
      }
    }
    py::list all;
    for (const std::string& part : parts) all.append(py::bytes(part));
    return all;
  }

  std::string blame_lost_ranks() { return numbered(engine_->blame_lost_ranks(), numbering_); }

  using PlainVerdict = std::tuple<std::vector<int>, std::string, bool, bool>;
  PlainVerdict verdict() const {
    const Verdict found = engine_->verdict();
    return {found.culprits, found.reason, found.alive, found.failed};
  }
  void end_with(const PlainVerdict& verdict) {
    const auto& [culprits, reason, alive, failed] = verdict;
    engine_->end_with({.culprits = culprits, .reason = reason, .alive = alive, .failed = failed});
  }

  DdpEngine& engine() { return *engine_; }
  const DdpEngine& engine() const { return *engine_; }

 private:
  Names names_;
  std::string numbering_;
  std::unique_ptr<DdpEngine> engine_;
};

/// Latency in seconds and bytes per second between ranks. Collective.
std::pair<double, double> measure(const py::handle& group, const py::handle& store, int store_host,
                                  double deadline_seconds) {
  auto communicator = open_communicator(group, store, store_host, deadline_seconds);
  const py::gil_scoped_release release;
  std::vector<std::byte> scratch(kSustainedProbeScratchBytes);
  constexpr std::size_t kSustainedBytes = std::size_t{8} << 20;
  const MeasuredLink link = measure_link(*communicator, scratch, kLinkProbeLargeBytes, kSustainedBytes);
  communicator.reset();
  return {link.latency_seconds, link.bytes_per_second};
}

/// One hash of the bits of all tensors, in order; those on devices come to the host one by one.
std::uint64_t hash_tensors(const std::vector<at::Tensor>& tensors, std::uint64_t seed) {
  const py::gil_scoped_release release;
  std::uint64_t hash = seed;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
    hash = content_hash({static_cast<const std::byte*>(host.data_ptr()), host.nbytes()}, hash);
  }
  return hash;
}

std::unique_ptr<StartWatch> watch_start(const py::handle& store, int rank, int size, int store_host,
                                        double deadline_seconds) {
  return std::make_unique<StartWatch>(share<::c10d::Store>(store), rank, size, store_host,
                                      std::chrono::duration<double>(deadline_seconds));
}

/// Places of the keys that nobody has set; waits for none.
std::vector<std::size_t> missing_keys(const py::handle& store, const std::vector<std::string>& keys) {
  const auto held = share<::c10d::Store>(store);
  const py::gil_scoped_release release;
  std::vector<std::size_t> missing;
  for (std::size_t place = 0; place < keys.size(); ++place) {
    if (!held->check({keys[place]})) missing.push_back(place);
  }
  return missing;
}

/// Of the board that open_communicator gives the same store.
void write_first_note(const py::handle& store, int rank, int store_host) {
  C10dFaultStore held(share<::c10d::Store>(store), store_host);
  const py::gil_scoped_release release;
  FaultBoard::write_first_note(held, FaultBoard::Options{.rank = rank});
}

/// See answered_client in c10d_store.h.
StoreObject store_client(const py::handle& store, const std::string& key, double seconds) {
  auto held = share<::c10d::Store>(store);
  c10::intrusive_ptr<::c10d::Store> client;
  {
    const py::gil_scoped_release release;
    client = answered_client(std::move(held), key, std::chrono::duration<double>(seconds));
  }
  // By its address. Holders of newer versions of torch add a reference of their own, older ones take ours.
  StoreObject result{py::cast(client.get(), py::return_value_policy::take_ownership)};
  if (client.use_count() == 1) static_cast<void>(client.release());
  return result;
}

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (std::int64_t remaining = hwy::SupportedTargets(); remaining != 0; remaining &= remaining - 1) {
    names.emplace_back(hwy::TargetName(remaining & -remaining));
  }
  return names;
}

/// One system's name, summary, options and formula: what `thinwire systems` shows.
py::list systems() {
  py::list all;
  for (const SystemInfo& info : builtin_registry().systems()) {
    py::dict one;
    one["name"] = info.name;
    one["summary"] = info.summary;
    one["kind"] = info.stage ? "stage" : "system";
    one["paper"] = info.paper;
    one["formula"] = info.formula;
    py::list options;
    for (const OptionInfo& option : info.options) {
      py::dict said;
      said["name"] = option.name;
      said["default"] = option.default_value;
      said["meaning"] = option.meaning;
      options.append(said);
    }
    one["options"] = options;
    all.append(one);
  }
  return all;
}

/// (name, elements, leading dimension)
using PlannedParameter = std::tuple<std::string, std::size_t, std::size_t>;

/// What `python3 -m thinwire.plan` has from C++, see session/plan/plan.h.
/// Of each number of workers a table and its rows as JSON objects, separated by commas.
std::vector<std::pair<std::string, std::string>> plan_all(
    const std::vector<std::vector<PlannedParameter>>& buckets, std::vector<double> ready, double backward_end,
    double rest, double threads, std::vector<std::string> specs, const std::vector<int>& workers,
    const std::string& link, int ranks_per_host, bool reduce_in_host, double cores, std::size_t lanes) {
  const VirtualLink parsed = parse_link(link);
  PlanRequest request{.compute = {std::move(ready), backward_end, rest, threads},
                      .specs = specs.empty() ? candidates_of_auto() : std::move(specs),
                      .ranks_per_host = ranks_per_host,
                      .reduce_in_host = reduce_in_host,
                      .cores = cores,
                      .lanes = lanes};
  for (const auto& bucket : buckets) {
    BucketLayout layout;
    for (const auto& [name, elements, rows] : bucket) layout.push_back({name, elements, rows});
    request.buckets.push_back(std::move(layout));
  }
  StepPlanner planner(std::move(request));
  std::vector<std::pair<std::string, std::string>> texts;
  for (const int one : workers) {
    const Plan plan = planner.plan(one, parsed);
    const PlansElsewhere elsewhere = planner.plan_elsewhere(one, parsed);
    texts.emplace_back(plan_table(planner.request(), plan, elsewhere),
                       plan_json(planner.request(), plan, elsewhere));
  }
  return texts;
}

/// What can be asked about specs without an engine.
void add_systems(py::module& module) {
  module.def("systems", &systems);
  module.def("freezes_variance",
             [](const std::string& spec) { return builtin_registry().freezes_variance(spec); });
  module.def("momentum_needs", [](const std::string& spec) {
    std::vector<std::tuple<std::string, std::string, double>> needs;
    for (const MomentumNeed& need : builtin_registry().momentum_needs(spec)) {
      needs.emplace_back(need.system, need.option, need.value);
    }
    return needs;
  });
  module.def("unclipped_systems", [](const std::string& spec) { return builtin_registry().unclipped(spec); });
  module.def("delivers_signs", [](const std::string& spec) {
    const auto needs = builtin_registry().momentum_needs(spec);
    return std::ranges::any_of(needs, &MomentumNeed::delivers_signs);
  });
  module.def("idle_options", [](const std::string& spec, const std::vector<std::string>& names) {
    return builtin_registry().idle_options(spec, names);
  });
  module.def("known_loss", [](const std::string& spec, bool with_adam) {
    return known_loss(spec, with_adam ? TrainedWith::adam : TrainedWith::momentum);
  });
  module.def("unmeasured_loss", [](const std::string& spec, const std::string& optimizer) {
    return unmeasured_loss(spec, optimizer);
  });
  module.def("readable", [](const std::string& spec) { return builtin_registry().readable(spec); });
  module.def("plan", &plan_all, py::kw_only(), py::arg("buckets"), py::arg("ready"), py::arg("backward_end"),
             py::arg("rest"), py::arg("threads"), py::arg("specs"), py::arg("workers"), py::arg("link"),
             py::arg("ranks_per_host"), py::arg("reduce_in_host"), py::arg("cores"), py::arg("lanes"),
             WithoutLock());
}

/// A function of the engine behind Python's.
template <class Result, class... Arguments>
auto of_engine(Result (DdpEngine::*function)(Arguments...)) {
  return [function](PythonEngine& self, std::decay_t<Arguments>... arguments) {
    return (self.engine().*function)(std::move(arguments)...);
  };
}
template <class Result>
auto of_engine(Result (DdpEngine::*function)() const) {
  return [function](const PythonEngine& self) { return (self.engine().*function)(); };
}

/// What can be asked of an engine.
void add_questions(py::class_<PythonEngine, std::shared_ptr<PythonEngine>>& engine) {
  engine.def("spec", of_engine(&DdpEngine::spec))
      .def("variance_is_frozen", of_engine(&DdpEngine::variance_is_frozen))
      .def("step", of_engine(&DdpEngine::step))
      .def("report", of_engine(&DdpEngine::report))
      .def("explain", of_engine(&DdpEngine::explain), WithoutLock())
      .def("changes", &PythonEngine::changes, WithoutLock())
      .def("times_changed", of_engine(&DdpEngine::times_changed))
      .def("buckets", &PythonEngine::buckets);
}

/// What opening connections needs.
void add_start(py::module& module) {
  py::class_<StartWatch>(module, "StartWatch")
      .def(py::init(&watch_start), py::kw_only(), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("store_host"), py::arg("deadline_seconds"))
      .def("begins", &StartWatch::begins)
      .def("ends", &StartWatch::ends)
      .def("blame", &StartWatch::blame, WithoutLock());
  module.attr("longest_deadline_seconds") = Communicator::kLongestDeadlineSeconds;
  module.def("lengthen_gloo_timeout", [](const py::handle& group) {
    return lengthen_gloo_timeout(*share<c10d_compat::Group>(group));
  });
  module.def("restrict_to_loopback", &restrict_to_loopback);
  module.def("srun_variables", [] { return srun_variables(process_variable); });
  module.def("missing_keys", &missing_keys);
  module.def("store_client", &store_client);
  module.def("write_first_note", &write_first_note);
  module.def("open_tcp_sockets", &open_tcp_sockets);
  module.def("tcp_sockets_since", &tcp_sockets_since);
}

}  // namespace
}  // namespace thinwire

PYBIND11_MODULE(_C, module) {
  using namespace thinwire;
  py::class_<PythonEngine, std::shared_ptr<PythonEngine>> engine(module, "Engine");
  engine
      .def(
          py::init<const py::list&, const std::vector<std::vector<std::string>>&, const py::list&,
                   const py::object&, int, double, double, const std::string&, std::uint64_t, int, bool, bool,
                   int, bool, bool, std::string, const std::vector<std::pair<std::string, at::Tensor>>&>(),
          py::kw_only(), py::arg("groups"), py::arg("sockets"), py::arg("stores"), py::arg("device_group"),
          py::arg("store_host"), py::arg("deadline_seconds"), py::arg("step_limit_seconds"), py::arg("spec"),
          py::arg("seed"), py::arg("threads"), py::arg("devices_compress"), py::arg("reduce_scatter"),
          py::arg("ranks_per_host"), py::arg("means_together"), py::arg("checked_sums"), py::arg("numbering"),
          py::arg("parameters"))
      .def("submit", &PythonEngine::submit)
      .def("submit_bucket", &PythonEngine::submit_bucket)
      .def("fail", of_engine(&DdpEngine::fail), py::arg("text"), WithoutLock())
      .def("blame_lost_ranks", &PythonEngine::blame_lost_ranks, WithoutLock())
      .def("verdict", &PythonEngine::verdict, WithoutLock())
      .def("tell_end", of_engine(&DdpEngine::tell_end), WithoutLock())
      .def("end_with", &PythonEngine::end_with, py::arg("verdict"), WithoutLock())
      .def("is_left_behind", of_engine(&DdpEngine::is_left_behind), WithoutLock())
      .def("is_finite", of_engine(&DdpEngine::is_finite))
      .def("last_bucket_was_submitted", of_engine(&DdpEngine::last_bucket_was_submitted), WithoutLock())
      .def("end_backward", of_engine(&DdpEngine::end_backward), WithoutLock())
      .def("pass_over_step", of_engine(&DdpEngine::pass_over_step), WithoutLock())
      .def("set_spec", of_engine(&DdpEngine::set_spec))
      .def("set_learning_rate", of_engine(&DdpEngine::set_learning_rate))
      .def("set_loss_scale", of_engine(&DdpEngine::set_loss_scale))
      .def("set_waited", of_engine(&DdpEngine::set_waited))
      .def("scale_state", of_engine(&DdpEngine::scale_state), WithoutLock())
      .def("gather", &PythonEngine::gather)
      .def("state", &PythonEngine::state)
      .def("load_state", &PythonEngine::load_state)
      .def("close", of_engine(&DdpEngine::close), py::arg("in_order"), WithoutLock());
  add_questions(engine);
  add_start(module);
  module.def("hash_tensors", &hash_tensors);
  module.def("leave_threads_behind", &leave_threads_behind);
  module.def("replica_difference", &replica_difference);
  module.def("fail_future", &fail_future);
  module.def("merge_states", &merge_states);
  module.def("share_state", &share_state);
  module.def("fit_state", &fit_state);
  module.def("measure_link", &measure);
  module.def("simd_targets", &simd_targets);
  add_systems(module);
#if defined(THINWIRE_CUDA_EMULATED)
  module.attr("cuda") = "emulated";
#elif defined(THINWIRE_HAS_CUDA)
  module.attr("cuda") = "yes";
#else
  module.attr("cuda") = "no";
#endif
  module.def("cuda_devices", &cuda_devices);
  module.attr("version") = kVersion;
}

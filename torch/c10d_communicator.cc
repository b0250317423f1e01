#include "torch/c10d_communicator.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <bit>
#include <chrono>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "comm/fault_board.h"
#include "comm/message_tags.h"
#include "comm/tcp_links.h"
#include "comm/wait_watch.h"
#include "thinwire/cuda.h"
#include "thinwire/errors.h"
#include "torch/c10d_store.h"
#include "torch/kept_groups.h"

namespace thinwire {
namespace {

at::Tensor view_bytes(const void* data, std::size_t bytes) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte);
}

/// 0 would mean "no limit" to c10d.
std::chrono::milliseconds whole_milliseconds(std::chrono::duration<double> time) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(time), std::chrono::milliseconds(1));
}

/// Gloo's own limits must not end a wait: it closes all connections then.
constexpr auto kNoEnd = std::chrono::hours(24);

/// The first line of an engine's complaint, without the source position that Gloo puts in front.
Ending brief(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  text.resize(std::min(text.find('\n'), text.size()));
  if (const auto end = text.find("] "); text.starts_with('[') && end != std::string::npos)
    text.erase(0, end + 2);
  // Newer versions go on with advice about logs.
  text.resize(std::min(text.find(". "), text.size()));
  return {"connection lost: " + text, {}};
}

/// Why a collective that is over has failed; nothing where it has not.
std::optional<Ending> failure_of(const std::exception_ptr& failure) {
  if (!failure) return std::nullopt;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return brief(error);
  }
}

/// rank: this one. seen: half a sentence, what it knows itself.
std::string sentence_of(const Verdict& verdict, int rank, std::string seen) {
  if (!verdict.reason.empty()) seen += "; " + verdict.reason;
  if (verdict.culprits.empty()) return seen;
  if (!verdict.failed && verdict.culprits == std::vector<int>{rank})
    return "this rank itself has not come: it was stopped, or waited elsewhere, as in a barrier (" + seen +
           ")";
  const bool one = verdict.culprits.size() == 1;
  const std::string how = verdict.failed  ? (one ? " has failed" : " have failed")
                          : verdict.alive ? (one ? " has not come" : " have not come")
                                          : (one ? " is gone or silent" : " are gone or silent");
  return name_ranks(verdict.culprits) + how + " (" + seen + ")";
}

Ending nothing_within(std::chrono::duration<double> deadline) {
  return {"nothing arrived within " + seconds_text(deadline), {}};
}

}  // namespace

struct C10dCommunicator::Operation final : WaitWatch::Call {
  void end() noexcept override {
    try {
      work->abort();
    } catch (...) {
      // The wait lasts until its connection ends, then.
    }
  }

  Work work;
  std::byte padding{};  // what an empty message carries: Gloo needs an address
};

C10dCommunicator::C10dCommunicator(c10::intrusive_ptr<c10d_compat::Group> group,
                                   c10::intrusive_ptr<::c10d::Store> store, Options options)
    : Communicator(group->getRank(), group->getSize()),
      group_(std::move(group)),
      backend_(group_->getBackendName()),
      options_(std::move(options)),
      exceptions_at_start_(std::uncaught_exceptions()) {
  survive_broken_connections();
  set_deadline(options_.deadline);
  if (store) open_board(std::move(store));
}

void C10dCommunicator::open_board(c10::intrusive_ptr<::c10d::Store> store) {
  auto links = std::make_unique<TcpLinks>(options_.sockets);
  board_ = std::make_unique<FaultBoard>(
      std::make_shared<C10dFaultStore>(std::move(store), options_.store_host),
      FaultBoard::Options{
          .rank = rank(), .size = size(), .store_host = options_.store_host, .links = links->describe()});
  if (links->empty()) links.reset();
  watch_ = std::make_unique<WaitWatch>(
      *board_, std::move(links),
      WaitWatch::Options{
          .rank = rank(), .size = size(), .store_host = options_.store_host, .deadline = deadline()});
}

C10dCommunicator::~C10dCommunicator() {
  // A rank that leaves because of an exception leaves at once: the others shall notice.
  if (!options_.leave_together || board_ == nullptr || failed_) return;
  if (std::uncaught_exceptions() > exceptions_at_start_) return;
  const auto grace = fault_grace(deadline());
  board_->leave(grace);
  // This ends the connections: whoever still waits for this rank notices.
  watch_.reset();
  group_.reset();
  board_->stay_for_those_who_ask(grace, deadline());
}

void C10dCommunicator::leave_alone(bool in_order) {
  options_.leave_together = false;
  if (in_order && board_ && !failed_) board_->leave_alone();
}

void C10dCommunicator::tell(const Verdict& verdict) {
  if (board_) board_->tell(verdict);
}

void C10dCommunicator::stay(std::atomic<bool>& enough) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kPatience{10};
  // Of the process, however many models end with it. A script may go on after an error, and meet another one
  // later.
  static std::mutex mutex;
  static Clock::time_point until = Clock::now() + kPatience;
  std::unique_lock lock(mutex);
  if (Clock::now() > until + kPatience) until = Clock::now() + kPatience;
  const std::chrono::duration<double> patience = until - Clock::now();
  lock.unlock();
  if (board_ && patience.count() > 0) board_->stay(fault_grace(deadline()), patience, enough);
}

void C10dCommunicator::check_memory(Memory memory) const {
  if (memory != Memory::host) {
    throw std::invalid_argument("the " + backend_ +
                                " engine moves host memory only: copy device memory to the host first");
  }
}

/// start(): the engine's own call. awaited: as of give_up.
template <class Start>
C10dCommunicator::Work C10dCommunicator::started(std::vector<int> awaited, Start start) {
  try {
    return start();
  } catch (const std::exception& error) {
    give_up(std::move(awaited), brief(error), {});
  }
}

/// start(tensors, number): a message of these bytes with this tag.
template <class Start>
void* C10dCommunicator::start_message(int peer, Tag tag, Span<const std::byte> bytes, Start start) {
  check_memory(bytes.memory());
  const int number = wire_tag(tag, bytes.size());
  auto operation = std::make_unique<Operation>();
  std::vector<at::Tensor> tensors{bytes.empty() ? view_bytes(&operation->padding, 1)
                                                : view_bytes(bytes.data(), bytes.size())};
  operation->work = started({peer}, [&] { return start(tensors, number); });
  return operation.release();
}

void* C10dCommunicator::start_send(int peer, Tag tag, Span<const std::byte> bytes) {
  return start_message(peer, tag, bytes,
                       [&](auto& tensors, int number) { return group_->send(tensors, peer, number); });
}

void* C10dCommunicator::start_receive(int peer, Tag tag, Span<std::byte> bytes) {
  return start_message(peer, tag, bytes,
                       [&](auto& tensors, int number) { return group_->recv(tensors, peer, number); });
}

void C10dCommunicator::wait_begins(int peer, Operation* operation) {
  if (!watch_) return;
  watch_->begins(peer, {deadline(), silence_limit(), step_limit()}, step(), operation);
}

std::optional<Ending> C10dCommunicator::wait_ends() {
  return watch_ ? watch_->ends() : std::nullopt;
}

void C10dCommunicator::finish(void* handle, int peer) {
  const std::unique_ptr<Operation> operation(static_cast<Operation*>(handle));
  // Other engines' messages cannot be waited for twice or ended from aside.
  const bool is_watched = watch_ && backend_ == "gloo";
  bool done = false;
  std::optional<Ending> error;
  wait_begins(peer, is_watched ? operation.get() : nullptr);
  try {
    if (is_watched) {
      done = operation->work->wait(kNoEnd);
    } else {
      operation->work->wait(whole_milliseconds(deadline()));
      done = true;
    }
  } catch (const std::exception& complaint) {
    const bool is_late = std::string(complaint.what()).find("imed out") != std::string::npos;
    error = is_late && !is_watched ? nothing_within(deadline()) : brief(complaint);
  }
  auto ending = wait_ends();
  if (done) return;
  if (!ending) ending = error;
  give_up({peer}, ending.value_or(nothing_within(deadline())), {});
}

void C10dCommunicator::abandon(void* operation) noexcept {
  delete static_cast<Operation*>(operation);
}

void C10dCommunicator::wait_native(const Work& work) {
  std::optional<Ending> error;
  wait_begins(-1, nullptr);
  // In slices, each of which leaves the collective as it is. A slice that ends raises an error, as one of the
  // collective does.
  const auto slice = watch_ ? WaitWatch::look_period(deadline()) : deadline();
  for (bool done = false; !done && !error;) {
    try {
      work->wait(whole_milliseconds(slice));
      done = true;
    } catch (const std::exception&) {
      if (work->isCompleted()) {
        // It may have ended well just after the slice did.
        error = failure_of(work->exception());
        done = !error;
      } else if (!watch_ || watch_->ended()) {
        error = nothing_within(deadline());
      }
    }
  }
  const auto ending = wait_ends();
  if (error) give_up({}, ending && !work->isCompleted() ? *ending : *error, work);
}

void C10dCommunicator::run_all_reduce(at::Tensor tensor, ::c10d::ReduceOp::RedOpType operator_name) {
  ::c10d::AllreduceOptions options;
  options.reduceOp = operator_name;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  const bool compares = backend_ == "gloo" && begin_comparison();
  if (!compares) bind_exchange();
  const Work work = started({}, [&] { return group_->allreduce(tensors, options); });
  if (compares) {
    try {
      finish_comparison();
    } catch (...) {
      // The sum still works on the caller's memory.
      if (!std::exchange(failed_, true)) close_pairs();
      end_native(work);
      throw;
    }
  }
  wait_native(work);
}

void C10dCommunicator::set_device_group(c10::intrusive_ptr<c10d_compat::Group> group) {
  device_group_ = std::move(group);
}

void C10dCommunicator::set_turns(std::function<void()> begin, std::function<void()> end) {
  begin_turn_ = std::move(begin);
  end_turn_ = std::move(end);
}

void C10dCommunicator::begin_turn() {
  if (!begin_turn_) return;
  // This rank is as alive as one that waits for others.
  wait_begins(-1, nullptr);
  try {
    begin_turn_();
  } catch (...) {
    failed_ = true;
    wait_ends();
    if (board_) board_->report(watch_->neighbours(), fault_grace(deadline()), deadline());
    throw;
  }
  wait_ends();
}

void C10dCommunicator::pass_turn() {
  if (end_turn_ && !device_group_) end_turn_();
}

/// Until the sum is there, or there is no hope. The group's own wait() would only make a stream wait, without
/// an end where a rank is gone.
void C10dCommunicator::poll_device(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  while (!work->isCompleted()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (watch_ ? watch_->ended() : waited > deadline()) throw std::runtime_error("timed out");
    // Short sums are not kept waiting by the sleep, long ones do not keep a core busy.
    if (waited > std::chrono::microseconds(100)) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (const auto error = work->exception()) std::rethrow_exception(error);
  work->wait();
}

void C10dCommunicator::run_on_device(at::Tensor tensor) {
  bind_exchange();
  await_turn();
  std::vector<at::Tensor> tensors{std::move(tensor)};
  Work work;
  wait_begins(-1, nullptr);
  try {
    work = device_group_->allreduce(tensors);
    poll_device(work);
  } catch (const std::exception& error) {
    const auto ending = wait_ends();
    try {
      give_up({}, ending.value_or(watch_ ? brief(error) : nothing_within(deadline())), {});
    } catch (...) {
      // After the others know of it, since it may block: ends the kernel, which still writes to the caller's
      // memory.
      try {
        if (work) work->abort();
      } catch (const std::exception&) {
        // Not every version and backend can.
      }
      throw;
    }
  }
  wait_ends();
}

void C10dCommunicator::sum_on_device(Span<float> values) {
  const auto elements = static_cast<std::int64_t>(values.size());
#ifdef THINWIRE_CUDA_EMULATED
  // The emulation's group is Gloo's, and its device's memory is closed to the host.
  const auto executor = make_cuda_executor(0);
  const at::Tensor sums = at::empty({elements}, at::kFloat);
  const Span<float> host(sums.data_ptr<float>(), values.size());
  copy(*executor, Span<const float>(values), host);
  run_on_device(sums);
  copy(*executor, Span<const float>(host), values);
#else
  const c10::Device device = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
  run_on_device(at::for_blob(values.data(), {elements})
                    .options(at::TensorOptions(at::kFloat).device(device))
                    .target_device(device)
                    .make_tensor());
#endif
}

void C10dCommunicator::count_ring(std::size_t elements, std::size_t element_bytes) {
  count_native(ring_sent_bytes(elements, element_bytes), ring_received_bytes(elements, element_bytes),
               2 * static_cast<std::uint64_t>(size() - 1));
}

void C10dCommunicator::all_reduce_sum(Span<float> values) {
  if (values.memory() == Memory::cuda && device_group_) {
    if (values.empty()) return;
    sum_on_device(values);  // also in a world of one, so that one device is enough to test it
    return count_ring(values.size(), 4);
  }
  check_memory(values.memory());
  if (backend_ != "gloo" || checked_sums()) return Communicator::all_reduce_sum(values);
  if (size() == 1 || values.empty()) return;
  run_all_reduce(at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat),
                 ::c10d::ReduceOp::SUM);
  count_ring(values.size(), 4);
}

bool C10dCommunicator::sums(at::ScalarType type, bool on_device) const {
  if (on_device && device_group_) return true;
  if (checked_sums() && (type == at::kHalf || type == at::kBFloat16)) return false;
  if (type == at::kHalf) return backend_ == "gloo";
  if (type == at::kBFloat16) return backend_ == "gloo" && c10d_compat::kGlooSumsBFloat16;
  return true;
}

void C10dCommunicator::sum_checked(const at::Tensor& values) {
  const auto elements = static_cast<std::size_t>(values.numel());
  if (values.scalar_type() == at::kFloat) {
    Communicator::all_reduce_sum(Span<float>(values.data_ptr<float>(), elements));
  } else if (values.scalar_type() == at::kDouble) {
    ring_sum(Span<double>(values.data_ptr<double>(), elements));
  } else {
    throw std::invalid_argument(std::string("sums of ") + c10::toString(values.scalar_type()) +
                                " cannot be checked: leave out checked_sums");
  }
}

void C10dCommunicator::all_reduce_tensor(at::Tensor values) {
  if (values.numel() == 0) return;
  const auto elements = static_cast<std::size_t>(values.numel());
  const auto bytes = static_cast<std::size_t>(values.element_size());
  if (values.is_cuda() && device_group_) {
    run_on_device(std::move(values));
  } else {
    check_memory(values.is_cpu() ? Memory::host : Memory::cuda);
    if (size() == 1) return;
    if (checked_sums()) return sum_checked(values);
    run_all_reduce(std::move(values), ::c10d::ReduceOp::SUM);
  }
  count_ring(elements, bytes);
}

void C10dCommunicator::barrier() {
  if (size() == 1) return;
  bind_exchange();
  wait_native(started({}, [&] { return group_->barrier(); }));
  const auto hops = static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(size() - 1)));
  count_native(hops, hops, hops);
}

/// The ranks whose connections are closed. Leaves the others open: ranks that see theirs closed ask at once,
/// before they can read why.
std::vector<int> C10dCommunicator::broken_pairs() {
  static std::byte received{};  // outlives this call: what nobody answers is not waited for
  std::vector<int> broken;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    std::vector<at::Tensor> tensors{view_bytes(&received, 1)};
    try {
      group_->recv(tensors, peer, static_cast<int>(kSpareWireTag));
    } catch (const std::exception&) {
      broken.push_back(peer);
    }
  }
  return broken;
}

/// The ranks that do not beat for longer than a live one is silent. In large worlds nobody: each rank would
/// ask for all others.
std::vector<int> C10dCommunicator::silent_ranks() {
  constexpr int kFew = 64;
  if (!board_ || size() > kFew) return {};
  const auto grace = fault_grace(deadline());
  std::vector<int> others;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) others.push_back(peer);
  }
  const std::uint64_t answers = board_->hear(grace).store_answers;
  board_->set_grace(grace);
  board_->waits_for(others, grace / 8);
  std::this_thread::sleep_for(2 * grace);
  FaultBoard::Hearing hearing = board_->hear(grace);
  board_->waits_no_more();
  const bool store_is_silent = hearing.asks_store && hearing.store_answers - answers <= 1;
  if (store_is_silent && options_.store_host >= 0 && options_.store_host != rank())
    return {options_.store_host};
  return std::move(hearing.silent);
}

std::string C10dCommunicator::blame_lost_ranks() {
  constexpr auto kLook = std::chrono::milliseconds(50);
  constexpr int kLooks = 20;  // the connections of a process do not close all at once
  if (backend_ != "gloo" || !board_) return {};
  std::vector<int> lost;
  const bool is_told = board_->others_have_ended();  // whom another rank blames is everyone's verdict
  for (int look = 0; look < kLooks && lost.empty() && !is_told; ++look) {
    if (look > 0) std::this_thread::sleep_for(kLook);
    lost = broken_pairs();
  }
  bool is_closed = !lost.empty();
  if (!is_closed && !is_told) {
    lost = silent_ranks();
    // The store's host may have ended meanwhile, and its store with it, which tells of no silence.
    if (lost.empty()) is_closed = !(lost = broken_pairs()).empty();
  }
  if (lost.empty() && !is_told) return {};
  failed_ = true;
  board_->report(std::move(lost), fault_grace(deadline()), deadline());
  // Without evidence: a rank that is gone may have ended others, which say so, and this process may have been
  // away itself.
  verdict_ = board_->judge_lost();
  if (verdict_.culprits.empty()) return {};
  return sentence_of(verdict_, rank(),
                     is_told     ? "an error outside of an exchange"
                     : is_closed ? "a connection is closed"
                                 : "its process does not answer");
}

/// Wakes every rank that waits for this one: a Gloo wait that times out closes all connections of its group,
/// so one that nobody will answer is waited for. Returns the ranks whose connections were broken before.
std::vector<int> C10dCommunicator::close_pairs() {
  std::vector<int> broken;
  std::vector<Work> probes;
  std::byte received{};
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    std::vector<at::Tensor> tensors{view_bytes(&received, 1)};
    try {
      probes.push_back(group_->recv(tensors, peer, static_cast<int>(kSpareWireTag)));
    } catch (const std::exception&) {
      broken.push_back(peer);
    }
  }
  for (const Work& probe : probes) {
    try {
      probe->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // It was meant to fail.
    }
  }
  return broken;
}

/// With the connections closed: the engine's thread holds the caller's buffer until it has seen that.
void C10dCommunicator::end_native(const Work& work) {
  try {
    work->wait(whole_milliseconds(fault_grace(deadline())));
  } catch (const std::exception&) {
    // It was meant to fail.
  }
  if (!work->isCompleted()) keep_for_good(group_);
}

void C10dCommunicator::give_up(std::vector<int> awaited, const Ending& ending, const Work& native) {
  const auto grace = fault_grace(deadline());
  failed_ = true;
  if (backend_ == "gloo") {
    // An engine's own collective does not say whom it awaited, but a broken connection does.
    const std::vector<int> broken = close_pairs();
    if (awaited.empty()) {
      awaited = awaited_in_collective(broken, watch_ ? watch_->neighbours() : std::vector<int>(), size());
    }
  }
  if (awaited.empty() && watch_) awaited = watch_->neighbours();
  if (board_) board_->report(awaited, grace, deadline());
  if (native) end_native(native);
  if (ending.is_certain) {
    // The others would wait for their own limits.
    if (board_ && ending.evidence.says_something()) board_->judge(ending.evidence);
    fail(-1, ending.what);
  }
  const Verdict verdict =
      board_ ? board_->judge(ending.evidence) : Verdict{awaited, "there is no store to ask others"};
  verdict_ = verdict;
  fail(verdict.culprits.empty() ? -1 : verdict.culprits[0], sentence_of(verdict, rank(), ending.what));
}

}  // namespace thinwire

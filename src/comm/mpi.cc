#include "thinwire/mpi.h"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // of Open MPI, what it was built with
#endif

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/channel.h"
#include "comm/fault_note.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

// MPI counts in int: longer messages travel as several with the same tag, which MPI keeps in order.
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;

/// Tags in use, those of the collectives included; every MPI has far more.
constexpr Communicator::Tag kTags = 2 * Communicator::kFirstReservedTag;
/// How long messages that are given up are waited for, all together.
constexpr std::chrono::duration<double> kPatience{2};
/// How often a waiting rank looks for the notes of ranks that have failed.
constexpr auto kNotePeriod = std::chrono::milliseconds(20);

/// Whether this MPI takes memory of CUDA devices.
bool is_cuda_aware() {
#if defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

/// How MPI ranks tell each other that they have failed: small messages on a communicator of their own. MPI
/// has no store to write to, but unlike a broken socket it still delivers between the ranks that live.
class MpiNotes {
 public:
  /// `group` is a duplicate that belongs to this object until free().
  MpiNotes(MPI_Comm group, int rank, int size)
      : group_(group), rank_(rank), size_(size), notes_(static_cast<std::size_t>(size)) {}

  void free() { MPI_Comm_free(&group_); }

  /// To all other ranks. Waits for none of them: one is dead. Once per life.
  void send(const FaultNote& note) {
    sent_ = note.encode();
    for (int peer = 0; peer < size_; ++peer) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (peer == rank_) continue;
      MPI_Isend(sent_.data(), static_cast<int>(sent_.size()), MPI_CHAR, peer, kTag, group_, &request);
    }
  }

  /// Reads what has come; true when there was anything.
  bool collect() {
    for (bool any = false;; any = true) {
      int waiting = 0;
      int bytes = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, kTag, group_, &waiting, &status) != MPI_SUCCESS || waiting == 0)
        return any;
      MPI_Get_count(&status, MPI_CHAR, &bytes);
      std::string text(static_cast<std::size_t>(bytes), ' ');
      const int source = status.MPI_SOURCE;
      if (MPI_Recv(text.data(), bytes, MPI_CHAR, source, kTag, group_, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return any;
      notes_[static_cast<std::size_t>(source)] = FaultNote::parse(text, size_);
    }
  }

  /// By rank; nothing where none has come.
  const std::vector<std::optional<FaultNote>>& all() const { return notes_; }

 private:
  static constexpr int kTag = 1;
  MPI_Comm group_;
  int rank_;
  int size_;
  std::vector<std::optional<FaultNote>> notes_;
  std::string sent_;  // MPI may still read it
};

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
  return {text, static_cast<std::size_t>(length)};
}

/// Waits by polling. Ranks may outnumber cores, so one that waits for long must let the others run.
class Backoff {
 public:
  void pause() {
    ++polls_;
    if (polls_ < 200) return;
    if (polls_ < 2000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  int polls_ = 0;
};

/// A message: one request per part of at most kMaxMessageBytes.
struct MpiOperation {
  std::vector<MPI_Request> requests;
  std::vector<int> expected;     // bytes of each part; empty when sending
  MpiOperation* next = nullptr;  // in the free list
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm messages, MPI_Comm notes, int rank, int size, bool cuda_aware)
      : Communicator(rank, size), messages_(messages), notes_(notes, rank, size), cuda_aware_(cuda_aware) {}

  ~MpiCommunicator() override {
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (failed_ || finalised != 0) return;
    MPI_Comm_free(&messages_);
    notes_.free();
  }

  std::string engine() const override { return "mpi"; }
  bool reaches(Memory memory) const override { return memory == Memory::host || cuda_aware_; }
  bool failed() const { return failed_; }

  // The collectives stay the inherited ones. Only MPI's non-blocking ones could be polled against a deadline,
  // and in Open MPI 4.1 they are slower than ours; nor does MPI promise that a float sum has the same bits on
  // all ranks, which our contract needs.

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override {
    check_tag(tag);
    return start(bytes, [&](const std::byte* data, int count, MPI_Request* request) {
      return MPI_Isend(data, count, MPI_BYTE, peer, static_cast<int>(tag), messages_, request);
    });
  }

  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override {
    check_tag(tag);
    return start(bytes, [&](std::byte* data, int count, MPI_Request* request) {
      operation_->expected.push_back(count);
      return MPI_Irecv(data, count, MPI_BYTE, peer, static_cast<int>(tag), messages_, request);
    });
  }

  void finish(void* handle, int peer) override {
    auto* operation = static_cast<MpiOperation*>(handle);
    for (std::size_t part = 0; part < operation->requests.size(); ++part) {
      MPI_Status status;
      int code = MPI_SUCCESS;
      try {
        code = poll(&operation->requests[part], &status, {peer});
      } catch (...) {
        abandon(operation);
        throw;
      }
      const bool receiving = !operation->expected.empty();
      int error_class = MPI_SUCCESS;
      int arrived = 0;
      if (code != MPI_SUCCESS) {
        MPI_Error_class(code, &error_class);
      } else if (receiving) {
        MPI_Get_count(&status, MPI_BYTE, &arrived);
      }
      const bool longer = receiving && error_class == MPI_ERR_TRUNCATE;
      const bool shorter = receiving && code == MPI_SUCCESS && arrived != operation->expected[part];
      if (longer || shorter) {
        const int expected = operation->expected[part];
        abandon(operation);
        throw CorruptFrame("message from rank " + std::to_string(peer) + " has " +
                           (shorter ? std::to_string(arrived) : "more") + " bytes, expected " +
                           std::to_string(expected));
      }
      if (code != MPI_SUCCESS) {
        abandon(operation);
        give_up({peer}, error_text(code));
      }
    }
    pool_.give_back(operation);
  }

  /// The buffer is the caller's again when this returns. MPI uses it until the request is complete. A receive
  /// is complete when it is cancelled; one that has begun to arrive, and a send, when the peer has done its
  /// part. A peer that does not is waited for as long as kPatience in all. From then on MPI is not called any
  /// more: over shared memory and TCP it moves bytes only while it is called. Hardware that writes by itself
  /// might do so later (docs/faults.md).
  void abandon(void* handle) noexcept override {
    auto* operation = static_cast<MpiOperation*>(handle);
    for (auto& request : operation->requests) {
      if (patience_.count() <= 0) return;
      if (request == MPI_REQUEST_NULL) continue;
      if (!operation->expected.empty()) MPI_Cancel(&request);
      const auto start = Clock::now();
      int done = 0;
      for (Backoff backoff; MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0;
           backoff.pause()) {
        if (Clock::now() - start < patience_) continue;
        failed_ = true;
        patience_ = {};
        return;
      }
      patience_ -= Clock::now() - start;
    }
    pool_.give_back(operation);
  }

 private:
  static void check_tag(Tag tag) {
    if (tag >= kTags) {
      throw std::invalid_argument("tag " + std::to_string(tag) + ": tags stay below " +
                                  std::to_string(kTags));
    }
  }

  void check_memory(Memory memory) const {
    if (!reaches(memory)) {
      throw std::invalid_argument(
          "this MPI was built without CUDA and moves host memory only: copy device memory to the host first");
    }
  }

  template <class T, class Post>
  MpiOperation* start(Span<T> bytes, Post post) {
    check_memory(bytes.memory());
    operation_ = pool_.take();
    operation_->requests.clear();
    operation_->expected.clear();
    std::size_t begin = 0;
    do {
      const std::size_t count = std::min(kMaxMessageBytes, bytes.size() - begin);
      MPI_Request request = MPI_REQUEST_NULL;
      const int code = post(bytes.data() + begin, static_cast<int>(count), &request);
      operation_->requests.push_back(request);
      if (code != MPI_SUCCESS) {
        abandon(operation_);
        give_up({}, error_text(code));
      }
      begin += count;
    } while (begin < bytes.size());
    return operation_;
  }

  /// Until the request is done, the deadline passes, or a rank says that it has failed. Returns MPI's code.
  int poll(MPI_Request* request, MPI_Status* status, const std::vector<int>& awaited) {
    int done = 0;
    int code = MPI_Test(request, &done, status);
    if (code != MPI_SUCCESS || done != 0) return code;
    const auto start = Clock::now();
    auto next_look = start + kNotePeriod;
    for (Backoff backoff;; backoff.pause()) {
      code = MPI_Test(request, &done, status);
      if (code != MPI_SUCCESS || done != 0) return code;
      const auto now = Clock::now();
      if (now < next_look) continue;
      next_look = now + kNotePeriod;
      if (notes_.collect()) give_up(awaited, "another rank gave up");
      if (now - start > deadline()) {
        give_up(awaited, "nothing arrived within " + seconds_text(deadline()));
      }
    }
  }

  /// Tells all ranks whom this one awaited (empty: unknown), hears whom they awaited, blames the silent one.
  [[noreturn]] void give_up(const std::vector<int>& awaited, const std::string& what) {
    failed_ = true;
    const auto grace = fault_grace(deadline());
    notes_.send(FaultNote{.state = FaultNote::State::failed, .awaited = awaited, .beat = 0});
    for (const auto end = Clock::now() + grace; Clock::now() < end;) {
      notes_.collect();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const auto& notes = notes_.all();
    const std::vector<int> culprits = follow_chain(rank(), size(), awaited, [&](int one) {
                                        return notes[static_cast<std::size_t>(one)];
                                      }).silent;
    if (culprits.empty()) {
      fail(-1, what + "; every awaited rank is alive and waits itself: do all ranks make the same calls?");
    }
    fail(culprits[0],
         name_ranks(culprits) + (culprits.size() == 1 ? " is" : " are") + " gone or silent (" + what + ")");
  }

  MPI_Comm messages_;
  MpiNotes notes_;
  OperationPool<MpiOperation> pool_;
  MpiOperation* operation_ = nullptr;  // the one being started
  const bool cuda_aware_;
  std::chrono::duration<double> patience_ = kPatience;  // with messages that are given up
  bool failed_ = false;
};

MPI_Comm duplicate(MPI_Comm group) {
  MPI_Comm copy = MPI_COMM_NULL;
  if (const int code = MPI_Comm_dup(group, &copy); code != MPI_SUCCESS) {
    throw std::runtime_error("MPI_Comm_dup: " + error_text(code));
  }
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  return copy;
}

/// At the end there is nobody to throw to.
void complain(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::fflush(stderr);
}

/// Ends the process when it still lives after the limit: nothing else ends a call of MPI that waits for a
/// stopped rank.
class LastResort {
 public:
  LastResort(std::chrono::duration<double> limit, std::string what)
      : thread_([limit, what = std::move(what)](const std::stop_token& ended) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any nothing;
          nothing.wait_for(lock, ended, limit, [] { return false; });
          if (ended.stop_requested()) return;
          complain(what);
          _exit(1);
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm group) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(group, &rank);
  MPI_Comm_size(group, &size);
  int* largest_tag = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest_tag, &known);
  if (known == 0 || static_cast<Communicator::Tag>(*largest_tag) < kTags) {
    throw std::runtime_error(
        "this MPI has too few message tags: " + std::to_string(known == 0 ? 0 : *largest_tag) +
        ", at least " + std::to_string(kTags) + " are needed");
  }
  int cuda_aware = is_cuda_aware() ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &cuda_aware, 1, MPI_INT, MPI_LAND, group);
  return std::make_unique<MpiCommunicator>(duplicate(group), duplicate(group), rank, size, cuda_aware != 0);
}

MpiWorld::MpiWorld() : exceptions_at_start_(std::uncaught_exceptions()) {
  int finalised = 0;
  int initialised = 0;
  MPI_Finalized(&finalised);
  if (finalised != 0)
    throw std::runtime_error("MPI was finalised already and cannot start again in this process");
  MPI_Initialized(&initialised);
  if (initialised == 0) {
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
      throw std::runtime_error("MPI_Init failed");
    }
    initialised_here_ = true;
  }
  communicator_ = make_mpi_communicator(MPI_COMM_WORLD);
}

MpiWorld::~MpiWorld() {
  const bool failed = static_cast<MpiCommunicator&>(*communicator_).failed() || abandoned_ ||
                      std::uncaught_exceptions() > exceptions_at_start_;
  if (failed || !leave())
    communicator_.release();  // freeing its MPI communicators would wait for the dead rank
}

/// Whether all ranks have come, and MPI is left in order.
bool MpiWorld::leave() noexcept {
  try {
    communicator_->barrier();
    const LastResort last_resort(communicator_->deadline(), "rank " + std::to_string(communicator_->rank()) +
                                                                ": the end of MPI is not reached within " +
                                                                seconds_text(communicator_->deadline()) +
                                                                ": a rank is stopped or gone");
    communicator_.reset();
    if (initialised_here_) MPI_Finalize();
    return true;
  } catch (const std::exception& error) {
    complain(error.what() + std::string(" at the end of the job"));
    return false;
  }
}

}  // namespace thinwire

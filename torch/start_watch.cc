#include "torch/start_watch.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "comm/fault_board.h"
#include "comm/fault_note.h"
#include "torch/c10d_store.h"

#ifdef THINWIRE_TORCH_HAS_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

const std::string kPrefix = "start/";

}  // namespace

StartWatch::StartWatch(c10::intrusive_ptr<::c10d::Store> store, int rank, int size, int store_host,
                       std::chrono::duration<double> deadline)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      store_host_(store_host),
      deadline_(deadline),
      start_(Clock::now()),
      board_(std::make_unique<FaultBoard>(
          std::make_shared<C10dFaultStore>(store_),
          FaultBoard::Options{
              .rank = rank, .size = size, .store_host = store_host, .description = {}, .prefix = kPrefix})) {
  board_->set_grace(fault_grace(deadline));
}

StartWatch::~StartWatch() = default;

void StartWatch::begins() {
  board_->waits_for({}, fault_grace(deadline_) / 3);
}

void StartWatch::ends() {
  board_->waits_no_more();
}

std::string StartWatch::blame() {
  board_->report({}, fault_grace(deadline_));
  const Verdict verdict = board_->judge();
  if (store_host_ == rank_) stay_as_host(verdict.culprits);
  if (verdict.culprits.empty()) return "no rank can be blamed (" + verdict.reason + ")";
  return name_ranks(verdict.culprits) + (verdict.culprits.size() == 1 ? " is" : " are") +
         " gone or silent (" + verdict.reason + ")";
}

/// A rank that waits inside Gloo notices nothing until the deadline, and asks only then.
void StartWatch::stay_as_host(const std::vector<int>& culprits) {
  const auto end =
      start_ + std::chrono::duration_cast<Clock::duration>(deadline_ + 4 * fault_grace(deadline_));
  try {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_ || std::find(culprits.begin(), culprits.end(), rank) != culprits.end()) continue;
      const std::string key = kPrefix + "done/" + std::to_string(rank);
      while (!store_->check({key}) && Clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  } catch (const std::exception&) {
    // This process's own store is gone: there is nobody to stay for.
  }
}

#ifdef THINWIRE_TORCH_HAS_GLOO

namespace {

/// c10d has no call for it in the versions that come with Gloo's headers; its contexts are protected.
struct Contexts : ::c10d::ProcessGroupGloo {
  static auto of(::c10d::ProcessGroupGloo& group) { return group.*(&Contexts::contexts_); }
};

}  // namespace

bool lengthen_gloo_timeout(c10d_compat::Group& group) {
  auto* gloo = dynamic_cast<::c10d::ProcessGroupGloo*>(&group);
  if (gloo == nullptr) return false;
  for (const auto& context : Contexts::of(*gloo)) context->setTimeout(kGlooTimeout);
  return true;
}

#else

bool lengthen_gloo_timeout(c10d_compat::Group&) {
  return false;
}

#endif

}  // namespace thinwire

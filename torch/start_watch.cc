#include "torch/start_watch.h"

#include <string>

#include "comm/fault_board.h"
#include "comm/fault_note.h"
#include "torch/c10d_store.h"

#ifdef THINWIRE_TORCH_HAS_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

namespace thinwire {
namespace {

const std::string kPrefix = "start/";

}  // namespace

StartWatch::StartWatch(c10::intrusive_ptr<::c10d::Store> store, int rank, int size, int store_host,
                       std::chrono::duration<double> deadline)
    : deadline_(deadline),
      board_(std::make_unique<FaultBoard>(
          std::make_shared<C10dFaultStore>(std::move(store), store_host),
          FaultBoard::Options{
              .rank = rank, .size = size, .store_host = store_host, .links = {}, .prefix = kPrefix})) {
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
  // A rank that waits inside Gloo notices nothing until the deadline, and asks only then.
  board_->report({}, fault_grace(deadline_), deadline_);
  const Verdict verdict = board_->judge();
  if (verdict.culprits.empty()) return "no rank can be blamed (" + verdict.reason + ")";
  return name_ranks(verdict.culprits) + (verdict.culprits.size() == 1 ? " is" : " are") +
         " gone or silent (" + verdict.reason + ")";
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

#pragma once
// The rendezvous store that a c10d job has anyway, seen as the board on which failing ranks leave their
// notes.

#include <utility>

#include "comm/fault_board.h"
#include "torch/c10d_compat.h"

namespace thinwire {

class C10dFaultStore final : public FaultBoard::Store {
 public:
  explicit C10dFaultStore(c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::string set_if_absent(const std::string& key, const std::string& value) override;

 private:
  c10::intrusive_ptr<::c10d::Store> store_;
};

}  // namespace thinwire

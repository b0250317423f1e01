#pragma once
// Runs a kernel test once per instruction set that this machine has, so that all of them are held against the
// scalar definition.

#include <hwy/targets.h>

#include <cstdint>
#include <string>

namespace thinwire {

/// Calls body(name of the instruction set) for each supported one; dispatch goes there for the duration.
template <class Body>
void for_each_target(Body body) {
  for (std::int64_t remaining = hwy::SupportedTargets(); remaining != 0; remaining &= remaining - 1) {
    const std::int64_t target = remaining & -remaining;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(std::string(hwy::TargetName(target)));
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

}  // namespace thinwire

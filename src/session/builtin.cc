// The list of everything that this library can run, in the order in which it is shown.

#include "baselines/baselines.h"
#include "planner/auto.h"
#include "stages/stages.h"
#include "systems/systems.h"
#include "thinwire/registry.h"

namespace thinwire {

template <class... Infos>
static Registry registry_of(Infos... infos) {
  Registry registry;
  (registry.add(infos()), ...);
  return registry;
}

const Registry& builtin_registry() {
  static const Registry registry = registry_of(
      auto_info, zen_info, marsit_info, s2_reducer_info, sketched_sgd_info, casq_info, dense_info, half_info,
      signsgd_info, ef_signsgd_info, ssdm_info, cascading_sign_info, qsgd_info, terngrad_info, nuqsgd_info,
      alq_info, amq_info, agsparse_info, sparcml_info, omnireduce_info, sparse_ps_info, global_top_k_info,
      power_sgd_info, acp_sgd_info, blocks_info, ecsq_info, klt_info, demo_info, one_bit_adam_info,
      zero_one_adam_info, top_k_info, block_top_k_info, dgc_info, momentum_correction_info,
      inner_momentum_info, whole_info, warm_up_info, decay_info, clip_info, guard_info);
  return registry;
}

}  // namespace thinwire

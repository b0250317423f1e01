// The list of everything that this library can run. A new system joins by one line.

#include "baselines/baselines.h"
#include "planner/auto.h"
#include "stages/stages.h"
#include "systems/casq/casq.h"
#include "systems/marsit/marsit.h"
#include "systems/s2_reducer/s2_reducer.h"
#include "systems/sketched_sgd/sketched_sgd.h"
#include "systems/zen/zen.h"
#include "thinwire/registry.h"

namespace thinwire {

const Registry& builtin_registry() {
  static const Registry registry = [] {
    Registry all;
    all.add(auto_info());
    all.add(zen_info());
    all.add(marsit_info());
    all.add(s2_reducer_info());
    all.add(sketched_sgd_info());
    all.add(casq_info());
    all.add(dense_info());
    all.add(half_info());
    all.add(signsgd_info());
    all.add(ef_signsgd_info());
    all.add(ssdm_info());
    all.add(cascading_sign_info());
    all.add(qsgd_info());
    all.add(terngrad_info());
    all.add(nuqsgd_info());
    all.add(alq_info());
    all.add(amq_info());
    all.add(agsparse_info());
    all.add(sparcml_info());
    all.add(omnireduce_info());
    all.add(sparse_ps_info());
    all.add(global_top_k_info());
    all.add(power_sgd_info());
    all.add(blocks_info());
    all.add(demo_info());
    all.add(one_bit_adam_info());
    all.add(zero_one_adam_info());
    all.add(top_k_info());
    all.add(block_top_k_info());
    all.add(dgc_info());
    all.add(momentum_correction_info());
    all.add(inner_momentum_info());
    all.add(whole_info());
    all.add(warm_up_info());
    all.add(decay_info());
    all.add(guard_info());
    return all;
  }();
  return registry;
}

}  // namespace thinwire

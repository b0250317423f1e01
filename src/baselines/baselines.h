#pragma once
// The systems that the five papers measure themselves against. Each .cc opens with sources and data flow.

#include "thinwire/registry.h"

namespace thinwire {

SystemInfo dense_info();
SystemInfo half_info();
SystemInfo signsgd_info();
SystemInfo ef_signsgd_info();
SystemInfo ssdm_info();
SystemInfo cascading_sign_info();
SystemInfo agsparse_info();
SystemInfo sparcml_info();
SystemInfo omnireduce_info();
SystemInfo sparse_ps_info();
SystemInfo global_top_k_info();
SystemInfo power_sgd_info();
SystemInfo acp_sgd_info();
SystemInfo blocks_info();
SystemInfo ecsq_info();
SystemInfo klt_info();
SystemInfo demo_info();
SystemInfo one_bit_adam_info();
SystemInfo zero_one_adam_info();
SystemInfo qsgd_info();
SystemInfo terngrad_info();
SystemInfo nuqsgd_info();
SystemInfo alq_info();
SystemInfo amq_info();

}  // namespace thinwire

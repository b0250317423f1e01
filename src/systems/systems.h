#pragma once
// The systems of the five papers, a folder for each. Each NAME.cc opens with its source and data flow.

#include "thinwire/registry.h"

namespace thinwire {

SystemInfo zen_info();
SystemInfo marsit_info();
SystemInfo s2_reducer_info();
SystemInfo sketched_sgd_info();
SystemInfo casq_info();

}  // namespace thinwire

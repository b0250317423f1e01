#pragma once
// What goes in front of a system with '+'. Each NAME.cc opens with its source and data flow.

#include "stages/momentum.h"
#include "thinwire/registry.h"

namespace thinwire {

SystemInfo top_k_info();
SystemInfo block_top_k_info();
SystemInfo dgc_info();
SystemInfo whole_info();
SystemInfo warm_up_info();
SystemInfo decay_info();
SystemInfo clip_info();
SystemInfo guard_info();

}  // namespace thinwire

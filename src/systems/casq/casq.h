#pragma once

#include "thinwire/registry.h"

namespace thinwire {

/// `casq`: cluster-aware sketch quantization, see casq.cc.
SystemInfo casq_info();

}  // namespace thinwire

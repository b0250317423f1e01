#pragma once

#include "thinwire/registry.h"

namespace thinwire {

/// Zen, see zen.cc.
SystemInfo zen_info();

}  // namespace thinwire

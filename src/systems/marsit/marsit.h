#pragma once

#include "thinwire/registry.h"

namespace thinwire {

/// Marsit, see marsit.cc.
SystemInfo marsit_info();

}  // namespace thinwire

#pragma once

#include "thinwire/registry.h"

namespace thinwire {

SystemInfo s2_reducer_info();

}  // namespace thinwire

#pragma once

#include "thinwire/registry.h"

namespace thinwire {

SystemInfo auto_info();

}  // namespace thinwire

#pragma once

#include "thinwire/registry.h"

namespace thinwire {

SystemInfo sketched_sgd_info();

}  // namespace thinwire

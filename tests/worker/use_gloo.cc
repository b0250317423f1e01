// Linked into a program, gives it the engine gloo.

#include "apps/gloo_engine.h"

namespace {
const bool kUsed = (thinwire::apps::use_gloo_of_torch(), true);
}

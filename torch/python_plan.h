#pragma once
// What `python3 -m thinwire.plan` has from C++.

#include <pybind11/pybind11.h>

namespace thinwire {

/// module.plan(...): see session/plan.h.
void add_plan(pybind11::module& module);

}  // namespace thinwire

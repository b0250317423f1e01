#pragma once
// Systems that work on gradients in the memory of a CUDA device. Those that do not say so by an error.

#include <string>
#include <vector>

namespace thinwire {

inline const std::vector<std::string> kDeviceSpecs = {
    "marsit:full_every=3",
    "dense",
};

}  // namespace thinwire

#pragma once
// Systems that work on gradients in the memory of a CUDA device. Those that do not say so by an error.

#include <string>
#include <vector>

namespace thinwire {

inline const std::vector<std::string> kDeviceSpecs = {
    "dense",
    "dense:feedback=on",
    "half",
    "half:feedback=on",
    "half:format=bf16:feedback=on",
    "marsit:full_every=3",
    "marsit:full_every=0",
    "marsit:full_every=3:topology=torus:drift_every=2",
    "signsgd",
    "signsgd:feedback=on:scale=0.5",
    "ef_signsgd",
    "ssdm:feedback=on",
    "cascading_sign",
    "zen",
    "zen:scheme=push_pull:feedback=on",
    "zen:scheme=push_pull:pull=list",
    "zen:scheme=centralization:feedback=on",
    "agsparse:feedback=on",
    "sparcml",
    "sparse_ps:feedback=on",
    "omnireduce:block=100:feedback=on",
};

}  // namespace thinwire

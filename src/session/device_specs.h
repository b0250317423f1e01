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
    "s2_reducer",
    "s2_reducer:rows=5:block=16",
    "s2_reducer:shrink=on:feedback=on",
    "s2_reducer:lambda=exact:feedback=on",
    "sketched_sgd:ratio=0.05:p=2:columns_ratio=0.1",
    "sketched_sgd:ratio=0.05:p=2:columns_ratio=0.1:fill=random",
    "sketched_sgd:ratio=0.05:p=2:columns_ratio=0.1:dense_below=1500:momentum=0.9",
    "top_k:ratio=0.05+zen",
    "dgc:ratio=0.05+zen",
    "block_top_k:ratio=0.25:block=16+zen",
    "block_top_k:ratio=0.25:block=16+s2_reducer",
    "omnireduce:block=16",
    "zen",
    "zen:scheme=push_pull:feedback=on",
    "zen:scheme=push_pull:pull=list",
    "zen:scheme=centralization:feedback=on",
    "agsparse:feedback=on",
    "sparcml",
    "sparse_ps:feedback=on",
};

}  // namespace thinwire

#pragma once
// Systems in the forms in which their contract is tested on a CUDA device: one or two of each of
// contract_specs.h.

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
    "s2_reducer:shrink=on:feedback=on",
    "s2_reducer:lambda=exact:feedback=on",
    "sketched_sgd:ratio=0.05:p=2:columns_ratio=0.1:fill=random",
    "dgc:ratio=0.05+zen",
    "block_top_k:ratio=0.25:block=16+zen",
    "zen",
    "zen:scheme=push_pull:feedback=on",
    "zen:scheme=centralization:feedback=on",
    "agsparse:feedback=on",
    "sparcml:feedback=on",
    "omnireduce:block=1000:feedback=on",
    "sparse_ps:feedback=on",
    "sketched_sgd:k=20:p=3:rows=4:columns=100:run=16:dense_below=400",
    "sketched_sgd:ratio=0.01:momentum=0.9:dense_below=30",
    "mc:momentum=0.5+sketched_sgd:k=10:columns_ratio=0.05",
    "global_top_k:ratio=0.1:momentum=0.5",
    "casq:interval=3",
    "casq:bits=3:topology=all_gather:interval=1:feedback=off",
    "casq:bits=4:topology=server:downlink=codes:interval=2",
    "casq:topology=server:downlink=float32",
    "casq:scope=bucket:double_momentum=0.5",
    "qsgd",
    "qsgd:bits=2:norm=l2:chunk=128:feedback=on",
    "terngrad:scale=bucket:feedback=on",
    "nuqsgd:bits=3",
    "alq:every=2",
    "amq:bits=3:norm=max:normalised=on:feedback=on",
    "top_k:ratio=0.05",
    "top_k:ratio=0.2+zen",
    "block_top_k:ratio=0.1:block=64+s2_reducer",
    "dgc:ratio=0.05:momentum=0",
    "mc:momentum=0.5+block_top_k:ratio=0.1+omnireduce",
    "blocks:bits=4",
    "power_sgd",
    "power_sgd:rank=2:bits=4",
    "power_sgd:rank=3:feedback=off",
};

}  // namespace thinwire

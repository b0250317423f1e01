#pragma once
// Every system in the forms that its contract is tested in: over threads (contract_test.cc), Gloo and MPI
// (tests/systems_cases.h). A new system joins by one line.

#include <string>
#include <vector>

namespace thinwire {

inline const std::vector<std::string> kContractSpecs = {
    "dense",
    "dense:feedback=on",
    "half",
    "half:feedback=on",
    "half:format=bf16:feedback=on",
    "marsit",
    "marsit:full_every=0",
    "marsit:full_every=3:eta_s=0.01",
    "marsit:full_every=2:feedback=off",
    "marsit:full_every=0:topology=torus",
    "marsit:full_every=3:topology=torus:drift_every=2",
    "signsgd",
    "signsgd:feedback=on:scale=0.5",
    "ef_signsgd",
    "ssdm",
    "ssdm:feedback=on",
    "zen",
    "zen:scheme=push_pull:feedback=on",
    "zen:scheme=centralization:feedback=on",
    "zen:profile_steps=2:gbit=1000:latency_us=1000",  // where the fewer hops win
    "agsparse",
    "agsparse:feedback=on",
    "sparcml:feedback=on",
    "omnireduce:feedback=on",
    "omnireduce:block=1000",
    "sparse_ps:feedback=on",
    "s2_reducer",
    "s2_reducer:lambda=exact:feedback=on",
    "s2_reducer:lambda=auto:budget=0.8:rows=4:run=16:block=100",
    "s2_reducer:shrink=on:feedback=on",
    "casq:interval=3",
    "casq:bits=1:buckets=0:topology=all_gather",
    "casq:bits=3:topology=all_gather:interval=1:feedback=off",
    "casq:bits=4:buckets=0.05:topology=server:downlink=codes:allocation=error:interval=2",
    "casq:topology=server:downlink=float32:allocation=density",
    "casq:allocation=even:sample=1",
    "qsgd",
    "qsgd:bits=2:norm=l2:chunk=128:feedback=on",
    "qsgd:bits=8:chunk=640:feedback=on",
    "terngrad",
    "terngrad:clip=2.5:feedback=on",
    "terngrad:scale=bucket:feedback=on",
    "nuqsgd:bits=3",
    "nuqsgd:bits=7:norm=max:feedback=on",
    "alq:every=2",
    "alq:bits=3:norm=max:normalised=on:every=3:feedback=on",
    "alq:bits=2:feedback=on",
    "alq:bits=2:zero=off:every=2:feedback=on",
    "amq:every=2:bits=5:chunk=1024",
    "amq:bits=3:norm=max:normalised=on:feedback=on",
    "amq:bits=8:zero=off:every=2",
    "top_k:ratio=0.05",
    "top_k:k=40+s2_reducer:lambda=exact:feedback=on",
    "top_k:ratio=0.2+zen",
    "block_top_k:ratio=0.1:block=100",
    "block_top_k:ratio=0.1:block=64+s2_reducer",
    "block_top_k:ratio=0.1+s2_reducer:shrink=on:feedback=on",
    "dgc:ratio=0.05:momentum=0",
    "dgc:ratio=0.01:clip=1:warmup_steps=2+s2_reducer:rows=3",
    "mc:momentum=0.5+block_top_k:ratio=0.1+omnireduce",
    "power_sgd",
    "power_sgd:rank=1",
    "power_sgd:rank=3:feedback=off",
    "cascading_sign",  // with feedback it diverges within steps, see below
};

}  // namespace thinwire

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
    "cascading_sign",  // with feedback it diverges within steps, see below
};

}  // namespace thinwire

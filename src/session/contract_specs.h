#pragma once
// Every system in the forms that its contract is tested in: over threads (contract_test.cc), Gloo and MPI
// (tests/systems_cases.h); one or two forms of each on a CUDA device too (device_test.cc). A new system joins
// by one line.

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "tests/sanitized.h"
#include "thinwire/registry.h"

namespace thinwire {

enum class On { cpu, device, both };
struct TestedSpec {
  std::string spec;
  On on = On::cpu;
};

inline const std::vector<TestedSpec> kTestedSpecs = {
    {"auto"},
    {"auto:settle=0:steps=3"},  // half in the first four steps, and power_sgd in the next ones
    {"dense", On::both},
    {"dense:feedback=on", On::both},
    {"half", On::both},
    {"half:feedback=on", On::both},
    {"half:format=bf16:feedback=on", On::both},
    {"marsit"},
    {"marsit:full_every=0", On::both},
    {"marsit:full_every=3:eta_s=0.01"},
    {"marsit:full_every=0:eta_factor=1:full_above=2"},
    {"marsit:full_every=3:eta_s=theorem:horizon=50:dimension=20000"},
    {"marsit:full_every=2:feedback=off"},
    {"marsit:full_every=0:topology=torus"},
    {"marsit:full_every=3:topology=torus:drift_every=2", On::both},
    {"marsit:full_every=3", On::device},
    {"signsgd", On::both},
    {"signsgd:feedback=on:scale=0.5", On::both},
    {"ef_signsgd", On::both},
    {"ef_signsgd:topology=ring", On::both},
    {"ef_signsgd:topology=ring:coding=elias"},
    {"ef_signsgd:topology=torus", On::both},
    {"signsgd:topology=torus", On::both},
    {"signsgd:coding=elias", On::both},
    {"ssdm"},
    {"ssdm:feedback=on", On::both},
    {"ssdm:topology=ring"},
    {"ssdm:topology=ring:coding=elias"},
    {"ssdm:topology=ring:feedback=on", On::both},
    {"zen", On::both},
    {"zen:scheme=push_pull:feedback=on", On::both},
    {"zen:scheme=centralization:feedback=on", On::both},
    {"zen:scheme=push_pull:pull=list"},
    {"zen:scheme=push_pull:pull=bitmap", On::both},
    {"zen:scheme=push_pull:split=hash", On::both},
    {"zen:scheme=push_pull:split=hash:hashes=1:slots=0.5:serial=0", On::both},
    {"zen:scheme=push_pull:split=thresholds:every=2"},
    {"zen:profile_steps=2:gbit=1000:latency_us=1000"},  // where the fewer hops win
    {"agsparse"},
    {"agsparse:feedback=on", On::both},
    {"sparcml:feedback=on", On::both},
    {"sparcml:switch=on:feedback=on"},
    {"omnireduce:feedback=on"},
    {"omnireduce:block=1000"},
    {"omnireduce:block=1000:feedback=on", On::device},
    {"sparse_ps:feedback=on", On::both},
    {"s2_reducer", On::both},
    {"s2_reducer:lambda=exact:feedback=on", On::both},
    {"s2_reducer:lambda=auto:budget=0.8:rows=4:run=16:block=100"},
    {"s2_reducer:shrink=on:feedback=on", On::both},
    {"sketched_sgd"},
    {"sketched_sgd:k=20:p=3:rows=4:columns=100:run=16:dense_below=400", On::both},
    {"sketched_sgd:ratio=0.01:fill=random:feedback=off"},
    {"sketched_sgd:ratio=0.01:fill=random:rows=3:lr_after=on"},
    {"sketched_sgd:ratio=0.01:momentum=0.9:dense_below=30", On::both},
    {"sketched_sgd:ratio=0.05:p=2:columns_ratio=0.1:fill=random", On::device},
    {"mc:momentum=0.5+sketched_sgd:k=10:columns_ratio=0.05", On::both},
    {"global_top_k:k=30"},
    {"global_top_k:ratio=0.1:momentum=0.5:dense_below=400"},
    {"global_top_k:ratio=0.1:momentum=0.5", On::device},
    {"casq:interval=3", On::both},
    {"casq:bits=1:buckets=0:topology=all_gather"},
    {"casq:bits=3:topology=all_gather:interval=1:feedback=off", On::both},
    {"casq:bits=4:buckets=0.05:topology=server:downlink=codes:allocation=error:interval=2"},
    {"casq:topology=server:downlink=float32:allocation=density"},
    {"casq:scope=bucket:allocation=even:sample=1:double_momentum=0.5"},
    {"casq:clusters=own:interval=3", On::both},
    {"casq:clusters=own:bits=3:topology=all_gather:allocation=error", On::both},
    {"casq:clusters=own:topology=server:downlink=float32:scope=bucket"},
    {"casq:bits=4:topology=server:downlink=codes:interval=2", On::device},
    {"casq:topology=server:downlink=float32", On::device},
    {"casq:scope=bucket:double_momentum=0.5", On::device},
    {"qsgd", On::both},
    {"qsgd:bits=2:norm=l2:chunk=128:feedback=on", On::both},
    {"qsgd:bits=8:chunk=640:feedback=on"},
    {"terngrad"},
    {"terngrad:clip=2.5:feedback=on"},
    {"terngrad:scale=bucket:feedback=on", On::both},
    {"nuqsgd:bits=3", On::both},
    {"nuqsgd:bits=7:norm=max:feedback=on"},
    {"alq:every=2", On::both},
    {"alq:bits=3:norm=max:normalised=on:every=3:feedback=on"},
    {"alq:bits=2:feedback=on"},
    {"alq:bits=2:zero=off:every=2:feedback=on"},
    {"amq:every=2:bits=5:chunk=1024"},
    {"amq:bits=3:norm=max:normalised=on:feedback=on", On::both},
    {"amq:bits=8:zero=off:every=2"},
    {"top_k:ratio=0.05", On::both},
    {"top_k:k=40+s2_reducer:lambda=exact:feedback=on"},
    {"top_k:ratio=0.2+zen", On::both},
    {"block_top_k:ratio=0.1:block=100"},
    {"block_top_k:ratio=0.1:block=64+s2_reducer", On::both},
    {"block_top_k:ratio=0.1+s2_reducer:shrink=on:feedback=on"},
    {"block_top_k:ratio=0.25:block=16+zen", On::device},
    {"dgc:ratio=0.05:momentum=0", On::both},
    {"dgc:ratio=0.01:clip=1:warmup_steps=2+s2_reducer:rows=3"},
    {"dgc:ratio=0.05+zen", On::device},
    {"mc:momentum=0.5+block_top_k:ratio=0.1+omnireduce", On::both},
    {"blocks"},
    {"blocks:bits=4:block=128"},
    {"blocks:bits=2:feedback=off"},
    {"blocks:bits=4", On::device},
    {"ecsq", On::both},
    {"ecsq:step=2:local=0.5"},
    {"ecsq:step=0.1:local=0:feedback=off", On::both},
    {"klt", On::both},
    {"klt:step=2:every=2"},
    {"klt:every=1:feedback=off", On::both},
    {"power_sgd", On::both},
    {"power_sgd:rank=2:bits=8"},
    {"power_sgd:rank=3:bits=4:block=128:feedback=off"},
    {"power_sgd:rank=2:step=0.3"},
    {"power_sgd:rank=3:step=1:feedback=off", On::both},
    {"power_sgd:rank=1"},
    {"power_sgd:rank=3:feedback=off", On::both},
    {"power_sgd:rank=2:bits=4", On::device},
    {"acp_sgd", On::both},
    {"acp_sgd:rank=2:bits=4"},
    {"acp_sgd:rank=2:bits=3", On::device},
    {"acp_sgd:rank=3:feedback=off", On::both},
    {"acp_sgd:rank=2:bits=8:block=256:feedback=off"},
    {"momentum+casq:interval=2"},
    {"momentum:momentum=0.5+top_k:ratio=0.1+zen"},
    {"whole+momentum+ef_signsgd"},
    {"demo"},
    {"demo:chunk=10:top=7:momentum=0.5:sign=off"},
    {"whole+demo:chunk=128:top=9000:sign=off:feedback=off"},
    {"one_bit_adam:freeze=2"},
    {"one_bit_adam:freeze=1:beta1=0.5:norm=l1"},
    {"zero_one_adam:kappa=1"},
    {"warm_up:steps=2+zero_one_adam:kappa=2:freeze=4:norm=l2:feedback=off"},
    {"whole+casq:interval=2"},
    {"whole:below=300:names=*+marsit:full_every=0"},
    {"whole:below=150+mc:momentum=0.5+top_k:ratio=0.1+zen"},
    {"warm_up:steps=2+marsit:full_every=0"},
    {"warm_up:steps=3:with=qsgd/bits=4/feedback=on+power_sgd:rank=2"},
    {"top_k:ratio=0.05:ramp_from=0.5:ramp_steps=3+zen"},
    {"warm_up:steps=2+block_top_k:ratio=0.1:block=100:ramp_steps=2"},
    {"decay:factor=0.9+top_k:ratio=0.1+zen"},
    {"whole+mc:momentum=0.5+decay:factor=0.5+top_k:ratio=0.1+zen"},
    {"decay+casq:interval=2"},
    {"clip:norm=0.5+casq:interval=2"},
    {"clip:norm=2+warm_up:steps=2+top_k:ratio=0.1+zen"},
    {"guard:every=8:noise=0.3+casq:interval=2"},
    {"guard:every=8:noise=0.001:with=half+power_sgd:rank=2"},
    {"whole+guard:every=8:noise=0:with=qsgd/bits=8+top_k:ratio=0.1+zen"},
    {"cascading_sign", On::both},  // with feedback it diverges within steps, see below
};

inline std::vector<std::string> specs_on(On where) {
  std::vector<std::string> specs;
  for (const TestedSpec& one : kTestedSpecs) {
    if (one.on == where || one.on == On::both) specs.push_back(one.spec);
  }
  return specs;
}

/// Of specs that name the same systems the first one, where a sanitizer is at work; else all. For tests that
/// take long, of what options hardly change.
inline std::vector<std::string> in_brief(std::vector<std::string> specs) {
  if (!kSanitized) return specs;
  std::set<std::vector<std::string>> seen;
  std::erase_if(specs, [&](const std::string& spec) {
    std::vector<std::string> names;
    for (const SpecPart& part : parse_spec(spec)) names.push_back(part.name);
    return !seen.insert(names).second;
  });
  return specs;
}

inline const std::vector<std::string> kContractSpecs = specs_on(On::cpu);
inline const std::vector<std::string> kDeviceSpecs = specs_on(On::device);

/// A spec as a part of a test's name.
inline std::string test_name(std::string spec) {
  std::ranges::replace_if(
      spec, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return spec;
}

}  // namespace thinwire

#include "torch/gloo_environment.h"

#include <charconv>
#include <stdexcept>

#include "core/srun.h"

namespace thinwire {
namespace {

int number(const char* name, const std::string& text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw std::invalid_argument(std::string(name) + "=" + text + ": a number from " + std::to_string(low) +
                                " to " + std::to_string(high) + " is needed");
  }
  return value;
}

}  // namespace

GlooEnvironment GlooEnvironment::read(const VariableLookup& torchrun) {
  const auto srun = srun_variables(torchrun);
  const VariableLookup get = [&](const char* name) {
    const auto found = srun.find(name);
    return found == srun.end() ? torchrun(name) : std::optional(found->second);
  };
  std::string missing;
  const auto need = [&](const char* name) {
    const auto value = get(name);
    if (!value || value->empty()) missing += (missing.empty() ? "" : ", ") + std::string(name);
    return value.value_or("");
  };
  const std::string address = need("MASTER_ADDR");
  const std::string port = need("MASTER_PORT");
  const std::string rank_text = need("RANK");
  const std::string world_text = need("WORLD_SIZE");
  if (!missing.empty()) {
    throw std::invalid_argument(
        "the gloo engine needs the environment of torchrun, but " + missing +
        (missing.find(',') == std::string::npos ? " is" : " are") +
        " not set: start the ranks with `thinwire launch -n 4 -- thinwire ...` or torchrun" +
        (get("SLURM_JOB_ID") ? ", or in this job of Slurm with `srun -n 4 thinwire ...`" : ""));
  }
  GlooEnvironment environment;
  environment.master_address = address;
  environment.master_port = number("MASTER_PORT", port, 1, 65535);
  environment.world_size = number("WORLD_SIZE", world_text, 1, 1 << 20);
  environment.rank = number("RANK", rank_text, 0, environment.world_size - 1);
  environment.network_interface = get("GLOO_SOCKET_IFNAME").value_or("");
  if (environment.network_interface.find(',') != std::string::npos) {
    throw std::invalid_argument("GLOO_SOCKET_IFNAME=" + environment.network_interface +
                                ": name one interface");
  }
  environment.agent_serves_store = get("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  environment.restart_count = get("TORCHELASTIC_RESTART_COUNT").value_or("0");
  environment.job = get("THINWIRE_JOB").value_or(get("TORCHELASTIC_RUN_ID").value_or(""));
  return environment;
}

GlooEnvironment GlooEnvironment::read() {
  return read(process_variable);
}

}  // namespace thinwire

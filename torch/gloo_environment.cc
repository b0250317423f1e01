#include "torch/gloo_environment.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>

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

GlooEnvironment GlooEnvironment::read(const std::function<std::optional<std::string>(const char*)>& get) {
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
        " not set: start the ranks with `thinwire launch -n 4 -- thinwire ...` or torchrun");
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
  return read([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace thinwire

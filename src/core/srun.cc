#include "core/srun.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "core/digits.h"

namespace thinwire {
namespace {

constexpr std::uint64_t kFirstPort = 20000;
constexpr std::uint64_t kPorts = 12000;  // up to where Linux begins with the ports that it gives to clients
constexpr std::uint64_t kStepsOfJob = 8;

bool is_of_name(char letter) {
  return is_digit(letter) || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         letter == '-' || letter == '_' || letter == '.';
}

/// The digits from `at` on, which goes behind them.
std::string_view take_digits(std::string_view text, std::size_t& at) {
  const std::size_t begin = at;
  while (at < text.size() && is_digit(text[at])) ++at;
  return text.substr(begin, at - begin);
}

/// Of `[01-03,7]` the first number as it is written; `at` goes behind the bracket. Empty where it is no such
/// thing.
std::string_view take_ranges(std::string_view text, std::size_t& at) {
  std::string_view first;
  do {
    ++at;  // the bracket or a comma
    const std::string_view low = take_digits(text, at);
    if (low.empty()) return {};
    if (first.empty()) first = low;
    if (at < text.size() && text[at] == '-') {
      const std::string_view high = take_digits(text, ++at);
      if (high.size() < low.size() || (high.size() == low.size() && high < low)) return {};
    }
  } while (at < text.size() && text[at] == ',');
  if (at == text.size() || text[at] != ']') return {};
  ++at;
  return first;
}

std::string value_of(const VariableLookup& get, const char* name) {
  return get(name).value_or("");
}

std::string need(const VariableLookup& get, const char* name) {
  std::string value = value_of(get, name);
  if (!value.empty()) return value;
  throw std::invalid_argument(std::string(name) + " is not set, though srun sets it beside SLURM_STEP_ID=" +
                              value_of(get, "SLURM_STEP_ID") +
                              ": pass on all of Slurm's variables, or set RANK, WORLD_SIZE, MASTER_ADDR and "
                              "MASTER_PORT");
}

std::uint64_t number(const char* name, const std::string& text, std::uint64_t low, std::uint64_t high) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw std::invalid_argument(std::string(name) + "=" + text + ": a number from " + std::to_string(low) +
                                " to " + std::to_string(high) +
                                " is needed; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT where Slurm "
                                "does not give it");
  }
  return value;
}

/// The one of RANK and WORLD_SIZE that somebody set by hand has to be the task's own: the other is.
void require_same(const VariableLookup& get, const char* name, const char* slurm, const std::string& own) {
  const std::string given = value_of(get, name);
  if (given.empty() || given == own) return;
  throw std::invalid_argument(std::string(name) + "=" + given + ", but srun gave this task " + slurm + "=" +
                              own + ": unset " + name + ", or set both RANK and WORLD_SIZE");
}

bool is_task(const VariableLookup& get) {
  const std::string in_step = value_of(get, "SLURM_STEP_NUM_TASKS");
  const std::string tasks = value_of(get, "SLURM_NTASKS");
  return !value_of(get, "SLURM_STEP_ID").empty() && (in_step.empty() || tasks.empty() || in_step == tasks);
}

std::string master_of(const VariableLookup& get) {
  std::string given = value_of(get, "MASTER_ADDR");
  if (!given.empty()) return given;
  const char* name =
      value_of(get, "SLURM_STEP_NODELIST").empty() ? "SLURM_JOB_NODELIST" : "SLURM_STEP_NODELIST";
  const std::string list = need(get, name);
  if (const auto host = first_host(list)) return *host;
  throw std::invalid_argument(
      std::string(name) + "=" + list +
      ": a list of hosts such as node[01-03,7],gpu2 is needed; set MASTER_ADDR to the "
      "host of rank 0");
}

}  // namespace

std::optional<std::string> process_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::string> first_host(std::string_view node_list) {
  std::string first;
  bool in_first = true;
  std::size_t at = 0;
  do {
    const std::size_t begin = at;
    while (at < node_list.size() && node_list[at] != ',') {
      std::string_view part;
      if (node_list[at] == '[') {
        part = take_ranges(node_list, at);
      } else if (is_of_name(node_list[at])) {
        part = node_list.substr(at++, 1);
      }
      if (part.empty()) return std::nullopt;
      if (in_first) first += part;
    }
    if (at == begin) return std::nullopt;
    in_first = false;
  } while (at++ < node_list.size());
  return first;
}

std::map<std::string, std::string> srun_variables(const VariableLookup& get) {
  const bool is_placed = !value_of(get, "RANK").empty() && !value_of(get, "WORLD_SIZE").empty();
  if (is_placed || !is_task(get)) return {};
  const std::string tasks = need(get, "SLURM_NTASKS");
  const std::string task = need(get, "SLURM_PROCID");
  const std::uint64_t world = number("SLURM_NTASKS", tasks, 1, 1 << 20);
  number("SLURM_PROCID", task, 0, world - 1);
  require_same(get, "WORLD_SIZE", "SLURM_NTASKS", tasks);
  require_same(get, "RANK", "SLURM_PROCID", task);
  const std::string job_text = need(get, "SLURM_JOB_ID");
  const std::string step_text = need(get, "SLURM_STEP_ID");
  const std::uint64_t job = number("SLURM_JOB_ID", job_text, 0, UINT32_MAX);
  const std::uint64_t step = number("SLURM_STEP_ID", step_text, 0, UINT32_MAX);
  const auto given_or = [&](const char* name, const std::string& otherwise) {
    const std::string given = value_of(get, name);
    return given.empty() ? otherwise : given;
  };
  const std::uint64_t port = kFirstPort + (kStepsOfJob * job + step % kStepsOfJob) % kPorts;
  const char* local_name = value_of(get, "LOCAL_RANK").empty() ? "SLURM_LOCALID" : "LOCAL_RANK";
  const std::string local = need(get, local_name);
  number(local_name, local, 0, world - 1);
  const std::string port_text = given_or("MASTER_PORT", std::to_string(port));
  number("MASTER_PORT", port_text, 1, 65535);
  return {{"RANK", task},
          {"WORLD_SIZE", tasks},
          {"LOCAL_RANK", local},
          {"MASTER_ADDR", master_of(get)},
          {"MASTER_PORT", port_text},
          {"THINWIRE_JOB", given_or("THINWIRE_JOB", "slurm-" + job_text + "." + step_text)}};
}

}  // namespace thinwire

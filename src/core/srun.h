#pragma once
// The place that Slurm's srun gave a process, in the variables by which torchrun would tell it.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace thinwire {

/// The value of an environment variable, or nothing.
using VariableLookup = std::function<std::optional<std::string>(const char* name)>;

/// A variable of this process. For programs: the library itself reads none.
std::optional<std::string> process_variable(const char* name);

/// RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and THINWIRE_JOB of a task that srun started. Those
/// that get() has and that are not empty keep their values. Empty where RANK and WORLD_SIZE are both there:
/// whoever set them has placed this process. Empty as well where this process is no task of srun.
///
/// A task has SLURM_STEP_ID, and the same number in SLURM_NTASKS and SLURM_STEP_NUM_TASKS. A batch script has
/// no step. The shell of an allocation is a step of one task whose SLURM_NTASKS is the allocation's.
///
/// The port is 20000 + (8 job + step mod 8) mod 12000. So two jobs whose numbers are less than 1,500 apart
/// have different ports, and so have a job's first 8 steps. The system gives none of these ports to clients.
///
/// Throws std::invalid_argument that names a variable which is missing, or a value that cannot be.
std::map<std::string, std::string> srun_variables(const VariableLookup& get);

/// The first host of a node list such as `node[01-03,7],gpu2`. Nothing where it is none.
std::optional<std::string> first_host(std::string_view node_list);

}  // namespace thinwire

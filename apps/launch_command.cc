// thinwire launch -n W -- COMMAND...: W local processes with the environment that torchrun would give them.
// Where Slurm's srun starts several launchers, their processes make one job.
// It owns them: whatever happens to one of them, or to the launcher, none is left running.

#include <arpa/inet.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "core/srun.h"

namespace thinwire::apps {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// What a process that was asked to end may take for it.
constexpr Seconds kTermPatience{3.0};
constexpr int kUnknownCommand = 127;
constexpr int kNotExecutable = 126;

struct LaunchOptions {
  int processes = 0;
  int port = 0;
  double grace_seconds = 30;
  std::vector<std::string> command;
};

/// The file that PATH leads to; empty when there is none. status: what a shell would exit with.
std::string find_command(const std::string& name, int& status) {
  status = kUnknownCommand;
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.push_back(name);
  } else {
    const char* path = std::getenv("PATH");
    std::istringstream folders(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      candidates.push_back((folder.empty() ? "." : folder) + "/" + name);
    }
  }
  for (const auto& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    if (access(candidate.c_str(), F_OK) == 0) status = kNotExecutable;
  }
  return {};
}

/// Stays bound until this process ends: no other program is given the port before rank 0 listens there, which
/// SO_REUSEADDR lets it do.
int reserve_port() {
  const int holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const int on = 1;
  const bool found = holder >= 0 && setsockopt(holder, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                     bind(holder, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(holder, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (!found) throw std::runtime_error(std::string("no free port on 127.0.0.1: ") + std::strerror(errno));
  return ntohs(address.sin_port);
}

/// Where the ranks of this launcher stand in their job.
struct Place {
  int world_size = 0;
  int first_rank = 0;
  int first_local_rank = 0;
  std::string address = "127.0.0.1";
  std::string port;
  std::string job;  ///< What tells its ranks from those of another job at the same port.
};

/// A job of the launcher's own; its part of a common one where srun started a launcher in each of several
/// tasks.
Place place_of(const LaunchOptions& options) {
  const auto srun = srun_variables(process_variable);
  if (srun.empty() || srun.at("WORLD_SIZE") == "1") {
    Place place;
    place.world_size = options.processes;
    place.port = std::to_string(options.port != 0 ? options.port : reserve_port());
    std::random_device random;
    for (int word = 0; word < 2; ++word) place.job += std::to_string(random());
    return place;
  }
  const auto tasks = std::stoll(srun.at("WORLD_SIZE"));
  if (tasks * options.processes > kMostWorkers) {
    throw std::invalid_argument("-n " + std::to_string(options.processes) + " in each of srun's " +
                                std::to_string(tasks) + " tasks: at most " + std::to_string(kMostWorkers) +
                                " ranks make a job");
  }
  return {.world_size = static_cast<int>(tasks) * options.processes,
          .first_rank = std::stoi(srun.at("RANK")) * options.processes,
          .first_local_rank = std::stoi(srun.at("LOCAL_RANK")) * options.processes,
          .address = srun.at("MASTER_ADDR"),
          .port = options.port != 0 ? std::to_string(options.port) : srun.at("MASTER_PORT"),
          .job = srun.at("THINWIRE_JOB")};
}

class Launcher {
 public:
  Launcher(const LaunchOptions& options, std::string file, Place place)
      : options_(options), file_(std::move(file)), place_(std::move(place)) {}

  /// Exit status for the launcher.
  int run() {
    // Orphans of the ranks become children of this process, so that they can be found in the end.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, number);
    sigprocmask(SIG_BLOCK, &signals_, &old_mask_);
    for (int number = 0; number < options_.processes; ++number) start(number);
    while (running() > 0) {
      wait_for_event();
      reap();
      escalate();
    }
    sweep_orphans();
    return status_;
  }

 private:
  struct Child {
    pid_t pid = -1;
    bool ended = false;
    bool stopped = false;
  };
  enum class Stage { running, draining, terminated, killed };

  void start(int number) {
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(1);  // it died before the line above
      sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
      const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
      set("MASTER_ADDR", place_.address);
      set("MASTER_PORT", place_.port);
      set("THINWIRE_JOB", place_.job);
      set("RANK", std::to_string(place_.first_rank + number));
      set("LOCAL_RANK", std::to_string(place_.first_local_rank + number));
      set("WORLD_SIZE", std::to_string(place_.world_size));
      set("LOCAL_WORLD_SIZE", std::to_string(options_.processes));
      // Each would take all cores for itself.
      if (options_.processes > 1) setenv("OMP_NUM_THREADS", "1", 0);
      std::vector<char*> arguments;
      for (const auto& word : options_.command) arguments.push_back(const_cast<char*>(word.c_str()));
      arguments.push_back(nullptr);
      execv(file_.c_str(), arguments.data());
      std::fprintf(stderr, "thinwire launch: %s: %s\n", file_.c_str(), std::strerror(errno));
      _exit(kNotExecutable);
    }
    if (pid < 0) {
      std::fprintf(stderr, "thinwire launch: cannot start rank %d: %s\n", place_.first_rank + number,
                   std::strerror(errno));
      fail(1);
      stage_end_ = Clock::now();  // the ranks that run would wait for this one
    }
    children_.push_back({.pid = pid, .ended = pid < 0, .stopped = false});
  }

  std::size_t running() const {
    std::size_t count = 0;
    for (const auto& child : children_) count += child.ended ? 0 : 1;
    return count;
  }

  void wait_for_event() {
    timespec limit{.tv_sec = 0, .tv_nsec = 100'000'000};
    siginfo_t info{};
    const int number = sigtimedwait(&signals_, &info, &limit);
    if (number <= 0 || number == SIGCHLD) return;
    // The terminal sends Ctrl-C to the whole foreground group, the ranks included.
    if (info.si_code != SI_KERNEL) signal_all(number);
    forwarded_ = number;
    if (stage_ == Stage::draining) stage_end_ = Clock::now();  // asked twice: no more patience
    fail(128 + number);
  }

  void reap() {
    int how = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &how, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
      for (std::size_t number = 0; number < children_.size(); ++number) {
        if (children_[number].pid == pid) note(number, how);
      }
    }
  }

  void note(std::size_t number, int how) {
    Child& child = children_[number];
    child.stopped = WIFSTOPPED(how);
    if (WIFSTOPPED(how) || WIFCONTINUED(how)) return;
    child.ended = true;
    const int status = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
    if (status == 0) return;
    // A crash is told of whenever it comes. What the launcher ends itself is not.
    if (WIFSIGNALED(how) && !sent(WTERMSIG(how))) {
      std::fprintf(stderr, "thinwire launch: rank %zu (process %d) was killed by signal %d (%s)\n",
                   static_cast<std::size_t>(place_.first_rank) + number, child.pid, WTERMSIG(how),
                   strsignal(WTERMSIG(how)));
    }
    fail(status);
  }

  /// Whether the launcher itself may have ended a rank by that signal.
  bool sent(int signal) const {
    if (signal == forwarded_) return true;
    if (stage_ == Stage::terminated) return signal == SIGTERM;
    return stage_ == Stage::killed && (signal == SIGTERM || signal == SIGKILL);
  }

  /// The first failure decides the status; from then on the others' time is limited.
  void fail(int status) {
    if (stage_ != Stage::running) return;
    status_ = status;
    enter(Stage::draining, Seconds(options_.grace_seconds));
  }

  void enter(Stage stage, Seconds patience) {
    stage_ = stage;
    stage_end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  }

  void escalate() {
    if (stage_ == Stage::running || running() == 0) return;
    bool only_stopped = true;
    for (const auto& child : children_) only_stopped = only_stopped && (child.ended || child.stopped);
    // A stopped process neither diagnoses nor answers SIGTERM.
    if (Clock::now() < stage_end_ && !only_stopped) return;
    if (stage_ == Stage::draining && !only_stopped) {
      std::fprintf(stderr, "thinwire launch: ending %zu processes that still run\n", running());
      signal_all(SIGTERM);
      enter(Stage::terminated, kTermPatience);
    } else {
      signal_all(SIGKILL);
      enter(Stage::killed, kTermPatience);
    }
  }

  void signal_all(int number) {
    for (const auto& child : children_) {
      if (!child.ended) kill(child.pid, number);
    }
  }

  /// What the ranks started and did not wait for.
  void sweep_orphans() {
    for (;;) {
      std::ifstream list("/proc/self/task/" + std::to_string(getpid()) + "/children");
      for (pid_t pid = 0; list >> pid;) kill(pid, SIGKILL);
      const pid_t ended = waitpid(-1, nullptr, 0);
      if (ended < 0 && errno != EINTR) return;
    }
  }

  const LaunchOptions& options_;
  std::string file_;
  Place place_;
  sigset_t signals_{};
  sigset_t old_mask_{};
  std::vector<Child> children_;
  Stage stage_ = Stage::running;
  Clock::time_point stage_end_{};
  int status_ = 0;
  int forwarded_ = 0;  // the signal that asked this process to end, and with it the ranks
};

int launch(const LaunchOptions& options) {
  int status = 0;
  const std::string file = find_command(options.command[0], status);
  if (file.empty()) {
    std::cerr << "thinwire launch: " << options.command[0]
              << (status == kUnknownCommand ? ": command not found\n" : ": not an executable file\n");
    return status;
  }
  std::cout.flush();
  return Launcher(options, file, place_of(options)).run();
}

}  // namespace

void add_launch_command(CLI::App& app) {
  auto* command =
      app.add_subcommand("launch", "Start W local processes as torchrun would: launch -n W -- COMMAND...");
  const auto options = std::make_shared<LaunchOptions>();
  command->add_option("-n,--processes", options->processes, "How many processes (ranks)")
      ->required()
      ->check(CLI::Range(1, 65536));
  command
      ->add_option("--port", options->port,
                   "MASTER_PORT; default: a free one, or in several tasks of srun theirs")
      ->check(CLI::Range(1, 65535));
  command
      ->add_option("--grace", options->grace_seconds,
                   "Seconds that the other processes get to end by themselves after one has failed")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("command", options->command, "Program and arguments, after --")->required();
  command->positionals_at_end();
  command->callback([options] {
    const int status = launch(*options);
    if (status != 0) throw CLI::RuntimeError(status);  // the ranks, or launch(), have said why
  });
}

}  // namespace thinwire::apps

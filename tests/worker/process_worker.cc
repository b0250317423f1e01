// One rank of a process test: process_worker ENGINE MODE [DEADLINE [SILENCE_LIMIT]]
//   collectives   every case of collectives_cases.h
//   systems       every system, see systems_cases.h
//   long-message, short-message   one of another size than its receiver expects: an error, no crash
//   early         sums that begin early, of ranks that differ
//   abandoned     messages that are given up write to nobody's memory any more
//   reduce        the engine's all_reduce_sum in a loop until something fails
//   ring          a ring of messages in a loop until something fails
//   casq          a session's steps with casq in a loop until something fails
//                 In these three a rank that gets SIGUSR1 is busy by itself until SIGUSR2. Every rank says
//                 "rank r went on at N" after a step that took longer than a second.
//   broken-pipe   writes to a connection that has no other end, which is an error and not the process's end
//   reopen        two runs on the engine in one process
//   golden        prints the lines of golden_cases.h, each after "golden "
//                 (ENGINE may be threads then, with WORLD_SIZE ranks)
// ENGINE is gloo (started by `thinwire launch`) or mpi (by mpirun). Rank r announces "rank r ready PID" once
// it is connected. Exit status 1 and one line on stderr after an error, as the command line does.

#include <hwy/targets.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "apps/engine.h"
#include "tests/binding_cases.h"
#include "tests/collectives_cases.h"
#include "tests/golden_cases.h"
#include "tests/systems_cases.h"
#include "thinwire/errors.h"

namespace {

using thinwire::Communicator;

void announce(const std::string& line) {
  std::cout << line + "\n" << std::flush;  // one write, so that ranks do not interleave
}

volatile sig_atomic_t is_away = 0;

void listen_to_signals() {
  signal(SIGUSR1, [](int) { is_away = 1; });
  signal(SIGUSR2, [](int) { is_away = 0; });
}

/// What a loop does between two steps.
class BetweenSteps {
 public:
  explicit BetweenSteps(int rank) : rank_(rank) {}

  void operator()(std::uint64_t step) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ > std::chrono::seconds(1))
      announce("rank " + std::to_string(rank_) + " went on at " + std::to_string(step));
    while (is_away != 0) usleep(1000);
    last_ = std::chrono::steady_clock::now();
  }

 private:
  int rank_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void reduce_for_ever(Communicator& communicator) {
  std::vector<float> values(100'000);
  BetweenSteps between(communicator.rank());
  for (std::uint64_t step = 0;; ++step) {
    communicator.set_context(0, step);
    communicator.all_reduce_sum(values);
    between(step);
  }
}

void casq_for_ever(Communicator& communicator) {
  thinwire::Session session("casq", communicator);
  std::vector<float> gradient(100'000, 1.0f);
  const auto bucket = session.add_bucket({{"all", gradient.size()}});
  BetweenSteps between(communicator.rank());
  for (std::uint64_t step = 0;; ++step) {
    session.synchronize(bucket, gradient);
    between(step);
  }
}

void ring_for_ever(Communicator& communicator) {
  const int world = communicator.size();
  const int next = (communicator.rank() + 1) % world;
  const int previous = (communicator.rank() + world - 1) % world;
  std::vector<std::byte> out(100'000);
  std::vector<std::byte> in(out.size());
  BetweenSteps between(communicator.rank());
  for (std::uint64_t step = 0;; ++step) {
    communicator.set_context(0, step);
    auto receiving = communicator.receive(previous, 1, in);
    auto sending = communicator.send(next, 1, out);
    receiving.wait();
    sending.wait();
    between(step);
  }
}

/// A long message, given up after it has begun to arrive: its memory belongs to the caller again.
void give_up_a_message(Communicator& communicator) {
  constexpr std::size_t kLong = std::size_t{1} << 24;
  std::vector<std::byte> bytes(kLong, std::byte{1});
  std::byte word{};
  const auto exchange = [&] {
    auto sent = communicator.send(1 - communicator.rank(), 3, {&word, 1});
    communicator.receive(1 - communicator.rank(), 3, {&word, 1}).wait();
    sent.wait();
  };
  if (communicator.rank() == 1) {
    auto pending = communicator.send(0, 2, bytes);
    exchange();
    pending.wait();
  } else {
    {
      const auto pending = communicator.receive(1, 2, bytes);
      exchange();
    }
    std::fill(bytes.begin(), bytes.end(), std::byte{2});
  }
  for (int i = 0; i < 1000; ++i) exchange();
  if (communicator.rank() == 0 &&
      std::any_of(bytes.begin(), bytes.end(), [](std::byte one) { return one != std::byte{2}; })) {
    throw std::runtime_error("a message that was given up was written to memory that is in other use");
  }
}

void write_to_nobody() {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  close(ends[0]);
  const bool refused = write(ends[1], "x", 1) == -1 && errno == EPIPE;
  close(ends[1]);
  if (!refused) throw std::runtime_error("a write that nobody can read gave no error");
}

void work(Communicator& communicator, const std::string& mode) {
  const int rank = communicator.rank();
  if (mode == "golden") {
    if (communicator.size() > 1) announce("golden begins");
    for (const auto& line : thinwire::testing::GoldenCases(communicator).run()) announce("golden " + line);
    return;
  }
  communicator.barrier();
  announce("rank " + std::to_string(rank) + " ready " + std::to_string(getpid()));
  if (mode == "collectives") {
    thinwire::testing::CollectivesCases(communicator).run();
  } else if (mode == "systems") {
    thinwire::testing::SystemsCases(communicator).run();
  } else if (mode == "binding") {
    thinwire::testing::BindingCases(communicator).run();
  } else if (mode == "long-message") {
    thinwire::testing::check_wrong_size(communicator, 100'000, 4);
  } else if (mode == "short-message") {
    thinwire::testing::check_wrong_size(communicator, 4, 100'000);
  } else if (mode == "early") {
    thinwire::testing::check_early_sums_that_differ(communicator);
  } else if (mode == "abandoned") {
    give_up_a_message(communicator);
  } else if (mode == "broken-pipe") {
    write_to_nobody();
  } else if (mode == "reduce") {
    reduce_for_ever(communicator);
  } else if (mode == "ring") {
    ring_for_ever(communicator);
  } else if (mode == "casq") {
    casq_for_ever(communicator);
  } else if (mode != "reopen") {
    throw std::invalid_argument("unknown mode " + mode);
  }
}

int world_size() {
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: process_worker ENGINE MODE [DEADLINE]\n";
    return 2;
  }
  const std::string mode = argv[2];
  if (mode == "golden") {
    // Sums of floats differ between instruction sets.
    if ((hwy::SupportedTargets() & HWY_AVX2) == 0) {
      std::cerr << "the golden record is of AVX2 kernels, which this machine cannot run\n";
      return 77;
    }
    hwy::SetSupportedTargetsForTest(HWY_AVX2);
  }
  thinwire::apps::EngineOptions options{.engine = argv[1], .workers = world_size()};
  options.deadline_seconds = argc > 3 ? std::atof(argv[3]) : 30;
  const double silence_seconds = argc > 4 ? std::atof(argv[4]) : 0;
  listen_to_signals();
  if (mode == "broken-pipe") signal(SIGPIPE, SIG_DFL);  // whatever this process has inherited
  try {
    for (int run = 0; run < (mode == "reopen" ? 2 : 1); ++run) {
      thinwire::apps::run_on_engine(options, [&](Communicator& communicator) {
        if (silence_seconds > 0)
          communicator.set_silence_limit(std::chrono::duration<double>(silence_seconds));
        work(communicator, mode);
      });
    }
  } catch (const std::exception& error) {
    std::cerr << std::string("process_worker: ") + error.what() + "\n";
    std::cerr.flush();
    _exit(1);  // as the command line does: destructors of a broken engine may wait for the dead rank
  }
  return 0;
}

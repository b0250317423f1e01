#pragma once
// What a rank of the campaign tells the keeper of its run, and the faults that it does to itself.
//
// Each rank writes lines of JSON to the FIFO events-RANK and reads a byte from acks-RANK when it waits for
// the keeper. Both lie in the run's folder.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// Of shim.c where it is preloaded.
extern "C" {
[[gnu::weak]] void campaign_flip(long bytes);
[[gnu::weak]] int campaign_flipped();
[[gnu::weak]] void campaign_clock(long seconds);
[[gnu::weak]] void campaign_lose(long per_mille);
}

namespace thinwire::campaign {

/// key=value words of the command line.
class Plan {
 public:
  Plan(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const std::size_t at = word.find('=');
      if (at == std::string::npos) throw std::invalid_argument(word + ": key=value is needed");
      values_[word.substr(0, at)] = word.substr(at + 1);
    }
  }
  const std::string& text(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) throw std::invalid_argument("no " + key + " is given");
    return found->second;
  }
  long number(const std::string& key) const { return std::atol(text(key).c_str()); }

 private:
  std::map<std::string, std::string> values_;
};

class Events {
 public:
  Events(const std::string& folder, int rank)
      : out_(open((folder + "/events-" + std::to_string(rank)).c_str(), O_WRONLY | O_CLOEXEC)),
        in_(open((folder + "/acks-" + std::to_string(rank)).c_str(), O_RDWR | O_CLOEXEC)) {
    if (out_ < 0 || in_ < 0) throw std::runtime_error("no FIFOs in " + folder);
  }
  /// `more`: further members, each with a comma before it.
  void tell(const std::string& event, const std::string& more = "") const {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const std::string line = "{\"event\": \"" + event + "\", \"at\": " + std::to_string(now.tv_sec) + "." +
                             std::to_string(1'000'000'000 + now.tv_nsec).substr(1) + more + "}\n";
    if (write(out_, line.data(), line.size()) < 0) _exit(3);
  }
  void await_ack() const {
    char byte = 0;
    if (read(in_, &byte, 1) != 1) _exit(3);
  }

 private:
  int out_;
  int in_;
};

/// Does the planned fault when its place comes.
class Striker {
 public:
  Striker(const Plan& plan, const Events& events, int rank)
      : plan_(plan), events_(events), mine_(plan.number("victim") == rank) {}

  /// Returns at once where the fault needs another thread or the keeper; throws where it is an exception.
  void at(const std::string& place, long step = -1, long bucket = -1) {
    if (!mine_ || done_ || place != plan_.text("place") || plan_.text("fault") == "overflow") return;
    if (step != plan_.number("at_step") && step >= 0) return;
    if (bucket != plan_.number("at_bucket") && bucket >= 0) return;
    done_ = true;
    const std::string fault = plan_.text("fault");
    if (fault == "kill") return later(SIGKILL);
    if (fault == "stop" || fault == "pause" || fault == "away") return later(SIGSTOP);
    events_.tell("fault");
    if (fault == "exception") throw std::runtime_error("the user's own exception");
    const long amount = plan_.number("amount");
    if (fault == "memory") {
      starve(amount);
    } else if (fault == "disk") {
      signal(SIGXFSZ, SIG_IGN);
      limit(RLIMIT_FSIZE, static_cast<rlim_t>(amount));
    } else if (fault == "flip") {
      events_.await_ack();  // the keeper looks who has which connection
      if (campaign_flip != nullptr) campaign_flip(amount);
    } else if (fault == "clock") {
      if (campaign_clock != nullptr) campaign_clock(amount);
    } else if (fault == "loss") {
      if (campaign_lose != nullptr) campaign_lose(amount);
    } else {
      events_.await_ack();  // the keeper's: links
    }
  }

  /// Tells whose bit was turned over, if any was.
  void tell_flip() const {
    const int port = campaign_flipped != nullptr ? campaign_flipped() : 0;
    if (port != 0) events_.tell("flipped", ", \"port\": " + std::to_string(port));
  }

  /// Whether this rank's gradient of the bucket is NaN in this step.
  bool overflows(long step, long bucket) {
    if (!mine_ || done_ || plan_.text("fault") != "overflow") return false;
    if (step != plan_.number("at_step") || bucket != plan_.number("at_bucket")) return false;
    done_ = true;
    events_.tell("fault");
    return true;
  }

 private:
  static void limit(decltype(RLIMIT_AS) what, rlim_t value) {
    rlimit limits{};
    getrlimit(what, &limits);
    limits.rlim_cur = value;
    setrlimit(what, &limits);
  }

  /// Leaves `bytes` of memory, and takes what the allocator still has in store.
  static void starve(long bytes) {
    std::ifstream sizes("/proc/self/statm");
    long pages = 0;
    sizes >> pages;
    auto* hoard = new std::list<std::unique_ptr<char[]>>;  // until the process ends
    for (int i = 0; i < 1000; ++i) hoard->emplace_back();
    limit(RLIMIT_AS, static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + bytes));
    try {
      for (auto& piece : *hoard) piece = std::make_unique<char[]>(1 << 16);
    } catch (const std::bad_alloc&) {
    }
  }

  void later(int what) {
    std::thread([delay = plan_.number("delay_us"), what, events = &events_] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      events->tell("fault");
      kill(getpid(), what);
    }).detach();
  }

  const Plan& plan_;
  const Events& events_;
  const bool mine_;
  bool done_ = false;
};

}  // namespace thinwire::campaign

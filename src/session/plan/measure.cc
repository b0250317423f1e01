#include "session/plan/measure.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <exception>
#include <thread>

#include "core/cpu_clock.h"
#include "exchange/host_groups.h"
#include "thinwire/session.h"
#include "thinwire/virtual_network.h"

namespace thinwire {
namespace {

/// Computing is timed with so many ranks, or so many hosts, and on no more elements of all ranks.
constexpr int kCodecRanks = 4;
constexpr int kCodecHosts = 2;
constexpr std::size_t kMostCodecElements = std::size_t{1} << 23;
constexpr std::size_t kCodecSteps = 5;
/// Of a matrix in which systems that look for low ranks find one.
constexpr std::size_t kMatrixSide = 256;

constexpr VirtualLink kLatencyAlone{.bytes_per_second = 1e30, .latency_seconds = 1};
constexpr VirtualLink kFree{.bytes_per_second = 1e30, .latency_seconds = 0};

bool is_matrix(const Parameter& parameter) {
  return parameter.rows != 1 && parameter.rows != parameter.elements && parameter.elements > 1;
}

/// The first elements of the bucket, matrices with fewer rows.
BucketLayout part_of(const BucketLayout& bucket, std::size_t most) {
  BucketLayout part;
  std::size_t left = most;
  for (Parameter parameter : bucket) {
    if (left == 0) break;
    if (parameter.elements > left) {
      const std::size_t width = parameter.rows == 0 ? 1 : parameter.elements / parameter.rows;
      const std::size_t rows = std::max<std::size_t>(1, left / width);
      parameter.elements = rows * width;
      if (parameter.rows != 0) parameter.rows = rows;
    }
    left -= std::min(left, parameter.elements);
    part.push_back(std::move(parameter));
  }
  return part;
}

/// Several virtual networks beside each other. In each one rank computes at a time, so as many ranks as there
/// are networks compute at the same time. They begin each step that is timed together.
class CodecTimer {
 public:
  CodecTimer(const std::string& spec, const BucketLayout& bucket, const CodecRun& run)
      : spec_(spec),
        bucket_(bucket),
        run_(run),
        world_(run.ranks_per_host > 1 ? kCodecHosts * run.ranks_per_host : kCodecRanks),
        draws_(static_cast<std::size_t>(run.at_once)),
        errors_(static_cast<std::size_t>(run.at_once)),
        meeting_(run.at_once, Mark{this}) {}

  CodecTime time() {
    std::vector<std::thread> others;
    for (std::size_t network = 1; network < draws_.size(); ++network) {
      try {
        others.emplace_back([this, network] { run_network(network); });
      } catch (...) {
        leave(network);
      }
    }
    run_network(0);
    for (std::thread& other : others) other.join();
    for (const std::exception_ptr& error : errors_) {
      if (error) std::rethrow_exception(error);
    }
    std::array<double, kCodecSteps> seconds{};
    for (std::size_t step = 0; step < kCodecSteps; ++step) {
      seconds[step] = marks_[step + 1] - marks_[step];
      for (const auto& draws : draws_) seconds[step] -= draws[step];
      seconds[step] = std::max(0.0, seconds[step]) / static_cast<double>(world_ * run_.at_once);
    }
    std::ranges::sort(seconds);
    return {.seconds = seconds[kCodecSteps / 2], .spread = seconds.back() - seconds.front()};
  }

 private:
  /// Where all networks begin a step. Threads of the sessions' own make copies, so the process is timed.
  struct Mark {
    CodecTimer* timer;
    void operator()() const noexcept {
      CodecTimer& self = *timer;
      if (self.marked_ < self.marks_.size()) {
        self.marks_[self.marked_++] = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
      }
    }
  };

  void run_network(std::size_t network) {
    try {
      run_virtual(world_, kFree,
                  [&](VirtualCommunicator& communicator) { run_rank(communicator, draws_[network]); });
    } catch (...) {
      leave(network);
    }
  }

  /// The others go on without this network, to their end.
  void leave(std::size_t network) {
    errors_[network] = std::current_exception();
    meeting_.arrive_and_drop();
  }

  void run_rank(VirtualCommunicator& communicator, std::array<double, kCodecSteps>& draws) {
    Session session(spec_, communicator, {.registry = run_.registry, .ranks_per_host = run_.ranks_per_host});
    session.add_bucket(bucket_);
    session.start();
    DrawnGradient drawing(communicator.rank(), elements_of(bucket_), run_.density);
    const auto meet = [&] {
      communicator.align();
      if (communicator.rank() == 0) meeting_.arrive_and_wait();
      communicator.align();
    };
    for (int step = -kPlanWarmUpSteps; step < static_cast<int>(kCodecSteps); ++step) {
      if (step >= 0) meet();
      const double before = cpu_seconds();
      const Span<float> gradient = drawing.draw();
      if (step >= 0) draws[static_cast<std::size_t>(step)] += cpu_seconds() - before;
      session.synchronize(0, gradient);
      session.next_step();
    }
    meet();
  }

  const std::string& spec_;
  const BucketLayout& bucket_;
  const CodecRun& run_;
  int world_;
  std::vector<std::array<double, kCodecSteps>> draws_;  // CPU time of drawing gradients
  std::vector<std::exception_ptr> errors_;
  std::array<double, kCodecSteps + 1> marks_{};
  std::size_t marked_ = 0;
  std::barrier<Mark> meeting_;
};

/// Hops in which ranks compare what they are about to exchange, and a rank's messages of them
/// (comm/exchange_call.cc).
Exchanges comparison_of(int workers) {
  Exchanges comparison;
  for (std::int64_t reach = 1; reach < workers; reach *= 8) {
    ++comparison.rounds;
    comparison.messages += static_cast<double>(std::min<std::int64_t>(7, (workers - 1) / reach));
  }
  return comparison;
}

/// What grows from 4 over 8 to 16 ranks goes on so: by as much for each rank, or for each doubling of them.
double extrapolated(const std::array<double, 3>& values, int workers) {
  const double first = values[1] - values[0];
  const double second = values[2] - values[1];
  const double more = workers;
  if (second > 1.5 * first) return values[2] + second / 8 * (more - 16);
  return values[2] + second * std::log2(more / 16);
}

}  // namespace

std::size_t elements_of(const BucketLayout& bucket) {
  std::size_t elements = 0;
  for (const Parameter& parameter : bucket) elements += parameter.elements;
  return elements;
}

Span<float> DrawnGradient::draw() {
  for (float& value : values_) {
    const double chance = static_cast<double>(next()) * 0x1p-32;
    value = chance < density_ ? static_cast<float>(static_cast<std::int32_t>(next())) * 0x1p-31f : 0.0f;
  }
  return values_;
}

CodecTime time_codec(const std::string& spec, const BucketLayout& bucket, const CodecRun& run) {
  const int world = run.ranks_per_host > 1 ? kCodecHosts * run.ranks_per_host : kCodecRanks;
  const BucketLayout part = part_of(bucket, kMostCodecElements / static_cast<std::size_t>(world));
  const double times = static_cast<double>(elements_of(bucket)) / static_cast<double>(elements_of(part));
  const CodecTime timed = CodecTimer(spec, part, run).time();
  return {.seconds = times * timed.seconds, .spread = times * timed.spread};
}

BucketLayout stand_in(const BucketLayout& bucket) {
  constexpr std::size_t kElements = kMatrixSide * kMatrixSide;
  BucketLayout small = bucket;
  if (elements_of(bucket) > kElements) {
    const bool matrices = std::ranges::any_of(bucket, is_matrix);
    small = {{"", kElements, matrices ? kMatrixSide : kElements}};
  }
  for (std::size_t i = 0; i < small.size(); ++i) small[i].name = std::to_string(i);
  return small;
}

Exchanges count_exchanges(const std::string& spec, const BucketLayout& small, double density, int workers) {
  Exchanges last;
  run_virtual(workers, kLatencyAlone, [&](VirtualCommunicator& communicator) {
    Session session(spec, communicator, {.undoes_steps = false});
    session.add_bucket(small);
    session.start();
    DrawnGradient drawing(communicator.rank(), elements_of(small), density);
    for (int step = 0; step <= kPlanWarmUpSteps; ++step) {
      const Span<float> gradient = drawing.draw();
      communicator.align();
      session.synchronize(0, gradient);
      const VirtualInterval interval = communicator.align();
      session.next_step();
      if (communicator.rank() != 0) continue;
      const StepReport& report = session.report(0);
      last = {.rounds = std::round(interval.seconds),
              .messages = static_cast<double>(report.wire.sent_messages),
              .compared = comparison_of(workers).messages,
              .header_bytes = static_cast<double>(report.frame_header_bytes)};
    }
  });
  const Exchanges comparison = comparison_of(workers);
  last.turns = std::max(0.0, last.messages - last.compared - (last.rounds - comparison.rounds));
  return last;
}

Exchanges extrapolated(const std::vector<Exchanges>& few, int workers) {
  const auto of = [&](auto&& value) {
    std::array<double, 3> values{};
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(few[i], comparison_of(4 << i));
    return extrapolated(values, workers);
  };
  const Exchanges comparison = comparison_of(workers);
  return {.rounds = comparison.rounds + of([](const Exchanges& all, const Exchanges& compared) {
                      return all.rounds - compared.rounds;
                    }),
          .messages = comparison.messages + of([](const Exchanges& all, const Exchanges& compared) {
                        return all.messages - compared.messages;
                      }),
          .compared = comparison.messages,
          .turns = of([](const Exchanges& all, const Exchanges&) { return all.turns; }),
          .header_bytes = of([](const Exchanges& all, const Exchanges&) { return all.header_bytes; })};
}

std::vector<BucketLayout> parts_of_host(const BucketLayout& bucket, int ranks_per_host) {
  std::vector<BucketLayout> parts(static_cast<std::size_t>(ranks_per_host));
  run_virtual(ranks_per_host, kFree, [&](VirtualCommunicator& communicator) {
    HostGroups groups(communicator, ranks_per_host);
    parts[groups.place()] = groups.parts(bucket).own;
  });
  return parts;
}

}  // namespace thinwire

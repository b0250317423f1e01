#pragma once
// One rank of the campaign on a Session, on any engine. Its options, as words KEY=VALUE:
//   world, deadline           of the engine
//   spec, seed                of the session
//   folder                    of the run: FIFOs, states, results
//   start, steps, every       first step (a state of it is loaded unless 0), number of steps, and steps
//                             from save to save
//   victim, fault, place, at_step, at_bucket, delay_us, amount   what happens to whom, see events.h
//
// It trains "parameters" that are the sum of all means. After its last step it writes final-RANK: the
// elements as three arrays of double, the sum of its own gradients over all steps, the sum of means, the
// residual. Status 1 and one line on stderr after an error, after which it looks at its state once more.

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iostream>
#include <limits>
#include <set>
#include <sstream>

#include "tests/campaign/events.h"
#include "thinwire/communicator.h"
#include "thinwire/session.h"

namespace thinwire::campaign {

namespace fs = std::filesystem;

inline const std::vector<BucketLayout> kBuckets = {
    {{"weights.3", 5}, {"weights.2", 1200, 30}},
    {{"weights.1", 33}},
    {{"weights.0", 700, 35}},
};

inline std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

/// In (-1, 1); what ranks have in common weighs as much as what each has of its own.
inline float gradient_at(std::uint64_t step, std::uint64_t rank, std::uint64_t element) {
  const auto draw = [&](std::uint64_t who) {
    const std::uint64_t bits = mix(mix(mix(step + 1) + who) + element);
    return static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f;
  };
  return 0.5f * (draw(0) + draw(rank + 1));
}

struct Training {
  std::vector<std::vector<float>> gradients;
  std::vector<double> applied;
};

class Rank {
 public:
  Rank(const Plan& plan, Communicator& communicator)
      : plan_(plan),
        folder_(plan.text("folder")),
        rank_(communicator.rank()),
        events_(folder_, rank_),
        striker_(plan, events_, rank_),
        session_(plan.text("spec"), communicator, {.seed = static_cast<std::uint64_t>(plan.number("seed"))}) {
    for (const auto& layout : kBuckets) {
      session_.add_bucket(layout);
      std::size_t elements = 0;
      for (const auto& parameter : layout) elements += parameter.elements;
      training_.gradients.emplace_back(elements);
      elements_ += elements;
    }
    training_.applied.resize(elements_);
  }

  void run() {
    events_.tell("ready", ", \"pid\": " + std::to_string(getpid()));
    events_.await_ack();
    const long start = plan_.number("start");
    if (start > 0) load(start);
    last_ = state();
    striker_.at("start");
    session_.start();
    for (long step = start; step < plan_.number("steps"); ++step) train(step);
    finish();
  }

  /// After an error: the state must be that of the last whole step, or be refused.
  void inspect() {
    striker_.tell_flip();
    std::string more;
    try {
      const std::string now = state();
      more = ", \"step\": " + std::to_string(session_.step()) +
             ", \"whole\": " + (now == last_ ? "true" : "false");
      if (now == last_ && !last_.empty()) write_state();
    } catch (const std::exception& error) {
      more = ", \"refused\": true";
    }
    events_.tell("inspected", more);
  }

  const Events& events() const { return events_; }

 private:
  void train(long step) {
    std::uint64_t element = 0;
    bool finite = true;
    for (BucketId bucket = 0; bucket < kBuckets.size(); ++bucket) {
      auto& gradient = training_.gradients[bucket];
      for (auto& value : gradient) {
        value = gradient_at(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(rank_), element++);
      }
      if (striker_.overflows(step, bucket)) gradient[0] = std::numeric_limits<float>::quiet_NaN();
      striker_.at("step", step, bucket);
      finite = session_.synchronize(bucket, gradient).finite && finite;
    }
    session_.next_step();
    element = 0;
    if (!finite) left_out_.insert(step);
    for (const auto& gradient : training_.gradients) {
      if (!finite) break;
      for (const float value : gradient) training_.applied[element++] += value;
    }
    last_ = state();
    if ((step + 1) % plan_.number("every") == 0 || step + 1 == plan_.number("steps")) {
      striker_.at("save", step);
      write_state();
    }
  }

  /// What a checkpoint holds, as the bytes of its file.
  std::string state() const {
    StateWriter writer;
    session_.save(writer);
    writer.put("applied", std::string_view(reinterpret_cast<const char*>(training_.applied.data()),
                                           training_.applied.size() * sizeof(double)));
    std::ostringstream stream;
    writer.write(stream);
    return stream.str();
  }

  fs::path state_path(std::uint64_t step) const {
    return fs::path(folder_) / ("state-" + std::to_string(rank_) + "-" + std::to_string(step));
  }

  void write_state() {
    const fs::path place = state_path(session_.step());
    const fs::path partial = place.string() + ".partial";
    std::ofstream stream(partial, std::ios::binary);
    stream.write(last_.data(), static_cast<std::streamsize>(last_.size()));
    stream.close();
    if (!stream) throw std::runtime_error(partial.string() + " cannot be written: is the disk full?");
    fs::rename(partial, place);
  }

  void load(long step) {
    striker_.at("load");
    std::ifstream stream(state_path(static_cast<std::uint64_t>(step)), std::ios::binary);
    const StateReader reader(stream);
    session_.load(reader);
    const std::string bytes = reader.get_text("applied");
    if (bytes.size() != elements_ * sizeof(double)) throw std::runtime_error("a state of another model");
    std::memcpy(training_.applied.data(), bytes.data(), bytes.size());
    if (session_.step() != static_cast<std::uint64_t>(step))
      throw std::runtime_error("a state of another step");
  }

  void finish() {
    std::vector<double> given(elements_);
    for (long step = 0; step < plan_.number("steps"); ++step) {
      if (left_out_.count(step) != 0) continue;
      for (std::uint64_t i = 0; i < elements_; ++i) {
        given[i] += gradient_at(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(rank_), i);
      }
    }
    std::vector<double> residuals;
    for (BucketId bucket = 0; bucket < kBuckets.size(); ++bucket) {
      const Span<const float> residual = session_.residual(bucket);
      for (std::size_t i = 0; i < training_.gradients[bucket].size(); ++i) {
        residuals.push_back(residual.empty() ? 0.0 : residual[i]);
      }
    }
    std::ofstream stream(fs::path(folder_) / ("final-" + std::to_string(rank_)), std::ios::binary);
    for (const auto* values : {&given, &training_.applied, &residuals}) {
      stream.write(reinterpret_cast<const char*>(values->data()),
                   static_cast<std::streamsize>(elements_ * sizeof(double)));
    }
    stream.close();
    striker_.tell_flip();
    events_.tell("final");
    striker_.at("close");
  }

  const Plan& plan_;
  const std::string folder_;
  const int rank_;
  Events events_;
  Striker striker_;
  Session session_;
  Training training_;
  std::size_t elements_ = 0;
  std::set<long> left_out_;  // steps that were not finite
  std::string last_;         // the state at the end of the last whole step
};

/// Runs it where `open` gives a communicator, with a deadline of seconds, to the function that it is given.
template <class Open>
int run_rank(int argc, char** argv, Open open) {
  try {
    const Plan plan(argc, argv);
    open(plan, [&plan](Communicator& communicator) {
      auto rank = std::make_unique<Rank>(plan, communicator);
      try {
        rank->run();
      } catch (const std::exception& error) {
        std::cerr << "rank " + std::to_string(communicator.rank()) + ": " + error.what() + "\n" << std::flush;
        rank->inspect();
        _exit(1);  // as the command line does: destructors of a broken engine may wait for the dead rank
      }
    });
  } catch (const std::exception& error) {
    std::cerr << std::string("session_rank: ") + error.what() + "\n" << std::flush;
    _exit(1);
  }
  return 0;
}

}  // namespace thinwire::campaign

// thinwire bench: one bucket of synthetic gradient through each system, timed, with bytes beside their
// formula.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands.h"
#include "apps/engine.h"
#include "apps/link.h"
#include "apps/synthetic.h"
#include "core/stopwatch.h"
#include "thinwire/session.h"

namespace thinwire::apps {
namespace {

struct BenchOptions {
  std::string sync = "dense,marsit";
  std::uint64_t elements = 1'000'000;
  SyntheticGradient gradient;
  EngineOptions engine;
  int steps = 10;
  int threads = 1;
  std::string link;
  std::string json;
};

/// What one rank measured; travels between ranks as it lies.
struct RankResult {
  double wire_bytes_sent = 0;
  double wire_bytes_received = 0;
  double frame_header_bytes = 0;
  double formula_bytes = 0;
  double messages = 0;
  double seconds_compress = 0;
  double seconds_communicate = 0;
  double seconds_decompress = 0;
  double seconds_wait = 0;
  double residual_norm = -1;
  double residual_deviation = -1;
  std::uint64_t hash = 0;
};

std::uint64_t hash_of(Span<const float> values) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : as_bytes(values))
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}

double norm(Span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

double density(Span<const float> values) {
  const auto zeros = std::count(values.begin(), values.end(), 0.0f);
  return values.empty() ? 0 : 1 - static_cast<double>(zeros) / static_cast<double>(values.size());
}

template <class T>
std::vector<T> gather(Communicator& communicator, Span<const T> mine) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(as_bytes(mine), as_writable_bytes(Span<T>(all)));
  return all;
}

/// One system on one rank: warm-up step 0, then the measured ones, then the checks.
class Run {
 public:
  Run(const BenchOptions& options, const std::string& spec, Communicator& communicator)
      : options_(options),
        communicator_(communicator),
        spec_(spec),
        session_(
            spec, communicator,
            {.seed = options.gradient.seed,
             .threads = options.threads,
             .configuration = fmt::format("bench elements={} density={} zipf={} row_width={} steps={}",
                                          options.elements, options.gradient.density, options.gradient.zipf,
                                          options.gradient.row_width, options.steps)}),
        input_(options.elements),
        gradient_(options.elements) {
    session_.add_bucket({{"gradient", options.elements}});
    fill_synthetic(options.gradient, communicator.rank(), input_);
  }

  nlohmann::ordered_json run() {
    session_.start();
    step();  // step 0: buffers are allocated, step sizes agreed
    std::vector<double> seconds;
    RankResult mine;
    for (int i = 0; i < options_.steps; ++i) {
      if (i + 1 == options_.steps) remember_input();
      seconds.push_back(step(&mine));
    }
    const double count = options_.steps;
    for (double* sum : {&mine.wire_bytes_sent, &mine.wire_bytes_received, &mine.frame_header_bytes,
                        &mine.formula_bytes, &mine.messages, &mine.seconds_compress,
                        &mine.seconds_communicate, &mine.seconds_decompress, &mine.seconds_wait}) {
      *sum /= count;
    }
    mine.hash = hash_of(gradient_);
    return result(mine, seconds);
  }

 private:
  double step(RankResult* into = nullptr) {
    std::copy(input_.begin(), input_.end(), gradient_.begin());
    communicator_.barrier();
    const std::uint64_t formula = session_.payload_bytes(0);
    const StepReport& report = session_.synchronize(0, gradient_);
    session_.next_step();
    if (into != nullptr) {
      into->wire_bytes_sent += static_cast<double>(report.wire.sent_bytes);
      into->wire_bytes_received += static_cast<double>(report.wire.received_bytes);
      into->frame_header_bytes += static_cast<double>(report.frame_header_bytes);
      into->messages += static_cast<double>(report.wire.sent_messages);
      into->formula_bytes += static_cast<double>(formula);
      into->seconds_compress += report.seconds_compress;
      into->seconds_communicate += report.seconds_communicate;
      into->seconds_decompress += report.seconds_decompress;
      into->seconds_wait += report.seconds_wait;
      into->residual_norm = report.residual_norm;
      into->residual_deviation = report.residual_deviation;
    }
    return report.seconds_total;
  }

  /// wanted_ = gradient + residual of the step to come.
  void remember_input() {
    wanted_ = input_;
    const auto residual = session_.residual(0);
    for (std::size_t i = 0; i < residual.size(); ++i) wanted_[i] += residual[i];
  }

  nlohmann::ordered_json result(const RankResult& mine, const std::vector<double>& seconds) {
    const auto ranks = gather(communicator_, Span<const RankResult>(&mine, 1));
    const auto all_seconds = gather(communicator_, Span<const double>(seconds));
    const auto world = static_cast<std::size_t>(communicator_.size());

    // A step is as slow as its slowest rank.
    std::vector<double> slowest(seconds.size());
    for (std::size_t i = 0; i < all_seconds.size(); ++i) {
      slowest[i % seconds.size()] = std::max(slowest[i % seconds.size()], all_seconds[i]);
    }
    std::sort(slowest.begin(), slowest.end());
    auto most = [&](double RankResult::*field) {
      double value = 0;
      for (const auto& rank : ranks) value = std::max(value, rank.*field);
      return value;
    };
    auto mean = [&](double RankResult::*field) {
      double value = 0;
      for (const auto& rank : ranks) value += rank.*field;
      return value / static_cast<double>(world);
    };
    auto or_null = [](double value) {
      return value < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
    };

    nlohmann::ordered_json json;
    json["system"] = parse_spec(spec_).back().name;
    json["spec"] = spec_;
    json["spec_with_defaults"] = session_.spec();
    json["engine"] = communicator_.engine();
    json["workers"] = communicator_.size();
    json["elements"] = options_.elements;
    json["row_width"] = options_.gradient.row_width;
    json["density_in"] = density(input_);
    json["density_out"] = density(gradient_);
    json["steps"] = options_.steps;
    json["wire_bytes_sent_max"] = most(&RankResult::wire_bytes_sent);
    json["wire_bytes_sent_mean"] = mean(&RankResult::wire_bytes_sent);
    json["wire_bytes_received_max"] = most(&RankResult::wire_bytes_received);
    json["wire_bytes_formula"] = most(&RankResult::formula_bytes);
    json["frame_header_bytes_max"] = most(&RankResult::frame_header_bytes);
    json["messages_max"] = most(&RankResult::messages);
    json["seconds_median"] = slowest[slowest.size() / 2];
    json["seconds_min"] = slowest.front();
    json["seconds_compress"] = most(&RankResult::seconds_compress);
    json["seconds_communicate"] = most(&RankResult::seconds_communicate);
    json["seconds_decompress"] = most(&RankResult::seconds_decompress);
    json["seconds_wait"] = most(&RankResult::seconds_wait);
    // Share of a step in which a rank was computing while its messages travelled: what the ring hides.
    json["overlap"] = most(&RankResult::seconds_compress) > 0
                          ? nlohmann::ordered_json(1 - mean(&RankResult::seconds_wait) /
                                                           (mean(&RankResult::seconds_communicate) +
                                                            mean(&RankResult::seconds_compress)))
                          : nlohmann::ordered_json();
    json["modelled_seconds"] = nullptr;
    if (!options_.link.empty()) {
      const Link link = parse_link(options_.link);
      json["modelled_seconds"] =
          most(&RankResult::messages) * link.latency_seconds +
          std::max(most(&RankResult::wire_bytes_sent), most(&RankResult::wire_bytes_received)) /
              link.bytes_per_second;
    }
    check(json);
    json["residual_norm"] = or_null(mean(&RankResult::residual_norm));
    json["residual_deviation"] = or_null(mean(&RankResult::residual_deviation));
    json["ranks_agree"] = std::all_of(ranks.begin(), ranks.end(),
                                      [&](const RankResult& rank) { return rank.hash == ranks[0].hash; });
    json["imbalance_push"] = nullptr;
    json["imbalance_pull"] = nullptr;
    json["seed"] = options_.gradient.seed;
    return json;
  }

  /// Both errors of the last step, from sums over ranks that the engine takes densely.
  void check(nlohmann::ordered_json& json) {
    const auto world = static_cast<float>(communicator_.size());
    std::vector<float> exact = wanted_;
    communicator_.all_reduce_sum(exact);
    std::vector<float> kept = wanted_;
    const auto residual = session_.residual(0);
    for (std::size_t i = 0; i < residual.size(); ++i) kept[i] -= residual[i];
    communicator_.all_reduce_sum(kept);
    const double size = norm(exact);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact[i] = gradient_[i] - exact[i] / world;
      kept[i] -= world * gradient_[i];
    }
    json["relative_error"] = size > 0 ? norm(exact) / (size / static_cast<double>(world)) : 0;
    // Without a residual nothing is conserved unless the system is lossless.
    const bool conserves = session_.pipeline(0).conserves;
    json["conservation_error"] =
        conserves ? nlohmann::ordered_json(size > 0 ? norm(kept) / size : 0) : nlohmann::ordered_json();
  }

  const BenchOptions& options_;
  Communicator& communicator_;
  std::string spec_;
  Session session_;
  std::vector<float> input_;
  std::vector<float> gradient_;
  std::vector<float> wanted_;
};

void print_table(const nlohmann::ordered_json& results) {
  fmt::print("{:<28} {:>12} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}\n", "system", "bytes sent", "formula",
             "median ms", "compress", "wait", "apply", "rel.err", "agree");
  for (const auto& r : results) {
    auto ms = [&](const char* key) { return r[key].get<double>() * 1e3; };
    std::string spec = r["spec"];
    if (spec.size() > 28) spec = spec.substr(0, 25) + "...";
    fmt::print("{:<28} {:>12.0f} {:>12.0f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3g} {:>6}\n", spec,
               r["wire_bytes_sent_max"].get<double>(), r["wire_bytes_formula"].get<double>(),
               ms("seconds_median"), ms("seconds_compress"), ms("seconds_wait"), ms("seconds_decompress"),
               r["relative_error"].get<double>(), r["ranks_agree"].get<bool>() ? "yes" : "NO");
  }
}

/// Opens for appending: what an earlier run left there stays until there is something to put in its place.
void require_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app))
    throw std::runtime_error("cannot write " + path + ": does its folder exist?");
}

void write_results(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << '\n';
  file.flush();
  if (!file) throw std::runtime_error("writing " + path + " failed: is the disk full?");
}

void run_bench(const BenchOptions& options) {
  const auto specs = split_specs(options.sync);
  for (const auto& spec : specs) builtin_registry().make(spec);  // all of them, before any runs
  if (!options.link.empty()) parse_link(options.link);
  if (!options.json.empty() && options.json != "-") require_writable(options.json);
  run_on_engine(options.engine, [&](Communicator& communicator) {
    auto results = nlohmann::ordered_json::array();
    for (const auto& spec : specs) {
      auto one = Run(options, spec, communicator).run();
      if (communicator.rank() == 0) results.push_back(std::move(one));
    }
    if (communicator.rank() != 0) return;
    if (options.json == "-") {
      fmt::print("{}\n", results.dump(2));
    } else {
      print_table(results);
      if (!options.json.empty()) write_results(options.json, results.dump(2));
    }
    for (const auto& result : results) {
      if (!result["ranks_agree"])
        throw std::runtime_error(result["spec"].get<std::string>() + ": ranks disagree on the mean");
    }
  });
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  auto* command = app.add_subcommand("bench", "Time systems on one bucket of synthetic gradient");
  command->add_option("--sync", options->sync, "Systems to run, separated by commas")->capture_default_str();
  command->add_option("--elements", options->elements, "Elements of the bucket")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{0xFFFFFFFF}))
      ->capture_default_str();
  command->add_option("--density", options->gradient.density, "Share of rows that are not zero")
      ->capture_default_str();
  command->add_option("--zipf", options->gradient.zipf, "Skew of the row indices")->capture_default_str();
  command->add_option("--row-width", options->gradient.row_width, "Elements of a row")->capture_default_str();
  command
      ->add_option("--workers", options->engine.workers,
                   "Number of ranks; under mpirun and torchrun's variables as many as were started")
      ->capture_default_str();
  command->add_option("--engine", options->engine.engine, "threads, mpi or gloo")->capture_default_str();
  command->add_option("--deadline", options->engine.deadline_seconds, "Seconds that a blocking call may take")
      ->capture_default_str();
  command->add_option("--steps", options->steps, "Measured steps, after one that is not")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads per rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--seed", options->gradient.seed, "Seed of gradients and systems")
      ->check(not_negative())
      ->capture_default_str();
  command->add_option("--link", options->link,
                      "Model this link, as 1Gbit:50us: messages * latency + bytes / rate");
  command->add_option("--json", options->json, "Write results to this file; - for standard output");
  command->callback([options] { run_bench(*options); });
}

}  // namespace thinwire::apps

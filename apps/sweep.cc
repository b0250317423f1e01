#include "apps/sweep.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

#include "apps/gradients/recorded.h"
#include "planner/link_text.h"
#include "thinwire/registry.h"

namespace thinwire::apps {
namespace {

using Json = nlohmann::ordered_json;

struct System {
  std::string spec;
  CodecModel codec;
};

/// One place in the sweep.
struct Point {
  std::unique_ptr<GradientSource> source;
  int workers = 1;
  Json description = Json::object();  ///< Keys that the measurement does not know.
};

bool is_dense(const std::string& spec) {
  const SpecPair pair = parse_spec_pair(spec);
  const auto parts = parse_spec(pair.dense);
  return pair.rows == pair.dense && parts.size() == 1 && parts[0].name == "dense";
}

/// The yardstick first when the list lacks it. A rate for all is not for dense, which has no codec.
std::vector<System> list_systems(const SweepOptions& options) {
  const auto specs = split_specs(options.sync);
  for (const auto& spec : specs) {
    builtin_registry().canonical(spec);  // refuses any before the first runs
    const SpecPair pair = parse_spec_pair(spec);
    for (const std::string& one : {pair.rows, pair.dense}) {
      if (!std::ranges::count(parse_spec(one), "auto", &SpecPart::name)) continue;
      throw std::invalid_argument(
          "--sync " + spec +
          ": auto chooses in tens of steps, and here a step is one of its trial; simulate its candidates, or "
          "let `thinwire plan` choose");
    }
  }
  const auto codecs = parse_codec(options.codec, specs.size());
  std::vector<System> systems;
  if (std::none_of(specs.begin(), specs.end(), is_dense)) {
    systems.push_back({"dense", {.measured = codecs[0].measured}});
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const bool for_all = codecs.size() == 1 && specs.size() > 1;
    const bool no_codec = for_all && is_dense(specs[i]) && !codecs[0].measured;
    systems.push_back({specs[i], no_codec ? CodecModel{} : codecs[for_all ? 0 : i]});
  }
  return systems;
}

std::vector<Point> list_points(const SweepOptions& options) {
  std::vector<Point> points;
  if (!options.gradient_files.empty()) {
    auto source = std::make_unique<RecordedSource>(options.gradient_files,
                                                   static_cast<std::size_t>(options.bucket_megabytes * 1e6));
    Point point;
    point.workers = source->workers();
    point.description["recorded_steps"] = source->steps();
    point.source = std::move(source);
    points.push_back(std::move(point));
    return points;
  }
  std::vector<std::optional<double>> gammas(options.gammas.begin(), options.gammas.end());
  if (gammas.empty()) gammas.emplace_back();
  for (const double density : options.densities) {
    for (const auto& gamma : gammas) {
      for (const int workers : options.workers) {
        SyntheticGradient shape = options.gradient;
        shape.density = density;
        shape.gamma = gamma;
        auto source = std::make_unique<SyntheticSource>(shape, workers);
        Point point;
        point.workers = workers;
        point.description["density_wanted"] = density;
        point.description["gamma_wanted"] = gamma ? Json(*gamma) : Json();
        point.description["zipf"] = source->skew().zipf();
        point.description["contiguous"] = shape.contiguous;
        point.source = std::move(source);
        points.push_back(std::move(point));
      }
    }
  }
  return points;
}

VirtualHosts hosts_of(const SweepOptions& options, const std::vector<Point>& points) {
  VirtualHosts hosts{.ranks_per_host = options.ranks_per_host};
  if (options.ranks_per_host < 1) {
    throw std::invalid_argument(
        fmt::format("--ranks-per-host {}: at least 1 is needed", hosts.ranks_per_host));
  }
  if ((options.ranks_per_host > 1) == options.inside.empty()) {
    throw std::invalid_argument(
        options.inside.empty()
            ? fmt::format("--ranks-per-host {}: give --inside RATE:LATENCY, the link "
                          "between ranks of one host",
                          options.ranks_per_host)
            : fmt::format("--inside {}: give --ranks-per-host as well, above 1", options.inside));
  }
  if (options.ranks_per_host > 1) hosts.inside = parse_link(options.inside);
  for (const Point& point : points) {
    if (point.workers % options.ranks_per_host == 0) continue;
    throw std::invalid_argument(
        fmt::format("--ranks-per-host {}: it must divide the {} workers, so that every "
                    "host has as many",
                    options.ranks_per_host, point.workers));
  }
  return hosts;
}

Json codec_json(const CodecModel& codec) {
  if (codec.measured) return "measured";
  return codec.elements_per_second > 0 ? Json(codec.elements_per_second) : Json("off");
}

}  // namespace

Json run_sweep(const SweepOptions& options, const std::function<void(const Json&)>& show) {
  for (const int workers : options.workers) {
    if (workers < 1) throw std::invalid_argument(fmt::format("workers = {}: at least 1 is needed", workers));
  }
  if (options.warm_up < 0 || options.steps < 1) {
    throw std::invalid_argument(fmt::format("{} steps after {} to warm up: at least 1 after 0 is needed",
                                            options.steps, options.warm_up));
  }
  VirtualLink link = parse_link(options.link);
  link.scale = options.scale;
  if (!(options.scale > 0 && options.scale <= 1e9)) {
    throw std::invalid_argument(fmt::format("scale {} must be above 0 and at most 1e9", options.scale));
  }
  const auto systems = list_systems(options);
  const auto points = list_points(options);
  const VirtualHosts hosts = hosts_of(options, points);

  auto results = Json::array();
  for (const auto& point : points) {
    auto here = Json::array();
    double dense_seconds = 0;
    for (const auto& system : systems) {
      const Simulation simulation = simulate(system.spec, *point.source,
                                             {.workers = point.workers,
                                              .link = link,
                                              .hosts = hosts,
                                              .codec = system.codec,
                                              .warm_up = options.warm_up,
                                              .steps = options.steps,
                                              .seed = options.gradient.seed,
                                              .errors = options.errors});
      auto json = to_json(simulation);
      json.update(point.description);
      json["link"] = options.link;
      json["ranks_per_host"] = options.ranks_per_host;
      json["inside"] = options.inside.empty() ? Json() : Json(options.inside);
      json["scale"] = options.scale;
      json["codec"] = codec_json(system.codec);
      if (dense_seconds == 0 && is_dense(system.spec)) {
        dense_seconds = *simulation.measurement.modelled_seconds;
      }
      here.push_back(std::move(json));
    }
    for (auto& json : here) {
      json["time_vs_dense"] =
          dense_seconds > 0 ? Json(json["modelled_seconds"].get<double>() / dense_seconds) : Json();
      show(json);
      results.push_back(std::move(json));
    }
  }
  return results;
}

}  // namespace thinwire::apps

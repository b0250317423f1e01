#include "thinwire/known_losses.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

#include "thinwire/registry.h"

namespace thinwire {
namespace {

/// Nats above dense's, to tenths: docs/why_systems_lose.md, and of momentum docs/loss.md.
/// 0: not measured, or less than 0.05.
struct Losses {
  double adam = 0;
  double momentum = 0;
  double adam_after_warm_up = 0;
};

Losses of_casq(const Options& options) {
  if (options.integer("bits", 1, 4) > 2) return {.adam = 0.1, .momentum = 0.1};
  if (options.text("topology") == "all_gather")
    return {.adam = 0.3, .momentum = 0.4, .adam_after_warm_up = 0.1};
  return {.adam = 0.7, .momentum = 0.7, .adam_after_warm_up = 0.1};
}

Losses of_top_k(const Options& options) {
  if (options.real("ratio", 0, 1) > 0.05) return {};
  if (options.real("ratio", 0, 1) > 0.01) return {.adam = 0.5, .adam_after_warm_up = 0.1};
  return {.adam = 0.7, .momentum = 0.2, .adam_after_warm_up = 0.1};
}

Losses of_sketched_sgd(const Options& options) {
  if (options.real("ratio", 0, 1) > 0.01) return {};
  return {.adam = 1.1, .momentum = 0.6, .adam_after_warm_up = 0.6};
}

Losses of_ef_signsgd(const Options&) {
  return {.adam = 1.1, .momentum = 0.9, .adam_after_warm_up = 0.4};
}

Losses of_marsit(const Options& options) {
  const std::int64_t full_every = options.integer("full_every", 0, 1'000'000'000);
  if (full_every > 0 && full_every < 8) return {};
  return {.adam = 0.4, .momentum = full_every > 0 && full_every < 100 ? 0 : 0.7, .adam_after_warm_up = 0.3};
}

struct Known {
  std::string_view system;
  Losses (*losses)(const Options&);
};

constexpr std::array<Known, 5> kKnown = {{{"casq", of_casq},
                                          {"top_k", of_top_k},
                                          {"sketched_sgd", of_sketched_sgd},
                                          {"ef_signsgd", of_ef_signsgd},
                                          {"marsit", of_marsit}}};

double lost(const Losses& losses, TrainedWith optimizer, bool warmed_up) {
  if (optimizer == TrainedWith::momentum) return warmed_up ? 0 : losses.momentum;
  return warmed_up ? losses.adam_after_warm_up : losses.adam;
}

std::string tenths(double nats) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.1f", nats);
  return text.data();
}

}  // namespace

std::string known_loss(std::string_view spec, TrainedWith optimizer) {
  bool warmed_up = false;
  for (const SpecPart& part : parse_spec(parse_spec_pair(spec).dense)) {
    const Options options(part, builtin_registry().find(part.name).options);
    if (part.name == "guard") return {};
    warmed_up = warmed_up || part.name == "warm_up";
    const auto* const found = std::ranges::find(kKnown, part.name, &Known::system);
    if (found == kKnown.end()) continue;
    const double nats = lost(found->losses(options), optimizer, warmed_up);
    if (nats == 0) return {};
    return part.name + " with " + (optimizer == TrainedWith::adam ? "Adam" : "momentum") +
           (warmed_up ? ", after a warm-up" : "") + ": a transformer's loss ended about " + tenths(nats) +
           " nats above dense's. power_sgd:rank=32:bits=8 and auto kept it (docs/why_systems_lose.md)";
  }
  return {};
}

}  // namespace thinwire

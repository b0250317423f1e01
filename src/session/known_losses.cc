#include "thinwire/known_losses.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "thinwire/registry.h"

namespace thinwire {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// Nats above dense's, to tenths: of Adam docs/why_systems_lose.md, of momentum docs/loss.md. 0: less than
/// 0.05, or not measured. What leaves out more than a measured form has that one's number.
struct Losses {
  double adam = 0;
  double momentum = 0;
  double adam_after_warm_up = 0;
  double adam_clipped_first = 0;  ///< Behind the stage clip, without a warm-up.
  bool needs_clipping = false;    ///< It loses because nothing is clipped.
};

Losses of_casq(const Options& options) {
  const std::int64_t bits = options.integer("bits", 1, 4);
  const bool gathers = options.text("topology") == "all_gather";
  if (options.text("downlink") != "codes" || bits == 3) return {};
  if (bits == 4) return gathers ? Losses{} : Losses{.adam = 0.1, .momentum = 0.1};
  if (gathers) return {.adam = 0.3, .momentum = 0.4, .adam_after_warm_up = 0.1};
  return {.adam = 0.7, .momentum = 0.7, .adam_after_warm_up = 0.1, .adam_clipped_first = 0.2};
}

/// Whether the share of elements that is sent is at most so large. A number of them says nothing of that.
bool sends_at_most(double share, const Options& options) {
  return options.text("k") == "0" && options.real("ratio", 0, 1) <= share;
}

Losses of_top_k(const Options& options) {
  const bool ramps = options.text("ramp_steps") != "0";
  if (sends_at_most(0.01, options)) {
    return {.adam = 0.7,
            .momentum = 0.2,
            .adam_after_warm_up = ramps ? 0.1 : 0,
            .adam_clipped_first = ramps ? 0 : 0.7};
  }
  if (sends_at_most(0.05, options)) {
    return {.adam = 0.5, .adam_after_warm_up = 0.1, .adam_clipped_first = 0.2};
  }
  return {};
}

Losses of_sketched_sgd(const Options& options) {
  if (!sends_at_most(0.01, options)) return {};
  return {.adam = 1.1, .momentum = 0.6, .adam_after_warm_up = 0.5, .adam_clipped_first = 1.1};
}

Losses of_ef_signsgd(const Options&) {
  return {.adam = 1.1, .momentum = 0.9, .adam_after_warm_up = 0.4};
}

Losses of_marsit(const Options& options) {
  const std::int64_t full_every = options.integer("full_every", 0, kMost);
  if (full_every < 2 || options.text("full_above") != "0") return {};
  if (full_every < 8) return {.adam = 0.3};
  return {.adam = 0.4, .momentum = full_every < 100 ? 0 : 0.7, .adam_after_warm_up = 0.3};
}

/// Of the measured matrices, most of 128 x 128 and 128 x 512, a rank of 9 is 7 %. In an entropy code rank 12
/// with a step of 0.5 lost more than 0.05, and rank 20 with one of 0.3 did not.
Losses of_power_sgd(const Options& options) {
  if (options.integer("rank", 1, kMost) > 9 && options.real("step", 0, 16) < 0.5) return {};
  return {.adam = 0.1, .adam_clipped_first = 0.1};
}

Losses of_acp_sgd(const Options& options) {
  return {.adam = options.integer("rank", 1, kMost) > 32 ? 0 : 0.1};
}

/// With the default `local` of 1 it lost less than 0.05.
Losses of_ecsq(const Options& options) {
  return {.adam = options.real("local", 0, 1) > 0.5 ? 0 : 0.1};
}

/// Steps between 0.7 and 2 were not measured.
Losses of_klt(const Options& options) {
  return {.adam = options.real("step", 0.05, 16) < 2 ? 0 : 0.1};
}

/// Where nothing is clipped. Of zero_one_adam the middle one of three seeds: with one it ended 58 nats above.
Losses of_one_bit_adam(const Options&) {
  return {.adam = 0.4, .needs_clipping = true};
}

Losses of_zero_one_adam(const Options&) {
  return {.adam = 1.0, .adam_after_warm_up = 0.4, .needs_clipping = true};
}

/// Steps of a warm-up from which on it is like the measured ones.
constexpr std::int64_t kWarmUp = 30;

struct Known {
  std::string_view system;
  Losses (*losses)(const Options&);
};

constexpr std::array<Known, 11> kKnown = {{{"casq", of_casq},
                                           {"top_k", of_top_k},
                                           {"power_sgd", of_power_sgd},
                                           {"acp_sgd", of_acp_sgd},
                                           {"ecsq", of_ecsq},
                                           {"klt", of_klt},
                                           {"one_bit_adam", of_one_bit_adam},
                                           {"zero_one_adam", of_zero_one_adam},
                                           {"sketched_sgd", of_sketched_sgd},
                                           {"ef_signsgd", of_ef_signsgd},
                                           {"marsit", of_marsit}}};

/// What stands in front of a system.
struct Before {
  bool warm_up = false;
  bool clip = false;
  bool decay = false;  ///< Measured with Adam and top_k alone, which lost no less so.

  double lost(const Losses& losses, TrainedWith optimizer) const {
    if (optimizer == TrainedWith::momentum) return warm_up || clip ? 0 : losses.momentum;
    // What is clipped first loses no less then, as far as it was measured; of zero_one_adam it is clipping.
    if (warm_up) return clip && losses.needs_clipping ? 0 : losses.adam_after_warm_up;
    return clip ? losses.adam_clipped_first : losses.adam;
  }
  std::string text() const {
    return std::string(warm_up ? ", after a warm-up" : "") +
           (clip ? ", each rank's gradient clipped first" : "");
  }
};

std::string tenths(double nats) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.1f", nats);
  return text.data();
}

}  // namespace

std::string unmeasured_loss(std::string_view spec, std::string_view optimizer) {
  const std::string dense = parse_spec_pair(spec).dense;
  const auto keeps = [](const SpecPart& part) {
    const SystemInfo& info = builtin_registry().find(part.name);
    const Options options(part, info.options);
    if (info.stage) return !info.sparsifies && !info.forgets;
    if (part.name == "auto") return options.flag("lossless");
    return info.lossless || part.name == "half";
  };
  if (std::ranges::all_of(parse_spec(dense), keeps)) return {};
  return "spec '" + std::string(spec) + "': no loss was compared with dense's under " +
         std::string(optimizer) +
         ". Compare it once, or give auto:lossless or half, which change gradients by rounding at most "
         "(docs/loss.md)";
}

std::string known_loss(std::string_view spec, TrainedWith optimizer) {
  const bool adam = optimizer == TrainedWith::adam;
  Before before;
  for (const SpecPart& part : parse_spec(parse_spec_pair(spec).dense)) {
    const SystemInfo& info = builtin_registry().find(part.name);
    const Options options(part, info.options);
    if (part.name == "warm_up") {
      before.warm_up = before.warm_up || options.integer("steps", 0, kMost) >= kWarmUp;
      continue;
    }
    if (part.name == "clip") {
      before.clip = true;
      continue;
    }
    if (part.name == "decay") {
      before.decay = true;
      continue;
    }
    const auto* const found = std::ranges::find(kKnown, part.name, &Known::system);
    if (found == kKnown.end()) return {};  // also another stage: what stands behind it was not measured so
    if (before.decay && (part.name != "top_k" || !adam)) return {};
    const Losses losses = found->losses(options);
    const double nats = before.lost(losses, optimizer);
    if (nats == 0) return {};
    const bool by_clipping = losses.needs_clipping && !before.clip;
    return part.name + " with " + (adam ? "Adam" : "momentum") + before.text() +
           ": a transformer's loss ended about " + tenths(nats) + " nats above dense's after 500 steps. " +
           (by_clipping ? "Its mean is not to be clipped: the stage clip in front, as in clip:norm=1+" +
                              part.name + ", clips before it. "
                        : "") +
           "On that text power_sgd:rank=32:bits=8 and auto kept dense's "
           "(docs/" +
           (adam ? "why_systems_lose.md" : "loss.md") + ")";
  }
  return {};
}

}  // namespace thinwire

#include "thinwire/registry.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/closest.h"

namespace thinwire {
namespace {

const char* const kFeedback = "feedback";

std::string with_all_options(const SpecPart& part, const SystemInfo& info) {
  const Options options(part, info.options);
  std::string text = info.name;
  for (const auto& option : info.options) text += ":" + option.name + "=" + options.text(option.name);
  return text;
}

template <class Wanted>
std::string known_systems(const std::vector<SystemInfo>& systems, Wanted wanted) {
  std::string names;
  for (const auto& info : systems) {
    if (wanted(info)) names += (names.empty() ? "" : ", ") + info.name;
  }
  return names;
}

bool corrects_momentum(const SpecPart& part, const SystemInfo& info) {
  if (!info.corrects_momentum || info.momentum_option.empty()) return info.corrects_momentum;
  return Options(part, info.options).real(info.momentum_option, 0, 1) != 0;
}

void refuse_second_momentum(const SystemInfo* first, const SystemInfo& second) {
  if (first == nullptr) return;
  throw std::invalid_argument(
      second.name + (second.momentum_option.empty() ? "" : ":" + second.momentum_option + "=...") +
      " behind " + first->name + ": the second would correct the first's correction; keep one");
}

/// part: behind the stage that compares, or what it takes in place of that.
void refuse_comparison(const SystemInfo& stage, const SpecPart& part, const SystemInfo& info) {
  const Options options(part, info.options);
  std::string instead;
  if (corrects_momentum(part, info)) {
    instead = info.stage                     ? "put " + stage.name + " behind " + info.name
              : info.momentum_option.empty() ? "take another system"
                                             : "set its " + info.momentum_option + "=0";
  } else if (info.incomparable) {
    instead = info.incomparable(options);
  }
  if (instead.empty()) return;
  throw std::invalid_argument(stage.name + " with " + info.name + " would compare what is not alike: " +
                              instead + ", or leave out " + stage.name);
}

void refuse_behind(const SystemInfo& front, const SystemInfo& stage) {
  if (stage.clips) {
    throw std::invalid_argument(stage.name + " behind " + front.name +
                                " would not clip all of the gradient in all steps; put " + stage.name +
                                " in front");
  }
  if (!stage.compares || !front.sparsifies) return;
  throw std::invalid_argument(stage.name + " behind " + front.name +
                              " would not meet what that leaves out; put " + stage.name + " in front");
}

/// Why no option of `stage` can name this system; empty: one can.
bool rate_inside(const SpecPart& part, const SystemInfo& info) {
  return info.rate_inside && info.rate_inside(Options(part, info.options));
}

std::string why_no_other(const SystemInfo& stage, const SpecPart& part, const SystemInfo& info) {
  if (info.stage) return "is a stage";
  if (!info.state.empty()) return "keeps a state of its own";
  if (corrects_momentum(part, info)) return "has a momentum of its own, which the other steps would not see";
  const Options options(part, info.options);
  if (stage.compares && info.incomparable && !info.incomparable(options).empty())
    return "delivers what cannot be compared with the exact mean";
  if (rate_inside(part, info))
    return "keeps products of gradients and the learning rate, which other steps would take for gradients";
  return {};
}

/// What a stage's option names, which has '/' in place of ':'.
SpecPart other_of(const SystemInfo& stage, const Options& options) {
  std::string text = options.text(stage.other_option);
  std::replace(text.begin(), text.end(), '/', ':');
  return parse_spec(text).front();
}

/// A state file could not tell them apart.
void refuse_same_state(const SystemInfo& first, const SystemInfo& second) {
  for (const StateKind& kind : first.state) {
    const bool both = std::ranges::count(second.state, kind.name, &StateKind::name) != 0;
    if (!both) continue;
    throw std::invalid_argument(second.name + " behind " + first.name + ": both keep '" +
                                std::string(kind.name) + "'; keep one of them");
  }
}

bool delivers_signs(const SpecPart& part, const SystemInfo& info) {
  return info.delivers_signs && !(info.bears_momentum && info.bears_momentum(Options(part, info.options)));
}

/// A learning rate that fits signs is far too small for a mean.
void refuse_means_beside_signs(const std::vector<const SystemInfo*>& infos, const SpecPart& last) {
  if (!delivers_signs(last, *infos.back())) return;
  const auto around = std::ranges::find_if(infos, &SystemInfo::goes_around);
  if (around == infos.end()) return;
  throw std::invalid_argument(
      (*around)->name + " in front of " + last.name +
      " would deliver means beside signs, and one learning rate does not fit both; set " + last.name +
      ":sign=off, or leave out " + (*around)->name);
}

/// What another system leaves out in its steps is taken up by those of the last one.
void refuse_other_units(const std::vector<SpecPart>& parts, const std::vector<const SystemInfo*>& infos,
                        const std::vector<SystemInfo>& known) {
  if (!rate_inside(parts.back(), *infos.back())) return;
  for (std::size_t i = 0; i + 1 < infos.size(); ++i) {
    if (infos[i]->other_option.empty()) continue;
    const std::string other = other_of(*infos[i], Options(parts[i], infos[i]->options)).name;
    const auto found = std::ranges::find(known, other, &SystemInfo::name);
    if (found == known.end() || found->lossless) continue;
    throw std::invalid_argument(infos[i]->name + ": what " + infos[i]->other_option + "=" + other +
                                " leaves out are gradients, and " + parts.back().name +
                                " would take them for products of gradients and the learning rate; set " +
                                parts.back().name +
                                "'s lr_after=on (of marsit another eta_s than theorem), or take " +
                                infos[i]->other_option + "=dense");
  }
}

void refuse_meaningless(const std::vector<SpecPart>& parts, const std::vector<const SystemInfo*>& infos,
                        const std::vector<SystemInfo>& known) {
  const SystemInfo& last = *infos.back();
  if (last.stage) {
    throw std::invalid_argument(last.name + " is a stage: put a system behind it, as in '" + last.name +
                                "+SYSTEM'");
  }
  const SystemInfo* momentum = nullptr;
  const SystemInfo* sparsifier = nullptr;
  for (std::size_t i = 0; i + 1 < infos.size(); ++i) {
    const SystemInfo& stage = *infos[i];
    if (!stage.stage) {
      throw std::invalid_argument(stage.name + " is a system, not a stage: nothing can follow it, but '" +
                                  infos[i + 1]->name + "' does");
    }
    if (corrects_momentum(parts[i], stage)) {
      refuse_second_momentum(momentum, stage);
      if (sparsifier != nullptr) {
        throw std::invalid_argument(stage.name + " behind " + sparsifier->name +
                                    " would build its velocity from what is left of the gradient; put " +
                                    stage.name + " in front");
      }
      momentum = &stage;
    }
    if (stage.forgets && sparsifier != nullptr) {
      throw std::invalid_argument(stage.name + " behind " + sparsifier->name +
                                  " would meet only what that selects; put " + stage.name + " in front");
    }
    if (stage.sparsifies) {
      if (sparsifier != nullptr) {
        throw std::invalid_argument(stage.name + " behind " + sparsifier->name +
                                    ": the gradient is sparse already; keep one");
      }
      sparsifier = &stage;
    }
  }
  for (std::size_t i = 0; i < infos.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      refuse_same_state(*infos[j], *infos[i]);
      if (infos[j]->compares) refuse_comparison(*infos[j], parts[i], *infos[i]);
      refuse_behind(*infos[j], *infos[i]);
    }
  }
  if (sparsifier != nullptr && !last.takes_rows) {
    throw std::invalid_argument(
        sparsifier->name + " in front of " + last.name + " saves nothing: " + last.name +
        " sends zeros like other values; behind " + sparsifier->name + " go " +
        known_systems(known, [](const SystemInfo& info) { return info.takes_rows && !info.stage; }));
  }
  if (corrects_momentum(parts.back(), last)) refuse_second_momentum(momentum, last);
  refuse_means_beside_signs(infos, parts.back());
  refuse_other_units(parts, infos, known);
  const bool delivers_all = std::ranges::all_of(infos, &SystemInfo::delivers_all);
  if (momentum != nullptr && delivers_all) {
    throw std::invalid_argument(
        momentum->name + " around " + last.name + " has no effect: " + last.name +
        " delivers every element at every step, so the velocity would be cleared each "
        "time; leave the momentum to the optimizer");
  }
}

/// Whether what a pipeline delivers and what it keeps add up to what came in.
bool conserves(const std::vector<SpecPart>& parts, const std::vector<const SystemInfo*>& infos,
               const Pipeline& pipeline) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    // With momentum, more is delivered than comes in.
    if (infos[i]->forgets || corrects_momentum(parts[i], *infos[i])) return false;
  }
  const SystemInfo& last = *infos.back();
  const bool last_keeps = Options(parts.back(), last.options).flag(kFeedback);
  return (pipeline.feedback && last_keeps) || (last.lossless && (pipeline.feedback || pipeline.lossless));
}

}  // namespace

void Registry::add(SystemInfo info) {
  for (const auto& known : systems_) {
    if (known.name == info.name)
      throw std::invalid_argument("a system called '" + info.name + "' exists already");
  }
  for (const StateKind& kind : info.state) {
    const StateKind* known = find_kind(kind.name);
    if (known != nullptr && *known != kind) {
      throw std::invalid_argument(info.name + " declares state '" + std::string(kind.name) +
                                  "' otherwise than it is declared already: take another name");
    }
  }
  if (!info.stage || info.sparsifies) {
    info.options.push_back({kFeedback, info.feedback_default ? "on" : "off",
                            "keep what was not delivered and add it to the next gradient"});
  }
  systems_.push_back(std::move(info));
}

const StateKind* Registry::find_kind(std::string_view name) const {
  if (name == kResidual.name) return &kResidual;
  for (const auto& info : systems_) {
    for (const StateKind& kind : info.state) {
      if (kind.name == name) return &kind;
    }
  }
  return nullptr;
}

StateKind Registry::state_kind(const StateReader& state, std::string_view kind) const {
  if (const auto declared = state.declaration(kind)) return *declared;
  const StateKind* known = find_kind(kind);
  return known != nullptr ? *known : StateKind{.name = kind};
}

namespace {

/// The spec of what goes by such a name in other libraries and papers, whatever its capitals and joints;
/// empty for any other name.
std::string spec_known_elsewhere_as(std::string_view name) {
  static constexpr std::pair<std::string_view, const char*> kSpecs[] = {
      {"none", "dense"},
      {"off", "dense"},
      {"allreduce", "dense"},
      {"ddp", "dense"},
      {"fp32", "dense"},
      {"float32", "dense"},
      {"fp16", "half"},
      {"float16", "half"},
      {"fp16compress", "half"},
      {"bf16", "half:format=bf16"},
      {"bfloat16", "half:format=bf16"},
      {"bf16compress", "half:format=bf16"},
      {"fp8", "blocks:bits=8"},
      {"int8", "blocks:bits=8"},
      {"int4", "blocks:bits=4"},
      {"powersgd", "power_sgd"},
      {"topk", "top_k:ratio=0.01+zen"},
      {"onebit", "one_bit_adam"},
      {"1bit", "one_bit_adam"},
      {"1bitadam", "one_bit_adam"},
      {"01adam", "zero_one_adam"},
      {"0/1adam", "zero_one_adam"},
  };
  std::string plain;
  for (const char c : name) {
    if (c != '_' && c != '-') plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  for (const auto& [known, spec] : kSpecs) {
    if (plain == known) return spec;
  }
  return "";
}

}  // namespace

const SystemInfo& Registry::find(std::string_view name) const {
  for (const auto& info : systems_) {
    if (info.name == name) return info;
  }
  std::vector<std::string> names;
  for (const auto& info : systems_) names.push_back(info.name);
  const std::string meant = spec_known_elsewhere_as(name);
  std::string message = "no system is called '" + std::string(name) + "'";
  message += meant.empty() ? did_you_mean(name, names) : " (did you mean '" + meant + "'?)";
  if (name.find_first_of("= ") != std::string_view::npos)
    message += "; write NAME:OPTION=VALUE without blanks";
  message += "; known:";
  for (const auto& known : names) message += " " + known;
  throw std::invalid_argument(message);
}

/// The system that an option of `stage` names.
std::unique_ptr<Synchronizer> Registry::make_other(const SystemInfo& stage, const SpecPart& part) const {
  const SystemInfo& info = find(part.name);
  if (stage.compares) refuse_comparison(stage, part, info);
  const std::string reason = why_no_other(stage, part, info);
  if (!reason.empty()) {
    const auto fits = [&](const SystemInfo& one) {
      return why_no_other(stage, {.name = one.name, .options = {}}, one).empty();
    };
    throw std::invalid_argument(stage.name + ": " + stage.other_option + "=" + info.name + " " + reason +
                                "; give one of " + known_systems(systems_, fits));
  }
  return info.make(Options(part, info.options), Inner{});
}

Pipeline Registry::make(std::string_view spec) const {
  std::vector<SpecPart> parts = parse_spec(spec);
  std::vector<const SystemInfo*> infos;
  for (const auto& part : parts) infos.push_back(&find(part.name));
  if (infos.back()->stage && !infos.back()->alone.empty()) {
    parts.push_back(parse_spec(infos.back()->alone).front());
    infos.push_back(&find(parts.back().name));
  }
  refuse_meaningless(parts, infos, systems_);
  Pipeline pipeline;
  pipeline.undoes_steps = std::ranges::all_of(
      infos, [](const SystemInfo* info) { return info->undoes_steps || info->state.empty(); });
  pipeline.turns_residual = std::ranges::all_of(infos, &SystemInfo::turns_residual);
  pipeline.reduce_scatters = std::ranges::all_of(infos, &SystemInfo::reduce_scatters);
  Inner made;
  for (std::size_t i = parts.size(); i-- > 0;) {
    const SystemInfo& info = *infos[i];
    const Options options(parts[i], info.options);
    // A stage that keeps no residual of its own hands its inner system's through.
    const bool feedback = !info.stage || info.sparsifies ? options.flag(kFeedback) : made.feedback;
    if (!info.other_option.empty()) {
      const SpecPart other = other_of(info, options);
      made.other = make_other(info, other);
      pipeline.turns_residual = pipeline.turns_residual && find(other.name).turns_residual;
    }
    for (const std::string& member : info.members ? info.members(options) : std::vector<std::string>()) {
      made.members.push_back(make(member));
    }
    for (const Pipeline& member : made.members) {
      pipeline.undoes_steps = pipeline.undoes_steps && member.undoes_steps;
      pipeline.has_state = pipeline.has_state || member.has_state;
      pipeline.turns_residual = pipeline.turns_residual && member.turns_residual;
    }
    std::unique_ptr<Synchronizer> outer = info.make(options, std::exchange(made, Inner{}));
    made = {std::move(outer), feedback};
    pipeline.spec = with_all_options(parts[i], info) + (pipeline.spec.empty() ? "" : "+" + pipeline.spec);
  }
  pipeline.synchronizer = std::move(made.synchronizer);
  pipeline.feedback = made.feedback;
  pipeline.lossless = std::ranges::none_of(infos, [](const SystemInfo* info) {
    return info->stage ? info->sparsifies || info->forgets : !info->lossless;
  });
  pipeline.has_state =
      pipeline.has_state || pipeline.feedback ||
      std::ranges::any_of(infos, [](const SystemInfo* info) { return !info->state.empty(); });
  pipeline.freezes_variance = infos.back()->freezes_variance;
  pipeline.conserves = conserves(parts, infos, pipeline);
  return pipeline;
}

std::string Registry::canonical(std::string_view spec) const {
  const SpecPair pair = parse_spec_pair(spec);
  const std::string dense = make(pair.dense).spec;
  return pair.rows == pair.dense ? dense : "rows=" + make(pair.rows).spec + ",dense=" + dense;
}

std::string Registry::shortened(std::string_view spec) const {
  const SpecPair pair = parse_spec_pair(spec);
  const auto one = [&](const std::string& text) {
    std::string result;
    for (const SpecPart& part : parse_spec(text)) {
      const SystemInfo& info = find(part.name);
      result += (result.empty() ? "" : "+") + part.name;
      for (const OptionInfo& option : info.options) {
        const std::string value = Options(part, info.options).text(option.name);
        if (value != option.default_value) result += ":" + option.name + "=" + value;
      }
    }
    return result;
  };
  return pair.rows == pair.dense ? one(pair.dense) : "rows=" + one(pair.rows) + ",dense=" + one(pair.dense);
}

std::string Registry::readable(std::string_view spec) const {
  try {
    return shortened(spec);
  } catch (const std::invalid_argument&) {
    return std::string(spec);
  }
}

bool Registry::freezes_variance(std::string_view spec, std::optional<std::uint64_t> step) const {
  const SpecPair pair = parse_spec_pair(spec);
  for (const std::string& text : {pair.dense, pair.rows}) {
    const Pipeline pipeline = make(text);
    if (step ? pipeline.synchronizer->freezes_variance(*step) : pipeline.freezes_variance) return true;
  }
  return false;
}

std::vector<MomentumNeed> Registry::momentum_needs(std::string_view spec) const {
  std::vector<MomentumNeed> needs;
  for (const SpecPart& part : parse_spec(parse_spec_pair(spec).dense)) {
    const SystemInfo& info = find(part.name);
    const Options options(part, info.options);
    if (!info.optimizers_momentum_option.empty()) {
      const double value = options.real(info.optimizers_momentum_option, 0, 1);
      needs.push_back({.system = part.name, .option = info.optimizers_momentum_option, .value = value});
    } else if (corrects_momentum(part, info) && !(info.bears_momentum && info.bears_momentum(options))) {
      needs.push_back({.system = part.name, .option = {}, .delivers_signs = info.delivers_signs});
    }
  }
  return needs;
}

bool Registry::rate_is_inside(std::string_view spec) const {
  const auto parts = parse_spec(spec);
  return std::ranges::any_of(parts, [&](const SpecPart& part) { return rate_inside(part, find(part.name)); });
}

std::vector<std::string> Registry::unclipped(std::string_view spec) const {
  std::vector<std::string> systems;
  for (const MomentumNeed& need : momentum_needs(spec)) {
    if (!need.bears_clipping()) systems.push_back(need.system);
  }
  for (const SpecPart& part : parse_spec(parse_spec_pair(spec).dense)) {
    if (find(part.name).clips) systems.push_back(part.name);
  }
  return systems;
}

std::vector<std::string> Registry::idle_options(std::string_view spec,
                                                const std::vector<std::string>& names) const {
  std::vector<std::string> all;
  const SpecPair pair = parse_spec_pair(spec);
  for (const std::string& text : {pair.dense, pair.rows}) {
    for (const SpecPart& part : parse_spec(text)) {
      const SystemInfo& info = find(part.name);
      if (!info.idle_options) continue;
      for (std::string& one : info.idle_options(Options(part, info.options), names)) {
        if (std::ranges::find(all, one) == all.end()) all.push_back(std::move(one));
      }
    }
  }
  return all;
}

std::vector<std::string> Registry::never_begun(std::string_view spec, std::uint64_t steps) const {
  std::vector<std::string> all;
  const SpecPair pair = parse_spec_pair(spec);
  for (const std::string& text : {pair.dense, pair.rows}) {
    std::uint64_t first = 0;  // what stands behind a stage counts from where that one ends
    for (const SpecPart& part : parse_spec(text)) {
      const SystemInfo& info = find(part.name);
      const std::string& option = info.first_steps_option;
      if (option.empty()) continue;
      first += static_cast<std::uint64_t>(Options(part, info.options).integer(option, 0, 1'000'000'000));
      if (first < steps) continue;
      std::string one = part.name + ":" + option + "=" + Options(part, info.options).text(option) +
                        ": this training synchronizes " + std::to_string(steps) +
                        " times, so it ends before " + info.first_steps_end + "; give fewer";
      // Of a spec that is no pair both are the same.
      if (std::ranges::find(all, one) == all.end()) all.push_back(std::move(one));
      break;  // nor does anything behind it
    }
  }
  return all;
}

}  // namespace thinwire

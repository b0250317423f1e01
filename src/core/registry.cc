#include "thinwire/registry.h"

#include <stdexcept>

namespace thinwire {
namespace {

const char* const kFeedback = "feedback";

std::string canonical(const SpecPart& part, const SystemInfo& info) {
  const Options options(part, info.options);
  std::string text = info.name;
  for (const auto& option : info.options) text += ":" + option.name + "=" + options.text(option.name);
  return text;
}

/// A stage clears its own state where the inner system delivered; if that is everywhere, the stage does
/// nothing.
void refuse_meaningless(const std::vector<const SystemInfo*>& infos) {
  const SystemInfo& last = *infos.back();
  if (last.stage) {
    throw std::invalid_argument(last.name + " is a stage: put a system behind it, as in '" + last.name +
                                "+SYSTEM'");
  }
  for (std::size_t i = 0; i + 1 < infos.size(); ++i) {
    const SystemInfo& stage = *infos[i];
    if (!stage.stage) {
      throw std::invalid_argument(stage.name + " is a system, not a stage: nothing can follow it, but '" +
                                  infos[i + 1]->name + "' does");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (infos[j]->name == stage.name) {
        throw std::invalid_argument("two '" + stage.name +
                                    "' stages: the second would correct the first's correction; keep one");
      }
    }
    if (last.delivers_all) {
      throw std::invalid_argument(
          stage.name + " around " + last.name + " has no effect: " + last.name +
          " delivers every element at every step, so the velocity would be cleared each "
          "time; leave the momentum to the optimizer");
    }
  }
}

}  // namespace

void Registry::add(SystemInfo info) {
  for (const auto& known : systems_) {
    if (known.name == info.name)
      throw std::invalid_argument("a system called '" + info.name + "' exists already");
  }
  if (!info.stage) {
    info.options.push_back({kFeedback, info.feedback_default ? "on" : "off",
                            "keep what was not delivered and add it to the next gradient"});
  }
  systems_.push_back(std::move(info));
}

const SystemInfo& Registry::find(std::string_view name) const {
  for (const auto& info : systems_) {
    if (info.name == name) return info;
  }
  std::string message = "no system is called '" + std::string(name) + "'; known:";
  for (const auto& info : systems_) message += " " + info.name;
  throw std::invalid_argument(message);
}

Pipeline Registry::make(std::string_view spec) const {
  const std::vector<SpecPart> parts = parse_spec(spec);
  std::vector<const SystemInfo*> infos;
  for (const auto& part : parts) infos.push_back(&find(part.name));
  refuse_meaningless(infos);

  Pipeline pipeline;
  pipeline.lossless = infos.back()->lossless;
  pipeline.feedback = Options(parts.back(), infos.back()->options).flag(kFeedback);
  for (std::size_t i = parts.size(); i-- > 0;) {
    pipeline.synchronizer =
        infos[i]->make(Options(parts[i], infos[i]->options), std::move(pipeline.synchronizer));
    pipeline.spec = canonical(parts[i], *infos[i]) + (pipeline.spec.empty() ? "" : "+" + pipeline.spec);
  }
  return pipeline;
}

}  // namespace thinwire

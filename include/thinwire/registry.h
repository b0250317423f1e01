#pragma once
// Systems by name. A spec string names a system and its options the same way in C++, on the command line and
// in Python: "marsit:full_every=100"; stages go in front, from the outside in, joined by '+':
// "mc:momentum=0.9+sketched_sgd".

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/state.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

/// One "name:key=value:key=value" part of a spec.
struct SpecPart {
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;
};

/// Splits at '+' and ':'. Throws std::invalid_argument for empty names, options without '=', repeated keys.
std::vector<SpecPart> parse_spec(std::string_view spec);

/// What runs on which buckets: "rows=zen,dense=marsit:full_every=100", or one spec for both.
struct SpecPair {
  std::string dense;
  std::string rows;  ///< Equal to dense when the text names one spec.
};

/// Throws std::invalid_argument when only one of rows= and dense= is there, or one is empty or repeated.
SpecPair parse_spec_pair(std::string_view text);

/// Splits a list of specs at commas; "rows=SPEC,dense=SPEC" is one entry. Throws std::invalid_argument for an
/// empty list or an empty entry.
std::vector<std::string> split_specs(std::string_view list);

/// An option as `thinwire systems` shows it.
struct OptionInfo {
  std::string name;
  std::string default_value;
  std::string meaning;
};

/// The options of one part, checked against the declared ones and read by type. Errors name the option, the
/// value and what would be right.
class Options {
 public:
  /// Throws std::invalid_argument for a key that `declared` does not list.
  Options(const SpecPart& part, const std::vector<OptionInfo>& declared);

  std::int64_t integer(std::string_view name, std::int64_t minimum, std::int64_t maximum) const;
  double real(std::string_view name, double minimum, double maximum) const;
  /// on/off, true/false, 1/0, yes/no.
  bool flag(std::string_view name) const;
  std::string choice(std::string_view name, const std::vector<std::string>& allowed) const;
  /// The text as given, or the default's.
  std::string text(std::string_view name) const;

  /// Throws std::invalid_argument: the option has this value, and must be what is wanted.
  [[noreturn]] void refuse(std::string_view name, const std::string& wanted) const;

 private:
  std::string system_;
  std::vector<std::pair<std::string, std::string>> values_;
};

/// A spec turned into something that runs.
struct Pipeline {
  std::string spec;  ///< Canonical: all options with their values, in declared order.
  std::unique_ptr<Synchronizer> synchronizer;
  bool feedback = false;
  bool lossless = false;
  bool undoes_steps = false;    ///< By keep_step() and undo_step(): true for all parts that have state.
  bool turns_residual = false;  ///< SystemInfo::turns_residual of all parts.
  bool has_state =
      false;  ///< Whether anything is kept from step to step: a residual, or state of the system.
  bool freezes_variance = false;  ///< Of some steps: see Synchronizer::freezes_variance.
  bool reduce_scatters = false;   ///< SystemInfo::reduce_scatters of all parts.
  bool conserves = false;  ///< Whether the invariant of synchronizer.h holds: nothing is lost for good.
};

/// What a stage wraps, or what a system chooses among.
struct Inner {
  std::unique_ptr<Synchronizer> synchronizer;
  bool feedback = false;                  ///< Whether it shall be given a residual.
  std::unique_ptr<Synchronizer> other{};  ///< What SystemInfo::other_option names.
  std::vector<Pipeline> members{};        ///< What SystemInfo::members names, in that order.
};

struct SystemInfo {
  std::string name;
  std::string summary;  ///< One line.
  std::string paper;    ///< Where it comes from.
  std::string formula;  ///< Payload bytes that one rank sends per step, as text.
  bool lossless = false;
  bool feedback_default = false;   ///< Whether a residual is kept unless feedback=on|off says otherwise.
  bool delivers_all = true;        ///< Whether every element counts as delivered after a step.
  bool takes_rows = false;         ///< Gains from sparsity: rows, or the zeros of a dense bucket.
  bool stage = false;              ///< Goes in front of a system with '+'.
  bool sparsifies = false;         ///< A stage that hands on a part of the gradient and keeps the rest.
  bool forgets = false;            ///< A stage that drops a part of what it is given for good.
  bool clips = false;              ///< A stage that clips gradients, so that the mean is not to be clipped.
  std::string clip_option;         ///< Decides by which norm, 0 being off; empty: `clips` says all.
  bool goes_around = false;        ///< A stage that sums some elements or steps by another system.
  bool corrects_momentum = false;  ///< Applies momentum, so that more is delivered than comes in.
  /// A stage that compares what is delivered with what came in.
  bool compares = false;
  /// Whether, by these options, that says nothing of it: momentum or the learning rate is inside, a part is
  /// dropped on purpose, or it compares by itself. What to do instead; empty: it can be compared.
  std::function<std::string(const Options&)> incomparable{};
  /// Whether, by these options, gradients are multiplied by the learning rate inside, so that the residual
  /// holds such products; empty: never.
  std::function<bool(const Options&)> rate_inside{};
  bool freezes_variance =
      false;  ///< Synchronizer::freezes_variance says yes of some steps: it is made for Adam.
  /// The option (0 to 1) that decides whether it does, 0 being off; empty: it does whatever the options say.
  std::string momentum_option;
  /// Whether, by these options, the optimizer may have momentum although `corrects_momentum`; empty: never.
  std::function<bool(const Options&)> bears_momentum{};
  /// Where it does not bear that, it delivers signs: they are not to be clipped or divided by a loss scale.
  bool delivers_signs = false;
  /// The option that must be the optimizer's momentum, or Adam's beta1; empty: there is none.
  std::string optimizers_momentum_option;
  /// A stage's: the option that names another system, which it runs in place of the one behind it. That
  /// system keeps no state, and its options stand behind '/': "qsgd/bits=4". Empty: there is none.
  std::string other_option;
  /// What of these options does nothing for a model whose parameters have these names, a sentence each;
  /// empty: never anything.
  std::function<std::vector<std::string>(const Options&, const std::vector<std::string>&)> idle_options{};
  /// The option that says how many steps of training pass before what it is chosen for begins, and what does:
  /// "the system behind it begins". Empty: there is none.
  std::string first_steps_option;
  std::string first_steps_end;
  /// Specs of the systems that it runs one or another of; empty: none. Their state counts as its own.
  std::function<std::vector<std::string>(const Options&)> members{};
  /// A stage's: what stands behind it when the spec names nothing; empty: something must be named.
  std::string alone;
  std::vector<OptionInfo> options;
  /// Every kind that Synchronizer::save writes, for Registry::state_kind.
  std::vector<StateKind> state{};
  /// Whether Synchronizer::keep_step and undo_step bring back all of that state. Otherwise a session that
  /// undoes steps keeps what save() writes after each step and undoes by load(): slower, and right for every
  /// system.
  bool undoes_steps = false;
  /// It never writes to the residual that it is given: a new one goes where Step::turn says, or there is none
  /// and the old one stays. A stage's: it passes the residual on as it is.
  bool turns_residual = false;
  /// It heeds Step::reduce_scatter. A stage's: it leaves that to the system behind it.
  bool reduce_scatters = false;
  /// For a stage, `inner` is what it wraps; else it is empty.
  std::function<std::unique_ptr<Synchronizer>(const Options&, Inner inner)> make;
};

/// What a system asks of the optimizer's momentum, or of Adam's beta1, and of what lies before the optimizer.
struct MomentumNeed {
  std::string system;
  std::string option;  ///< Whose value it must have; empty: the system applies momentum, so it must be off.
  double value = 0;
  bool delivers_signs = false;
  /// What is delivered is momentum, or signs, whose norm says nothing of the gradient's.
  bool bears_clipping() const { return option.empty() && !delivers_signs; }
};

class Registry {
 public:
  /// Throws std::invalid_argument when the name is taken, or the name of a kind of state by another kind.
  void add(SystemInfo info);
  const std::vector<SystemInfo>& systems() const { return systems_; }
  /// Throws std::invalid_argument that lists the known names.
  const SystemInfo& find(std::string_view name) const;
  /// What an entry "kind/..." of a state is: by the state's own declaration, or where it has none, as before
  /// there were declarations, by the system that knows the kind; else a StateKind of that name alone.
  StateKind state_kind(const StateReader& state, std::string_view kind) const;
  /// Throws std::invalid_argument for unknown names and options, values out of range and combinations of
  /// stages without meaning.
  Pipeline make(std::string_view spec) const;
  /// The spec, or pair of specs, with all options, as sessions and states have it. Throws what make() throws.
  std::string canonical(std::string_view spec) const;
  /// The same without the options that have their defaults, for people to read. Throws as make() does for
  /// names and options that do not exist; values are not looked at.
  std::string shortened(std::string_view spec) const;
  /// The same for messages about specs that may be of another version of Thinwire or of other systems: one
  /// that this registry does not know comes back as it is.
  std::string readable(std::string_view spec) const;
  /// Whether a system of the spec, or of a pair of them, freezes Adam's variance in this step, or in any.
  /// Throws what make() throws.
  bool freezes_variance(std::string_view spec, std::optional<std::uint64_t> step = {}) const;
  /// Whether a system of the spec, which is no pair, has the learning rate inside: its residual holds
  /// products of gradients and rates. Throws as shortened() does.
  bool rate_is_inside(std::string_view spec) const;
  /// What the systems of the spec, or of a pair's dense part, ask of the optimizer. Tables of rows may have
  /// an optimizer of their own. Throws as shortened() does.
  std::vector<MomentumNeed> momentum_needs(std::string_view spec) const;
  /// The systems of the spec, or of a pair's dense part, whose mean is not to be clipped: it is momentum or
  /// signs, or was clipped before. Throws as shortened() does.
  std::vector<std::string> unclipped(std::string_view spec) const;
  /// What of the spec, or of a pair of them, does nothing for a model whose parameters have these names: a
  /// sentence each. Throws as shortened() does.
  std::vector<std::string> idle_options(std::string_view spec, const std::vector<std::string>& names) const;
  /// What of the spec, or of a pair of them, does not begin in a training that synchronizes so many times: a
  /// sentence each.
  /// Throws as shortened() does.
  std::vector<std::string> never_begun(std::string_view spec, std::uint64_t steps) const;

 private:
  const StateKind* find_kind(std::string_view name) const;
  std::unique_ptr<Synchronizer> make_other(const SystemInfo& stage, const SpecPart& part) const;

  std::vector<SystemInfo> systems_;
};

/// Every system and baseline of this library, in the order in which `thinwire systems` lists them.
const Registry& builtin_registry();

}  // namespace thinwire

"""Reads what `thinwire train` wrote and says in words what several seeds came to.

A seed that diverged or collapsed is never hidden in a mean: such a system's seeds are listed one by one.
"""
import glob
import json
import math
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "apps", "plot"))
from plotting import deviation, mean, spread_text  # noqa: E402


def load(folder: str, taken=()) -> dict:
    """Results by part: what each call of thinwire wrote. taken: folders beside this one, whose parts have
    their name in front, as casq_table_1/train. NAME@SEED.json are one part, seed after seed."""
    parts = {}
    for name in ("", *taken):
        for path in sorted(glob.glob(os.path.join(folder, os.pardir if name else "", name, "*.json"))):
            with open(path, encoding="utf-8") as file:
                part, *seed = os.path.basename(path)[: -len(".json")].split("@")
                found = json.load(file)
                if seed:
                    parts.setdefault(os.path.join(name, part), []).extend(found if isinstance(found, list) else [found])
                else:
                    parts[os.path.join(name, part)] = found
    if not parts:
        raise ValueError(f"no results in {folder}")
    return parts


def options_of(spec: str) -> dict:
    """Of the last system in a spec: {"": name, option: value}."""
    words = spec.split("+")[-1].split(":")
    return {"": words[0], **dict(word.split("=", 1) for word in words[1:])}


def table_system(spec: str) -> str:
    """What synchronizes the tables: "s2_reducer:lambda=1" of rows=s2_reducer:lambda=1,dense=dense."""
    return spec.split(",dense=")[0].removeprefix("rows=")


def by_spec(results: list, value) -> dict:
    """{spec: [value(result) of each seed]}, without dense."""
    found = {}
    for result in results:
        if result["spec"] != "dense":
            found.setdefault(result["spec"], []).append(value(result))
    return found


def order_text(settings: dict) -> str:
    """Whether systems have the same order with every seed. settings: {name: {system: [a value by seed]}}.
    Values within a hundredth of each other are equal."""
    seeds = min(len(values) for systems in settings.values() for values in systems.values())
    if seeds < 2:
        return "One seed.\n"
    apart = []
    for name, systems in settings.items():
        names = list(systems)
        for i, one in enumerate(names):
            for other in names[i + 1:]:
                signs = {0 if abs(a - b) <= 0.01 * max(abs(a), abs(b)) else (1 if a > b else -1)
                         for a, b in zip(systems[one], systems[other])}
                if len(signs) > 1:
                    apart.append(f"`{one}` and `{other}` ({name})")
    if not apart:
        return f"Systems have the same order with each of {seeds} seeds, in every setting; within 1 % they are equal.\n"
    return f"Of {seeds} seeds not all have the same order of " + ", ".join(apart) + ".\n"


class System:
    """One system's trainings with several seeds."""

    # Of its best seed's accuracy: what ends below has collapsed, not just varied.
    COLLAPSED = 0.5

    def __init__(self, runs: list):
        self.runs = runs
        self.label = runs[0]["label"]
        self.options = options_of(self.label)
        self.accuracies = {run["seed"]: run["test_accuracy"] for run in runs if run["test_accuracy"] is not None}
        self.failed = sum(1 for run in runs if run["failure"])
        best = max(self.accuracies.values(), default=0)
        self.collapsed = sum(1 for value in self.accuracies.values() if value < self.COLLAPSED * best)
        # What a run sent before it diverged is no whole training's mean.
        self.bytes = mean([run["wire_bytes_sent_max"] for run in self.finished() or runs])

    def finished(self) -> list:
        return [run for run in self.runs if not run["failure"]]

    def whole(self) -> bool:
        """Whether a mean over its seeds says what it does."""
        return self.failed == 0 and self.collapsed == 0

    def trouble(self) -> str:
        """"1 of 3 diverged"; "" if none has failed."""
        if not self.failed and not self.collapsed:
            return ""
        if self.failed == len(self.runs):
            return "diverged"
        counts = [(self.failed, "diverged"), (self.collapsed, "collapsed")]
        return ", ".join(f"{count} of {len(self.runs)} {what}" for count, what in counts if count)

    def accuracy(self) -> float:
        return mean(list(self.accuracies.values())) if self.accuracies else math.nan

    def spread(self) -> float:
        return deviation(list(self.accuracies.values()))

    def text_of(self, values: list, formatted: str) -> str:
        """Mean and deviation of its finished seeds' values, or each of them where a mean would hide some."""
        if self.failed == len(self.runs):
            return "diverged"
        if self.whole():
            return spread_text(values, formatted)
        return ", ".join(format(value, formatted) for value in values) + f" ({self.trouble()})"

    def accuracy_text(self) -> str:
        return self.text_of([100 * value for value in self.accuracies.values()], ".2f")

    def difference_text(self, other: "System") -> str:
        """In percentage points, over the seeds that both finished; none where a mean would hide some."""
        if not self.whole() or not other.whole():
            return "-"
        common = [100 * (self.accuracies[seed] - other.accuracies[seed]) for seed in self.accuracies
                  if seed in other.accuracies]
        return spread_text(common, "+.2f") if common else "-"

    def difference_of(self, key: str, other: "System") -> str:
        """Of what the last epoch has, seed by seed, over the seeds that both finished."""
        if not self.whole() or not other.whole():
            return "-"
        last = {run["seed"]: run["epochs"][-1][key] for run in other.finished()}
        common = [run["epochs"][-1][key] - last[run["seed"]] for run in self.finished() if run["seed"] in last]
        return spread_text(common, "+.4f") if common else "-"

    def by_epoch(self, key: str) -> list:
        """One list by epoch per finished seed."""
        return [[math.nan if epoch[key] is None else epoch[key] for epoch in run["epochs"]] for run in self.finished()]

    def at_the_end(self, key: str) -> str:
        values = [epochs[-1] for epochs in self.by_epoch(key) if epochs]
        return self.text_of(values, ".4f") if values else "-"


def systems_in(results: list) -> list:
    groups = {}
    for run in results:
        groups.setdefault(run["label"], []).append(run)
    return [System(runs) for runs in groups.values()]


def named(systems: list, label: str) -> System:
    return next(system for system in systems if system.label == label)


def compression(system: System, dense: System) -> float:
    return dense.bytes / system.bytes if system.bytes > 0 else math.nan


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def setting_text(results: list, key: str, name: str) -> str:
    """"learning rate 0.4"; where systems differ, whose is another: "learning rate 0.4 (ssdm: 0.001)"; where
    one system had several, all of them."""
    by_system = {}
    for run in results:
        by_system.setdefault(run["system"], {})[run[key]] = None
    values = list(dict.fromkeys(value for of_system in by_system.values() for value in of_system))
    if any(len(of_system) > 1 for of_system in by_system.values()):
        return f"{name}s " + ", ".join(f"{value:g}" for value in sorted(values, reverse=True))
    usual = max(values, key=lambda value: sum(value in of_system for of_system in by_system.values()))
    others = [f"{system}: {value:g}" for system, of_system in by_system.items() for value in of_system if value != usual]
    return f"{name} {usual:g}" + (f" ({', '.join(others)})" if others else "")


def describe(results: list) -> str:
    one = max(results, key=lambda run: len(run["epochs"]))
    seeds = sorted({run["seed"] for run in results})
    steps = one["epochs"][0]["steps"] if one["epochs"] else 0
    momentum = setting_text(results, "momentum", "momentum") if any(run["momentum"] for run in results) else "no momentum"
    return (f"{one['model']} ({one['parameters']:,} parameters) on {one['data'].split(':')[0]}, {counted(one['workers'], 'worker')}, batch of "
            f"{one['batch']} per worker, {counted(len(one['epochs']), 'epoch')} of {counted(steps, 'step')}, "
            f"{setting_text(results, 'lr', 'learning rate')}, {one['lr_schedule']} schedule, {momentum}, "
            f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}.")


def table(head: list, rows: list) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


DIFFERENCE = "minus dense's, seed by seed"


def accuracy_table(systems: list, dense: System, paper=None) -> str:
    """paper: a column's head and what the paper has for each label."""
    head = ["system", "test accuracy, %", DIFFERENCE, "bytes per worker and step", "times fewer than dense"]
    rows = []
    for system in systems:
        row = [f"`{system.label}`", system.accuracy_text(), "" if system is dense else system.difference_text(dense),
               f"{system.bytes:,.0f}", f"{compression(system, dense):.1f}"]
        rows.append(row + ([paper[1].get(system.label, "")] if paper else []))
    return table(head + ([paper[0]] if paper else []), rows)


def with_momentum(parts: dict) -> str:
    """Trainings with momentum, a table for each learning rate: parts "momentum_RATE"; those of
    "double_momentum_RATE", whose systems have their own, beside dense with the optimizer's; and those of
    "scope_RATE", whose clusters are a whole bucket's."""
    text = ""
    for name, results in sorted(parts.items(), reverse=True):
        if name.startswith("momentum_"):
            systems = systems_in(results)
            text += "\nWith momentum. " + describe(results) + "\n\n" + accuracy_table(systems, named(systems, "dense"))
            doubled = systems_in(parts.get("double_" + name, []))
            if doubled:
                text += ("\nWith the momentum of Algorithm 1, line 16, in place of the optimizer's. `dense` has the optimizer's.\n\n" +
                         accuracy_table(doubled, named(doubled, "dense")))
            scoped = systems_in(parts.get("scope_" + name.removeprefix("momentum_"), []))
            if scoped:
                text += ("\nWith clusters and cells of a whole bucket, the optimizer's momentum.\n\n" +
                         accuracy_table(scoped, named(scoped, "dense")))
    return text

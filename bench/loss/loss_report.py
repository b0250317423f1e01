"""Tables and pictures of run.py: evaluation loss or accuracy beside the bytes of the whole run."""
import math

import plotting
from plotting import deviation, mean, spread_text


class Recipe:
    """One spec's runs, by seed."""

    def __init__(self, label: str, runs: list):
        self.label = label
        self.runs = {run["seed"]: run for run in runs}
        self.failed = sum(1 for run in runs if run["failure"])

    def finished(self) -> list:
        return [run for run in self.runs.values() if not run["failure"]]

    def at_the_end(self, key: str) -> dict:
        return {seed: run["epochs"][-1][key] for seed, run in self.runs.items() if not run["failure"]}

    def bytes(self) -> float:
        """Sent in the whole run by the rank that sent most, mean over seeds."""
        return mean([run["epochs"][-1]["wire_bytes_so_far"] for run in self.finished()]) if self.finished() else math.nan


def recipes_in(runs: list) -> list:
    groups = {}
    for run in runs:
        groups.setdefault(run["label"], []).append(run)
    return [Recipe(label, group) for label, group in groups.items()]


def measure_of(runs: list) -> tuple:
    """(key, name, factor, digits): nats for texts, percent right for all else."""
    if any(run["perplexity"] is not None for run in runs):
        return "test_loss", "evaluation loss, nats", 1, 3
    return "test_accuracy", "test accuracy, %", 100, 2


# A difference of so many times the median one, and of more than a nat or a point, is another kind of result.
FAR = 10


def went_astray(values: list) -> bool:
    sizes = sorted(abs(value) for value in values)
    return len(sizes) > 2 and sizes[-1] > max(1, FAR * sizes[len(sizes) // 2])


def differences(one: Recipe, dense: Recipe, key: str, factor: int) -> list:
    """Seed by seed, in their order."""
    own, base = one.at_the_end(key), dense.at_the_end(key)
    return [factor * (own[seed] - base[seed]) for seed in sorted(own) if seed in base]


def difference(values: list, digits: int) -> str:
    """Of all seeds; where it is within their spread that is said. Where one went astray each is listed."""
    if not values:
        return "-"
    if went_astray(values):
        return ", ".join(f"{value:+.{digits}f}" for value in values)
    text = spread_text(values, f"+.{digits}f")
    noise = len(values) > 1 and abs(mean(values)) <= deviation(values)
    return text + (" (noise)" if noise else "")


def row(one: Recipe, dense: Recipe, runs: list) -> str:
    key, _, factor, digits = measure_of(runs)
    ends = one.at_the_end(key)
    values = [factor * ends[seed] for seed in sorted(ends)]
    to_dense = [] if one is dense else differences(one, dense, key, factor)
    measured = spread_text(values, f".{digits}f") if values else "diverged"
    if went_astray(to_dense):
        measured = ", ".join(f"{value:.{digits}f}" for value in values)
    if values and one.failed:
        measured += f" ({one.failed} of {len(one.runs)} diverged)"
    if len(one.runs) < len({run["seed"] for run in runs}):
        measured += f" ({len(one.runs)} seed{'s' if len(one.runs) > 1 else ''})"
    minus = "" if one is dense else difference(to_dense, digits)
    fewer = dense.bytes() / one.bytes() if one.finished() and one.bytes() > 0 else math.nan
    amount = f"{one.bytes() / 1e6:,.1f}" if one.finished() else "-"
    return f"| `{one.label}` | {measured} | {minus} | {amount} | {'-' if math.isnan(fewer) else format(fewer, '.1f')} |"


def setting_text(runs: list) -> str:
    one = runs[0]
    steps = sum(epoch["steps"] for epoch in max(runs, key=lambda run: len(run["epochs"]))["epochs"])
    clip = f", mean gradient clipped at {one['clip']:g}" if one["clip"] else ""
    momentum = f", momentum {one['momentum']:g}" if one["momentum"] else ""
    seeds = ", ".join(str(seed) for seed in sorted({run["seed"] for run in runs}))
    return (f"{one['model']} of {one['parameters']:,} parameters on {one['data']}, {one['workers']} workers with {one['batch']} "
            f"examples each, {steps} steps, {one['optimizer']} at {one['lr']:g}{momentum}{clip}, {one['lr_schedule']} schedule, "
            f"seeds {seeds}. Bytes are those of the whole run, by the rank that sent most.")


def table(runs: list) -> str:
    recipes = recipes_in(runs)
    dense = next((one for one in recipes if one.label == "dense"), None)
    if dense is None or not dense.finished():
        raise ValueError("there is no finished run of dense to compare with")
    head = f"| spec | {measure_of(runs)[1]} | minus dense's, by seed | MB sent | times fewer than dense |\n"
    body = sorted(recipes, key=lambda one: -one.bytes() if one.finished() else 0)
    return setting_text(runs) + "\n\n" + head + "| --- | --- | --- | --- | --- |\n" + "\n".join(
        row(one, dense, runs) for one in body) + "\n"


# With more specs than these a picture names only some of them.
MOST_NAMED = 9
# Where a spec has fewer seeds, and fewer than dense, its loss may be chance.
ENOUGH_SEEDS = 3
# How far from dense's loss or accuracy, in nats or points, the picture goes.
RANGE = {"test_loss": 0.75, "test_accuracy": 5.0}


# What the pages recommend beside `auto`.
RECOMMENDED = ("klt", "power_sgd:rank=32:bits=8")


def named_in_picture(recipes: list, dense: Recipe, key: str) -> list:
    """Dense, `auto`, what the pages recommend beside it, and each spec that none with as few bytes beats; of
    few specs all. By falling bytes. Those with fewer than ENOUGH_SEEDS and than dense beat none."""
    finished = [one for one in recipes if one.finished()]
    if len(finished) <= MOST_NAMED:
        return sorted(finished, key=lambda one: -one.bytes())
    sign = -1 if key == "test_accuracy" else 1
    ends = {one: sign * mean(list(one.at_the_end(key).values())) for one in finished}
    worth, best = [], math.inf
    for one in sorted(finished, key=lambda one: (one.bytes(), ends[one])):
        if ends[one] < best and len(one.runs) >= min(len(dense.runs), ENOUGH_SEEDS):
            best = ends[one]
        elif one is not dense and one.label.partition(":")[0] != "auto" and one.label not in RECOMMENDED:
            continue
        worth.append(one)
    return worth[::-1]


def curve_of(one: Recipe, key: str, factor: int) -> tuple:
    """Steps so far and the mean over seeds, by epoch."""
    curves = [[factor * epoch[key] for epoch in run["epochs"]] for run in one.finished()]
    middle = [mean(list(values)) for values in zip(*curves)]
    epochs = one.finished()[0]["epochs"][: len(middle)]
    return [sum(epoch["steps"] for epoch in epochs[: i + 1]) for i in range(len(epochs))], middle


def picture(runs: list):
    """At the left every spec's end against the bytes of its whole run; at the right those that are named, by
    steps. What ends further from dense than RANGE lies on the edge, as a small triangle."""
    key, name, factor, _ = measure_of(runs)
    recipes = recipes_in(runs)
    dense = next(one for one in recipes if one.label == "dense")
    named = named_in_picture(recipes, dense, key)
    made, (by_bytes, by_steps) = plotting.figure(2, (12.0, 6.0 + 0.2 * max(0, len(named) // 2 - 3)))
    sign = 1 if key == "test_loss" else -1
    edge = factor * mean(list(dense.at_the_end(key).values())) + sign * RANGE[key]
    for one in recipes:
        if not one.finished():
            continue
        values = [factor * value for value in one.at_the_end(key).values()]
        end, sent = mean(values), one.bytes() / 1e6
        beyond = sign * (end - edge) > 0
        if one in named:
            at = named.index(one)
            look = plotting.style(at)
            if at >= len(plotting.COLOURS):
                look["markerfacecolor"] = "white"  # where there is no line nothing else tells it
            by_steps.plot(*curve_of(one, key, factor), label=one.label, **look)
        else:
            look = {"color": "#BBBBBB", "marker": "o", "markersize": 4}
        if beyond:
            look |= {"marker": "^" if sign > 0 else "v", "markersize": 5, "clip_on": False}
        look["linestyle"] = "none"
        by_bytes.errorbar([sent], [edge if beyond else end], yerr=None if beyond else [deviation(values)],
                          elinewidth=1, **look)
    by_bytes.set_xscale("log")
    by_bytes.set_xlabel("MB sent by a worker in the whole run" +
                        (", grey: specs without a name here" if len(named) < len(recipes) else ""))
    by_bytes.set_ylabel(name.replace(",", " at the end,"))
    low, high = by_bytes.get_ylim()
    by_bytes.set_ylim(*((low, min(high, edge)) if sign > 0 else (max(low, edge), high)))
    by_steps.set_xlabel("steps")
    by_steps.set_ylabel(name)
    plotting.legend_below(made, by_steps, 2, foot=0.02, line=0.03, fontsize=8)
    return made


def write(name: str, runs: list, to: str) -> None:
    """to: path without an ending."""
    with open(to + ".md", "w", encoding="utf-8") as file:
        file.write(f"# {name}\n\n" + table(runs))
    picture(runs).savefig(to + ".png", dpi=110)

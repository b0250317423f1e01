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


def picture(runs: list):
    key, name, factor, _ = measure_of(runs)
    made, (by_steps, by_bytes) = plotting.figure(2, (12.0, 6.0))
    for at, one in enumerate(recipes_in(runs)):
        if not one.finished():
            continue
        curves = [[factor * epoch[key] for epoch in run["epochs"]] for run in one.finished()]
        middle = [mean(list(values)) for values in zip(*curves)]
        epochs = one.finished()[0]["epochs"][: len(middle)]
        steps = [sum(epoch["steps"] for epoch in epochs[: i + 1]) for i in range(len(epochs))]
        by_steps.plot(steps, middle, label=one.label, **plotting.style(at))
        by_bytes.plot([epoch["wire_bytes_so_far"] / 1e6 for epoch in epochs], middle, **plotting.style(at))
    by_steps.set_xlabel("steps")
    by_bytes.set_xlabel("MB sent by a worker")
    by_bytes.set_xscale("log")
    for axes in (by_steps, by_bytes):
        axes.set_ylabel(name)
    plotting.legend_below(made, by_steps, 4, foot=0.02, line=0.04, fontsize=8)
    return made


def write(name: str, runs: list, to: str) -> None:
    """to: path without an ending."""
    with open(to + ".md", "w", encoding="utf-8") as file:
        file.write(f"# {name}\n\n" + table(runs))
    picture(runs).savefig(to + ".png", dpi=110)

"""Tables and a picture of run.py: when each way has plain DDP's final loss."""
import math
import textwrap

import plotting
import settings
from plotting import mean, spread_text

BITS = {"100Mbit": 1e8, "1Gbit": 1e9, "10Gbit": 1e10}


def final_loss(run: dict) -> float:
    return run["points"][-1]["evaluation_loss"]


def seconds_to(run: dict, loss: float):
    """When the evaluation loss comes to `loss` for the first time,
    on straight lines between evaluations; None: never."""
    before = None
    for point in run["points"]:
        now = point["evaluation_loss"]
        if now <= loss:
            if before is None or before["evaluation_loss"] <= now:
                return point["seconds"]
            part = (before["evaluation_loss"] - loss) / (before["evaluation_loss"] - now)
            return before["seconds"] + part * (point["seconds"] - before["seconds"])
        before = point
    return None


def bytes_per_step(run: dict):
    """By the interface, with all headers and what else a step sends; None on loopback."""
    sent = run["points"][-1]["interface_bytes"]
    return sent / run["steps"] if sent else None


def step_seconds(run: dict) -> float:
    return run["points"][-1]["seconds"] / run["steps"]


def with_missing(values: list, form: str, missing: str) -> str:
    """Mean and deviation; where one seed has none, each by itself."""
    if None not in values:
        return spread_text(values, form)
    return missing if not any(values) else ", ".join(missing if value is None else format(value, form) for value in values)


def cells(runs: list, plain: dict, rate: str, margin: float) -> list:
    """Of one way's runs. plain: by seed. Ratios and differences are taken seed by seed."""
    goal = {seed: final_loss(run) + margin for seed, run in plain.items()}
    reached = [seconds_to(run, goal[run["seed"]]) for run in runs]
    bases = [seconds_to(plain[run["seed"]], goal[run["seed"]]) for run in runs]
    minus = [final_loss(run) - final_loss(plain[run["seed"]]) for run in runs]
    sent = [bytes_per_step(run) for run in runs]
    is_plain = runs[0]["way"] == "plain"
    return [
        f"`{runs[0]['way']}`",
        spread_text([1e3 * step_seconds(run) for run in runs], ",.0f"),
        f"{mean(sent) / 1e6:,.2f}" if all(sent) else "-",
        f"{1e3 * 8 * mean(sent) / BITS[rate]:,.1f}" if all(sent) and rate in BITS else "-",
        f"{mean([final_loss(run) for run in runs]):.3f}" + ("" if is_plain else f" ({spread_text(minus, '+.3f')})"),
        with_missing(reached, ",.1f", "not reached"),
        spread_text([plain[run["seed"]]["points"][-1]["seconds"] / run["points"][-1]["seconds"] for run in runs], ".2f"),
        with_missing([base / one if one else None for base, one in zip(bases, reached)], ".2f", "-"),
    ]


HEAD = ["way", "step, ms", "MB sent in a step", "these at the link's rate, ms", "evaluation loss at the end, minus plain's",
        "seconds to plain's final loss", "times faster for all steps", "times faster to the same loss"]


def plain_of(runs: list, rate: str) -> dict:
    """Those of plain DDP by seed: one for every seed that any way has."""
    plain = {run["seed"]: run for run in runs if run["way"] == "plain"}
    missing = sorted({run["seed"] for run in runs} - set(plain))
    if missing:
        raise ValueError(f"{rate}: there is no run of plain DDP to compare with, of seed {', '.join(map(str, missing))}")
    return plain


def share_text(plain: list) -> str:
    """How much of plain DDP's step is communication."""
    step = mean([step_seconds(run) for run in plain])
    local = mean([run["local_seconds"] for run in plain])
    return (f"A step of plain DDP takes {1e3 * step:,.0f} ms, and {1e3 * local:,.0f} ms without synchronization: "
            f"communication is {100 * max(0.0, 1 - local / step):.0f} % of it.")


def table(runs: list, rate: str, margin: float = 0) -> str:
    by_seed = plain_of(runs, rate)
    plain = next(iter(by_seed.values()))
    settings.require_same(runs, plain, rate)
    seeds = ", ".join(map(str, sorted(by_seed)))
    setting = (f"A decoder-only transformer of {plain['parameters']:,} parameters ({plain['layers']} layers of width {plain['width']}), "
               f"{plain['workers']} ranks with {plain['batch']} windows of {plain['context']} words each, {plain['steps']} steps of AdamW "
               f"at {plain['lr']:g}, clipped at {plain['clip']:g}, warm-up of a tenth of the steps and half a cosine, seed{'s' if len(by_seed) > 1 else ''} {seeds}. "
               f"torch {plain['torch']}{' with its fused optimizer' if plain.get('fused_optimizer') else ''}. "
               f"torch's PowerSGD hook has rank {plain['power_sgd_rank']}. All ranks are on one machine, {plain['threads']} threads each.")
    if margin:
        setting += f" The loss to reach is {margin:g} nats above plain's last one, for plain as for all."
    by_way = {}
    for run in runs:
        by_way.setdefault(run["way"], []).append(run)
    rows = [HEAD, ["---"] * len(HEAD)] + [cells(of_way, by_seed, rate, margin) for of_way in by_way.values()]
    setting = textwrap.fill(setting, 110, break_long_words=False, break_on_hyphens=False)
    return f"{setting}\n{share_text(list(by_seed.values()))}\n\n" + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def picture(by_rate: dict):
    made, all_axes = plotting.figure(len(by_rate), (1.5 + 4.7 * len(by_rate), 5.2))
    ways = list(dict.fromkeys(run["way"] for runs in by_rate.values() for run in runs))
    for axes, (rate, runs) in zip(all_axes, by_rate.items()):
        for run in runs:
            how = plotting.style(ways.index(run["way"]))
            axes.plot([point["seconds"] for point in run["points"]], [point["evaluation_loss"] for point in run["points"]], **how)
        # The line is of the first seed.
        axes.axhline(final_loss(next(iter(plain_of(runs, rate).values()))), color="#777777", linewidth=1, linestyle=":")
        axes.set_title(rate)
        axes.set_xlabel("seconds")
        axes.set_ylabel("evaluation loss, nats")
    for way in ways:  # one entry each, whatever rates it was run at
        all_axes[0].plot([math.nan], [math.nan], label=way, **plotting.style(ways.index(way)))
    plotting.legend_below(made, all_axes[0], 3, foot=0.02, line=0.05, fontsize=9)
    return made


def write(by_rate: dict, to: str, margin: float = 0) -> None:
    """to: path without an ending."""
    parts = [f"## {rate}\n\n{table(runs, rate, margin)}" for rate, runs in by_rate.items()]
    with open(to + ".md", "w", encoding="utf-8") as file:
        file.write("# Time to plain DDP's final loss\n\n" + "\n".join(parts))
    picture(by_rate).savefig(to + ".png", dpi=110)

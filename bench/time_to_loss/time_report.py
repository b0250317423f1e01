"""Tables and a picture of run.py: when each way has plain DDP's final loss."""
import math

import plotting
import settings

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


def cells(run: dict, plain: dict, rate: str, margin: float) -> list:
    steps_seconds = run["points"][-1]["seconds"] / run["steps"]
    reached = seconds_to(run, final_loss(plain) + margin)
    base = seconds_to(plain, final_loss(plain) + margin)
    minus = final_loss(run) - final_loss(plain)
    sent = bytes_per_step(run)
    return [
        f"`{run['way']}`",
        f"{1e3 * steps_seconds:,.0f}",
        f"{sent / 1e6:,.2f}" if sent else "-",
        f"{1e3 * 8 * sent / BITS[rate]:,.1f}" if sent and rate in BITS else "-",
        f"{final_loss(run):.3f}" + ("" if run is plain else f" ({minus:+.3f})"),
        f"{reached:,.1f}" if reached is not None else "not reached",
        f"{plain['points'][-1]['seconds'] / run['points'][-1]['seconds']:.2f}",
        f"{base / reached:.2f}" if reached else "-",
    ]


HEAD = ["way", "step, ms", "MB sent in a step", "these at the link's rate, ms", "evaluation loss at the end, minus plain's",
        "seconds to plain's final loss", "times faster for all steps", "times faster to the same loss"]


def plain_of(runs: list, rate: str) -> dict:
    for run in runs:
        if run["way"] == "plain":
            return run
    raise ValueError(f"{rate}: there is no run of plain DDP to compare with")


def share_text(plain: dict) -> str:
    """How much of plain DDP's step is communication."""
    step = plain["points"][-1]["seconds"] / plain["steps"]
    local = plain["local_seconds"]
    return (f"A step of plain DDP takes {1e3 * step:,.0f} ms, and {1e3 * local:,.0f} ms without synchronization: "
            f"communication is {100 * max(0.0, 1 - local / step):.0f} % of it.")


def table(runs: list, rate: str, margin: float = 0) -> str:
    plain = plain_of(runs, rate)
    settings.require_same(runs, plain, rate)
    setting = (f"A decoder-only transformer of {plain['parameters']:,} parameters ({plain['layers']} layers of width {plain['width']}), "
               f"{plain['workers']} ranks with {plain['batch']} windows of {plain['context']} words each, {plain['steps']} steps of AdamW "
               f"at {plain['lr']:g}, clipped at {plain['clip']:g}, warm-up of a tenth of the steps and half a cosine, seed {plain['seed']}. "
               f"torch {plain['torch']}{' with its fused optimizer' if plain.get('fused_optimizer') else ''}. "
               f"torch's PowerSGD hook has rank {plain['power_sgd_rank']}. All ranks are on one machine, {plain['threads']} threads each.")
    if margin:
        setting += f" The loss to reach is {margin:g} nats above plain's last one, for plain as for all."
    rows = [HEAD, ["---"] * len(HEAD)] + [cells(run, plain, rate, margin) for run in runs]
    return f"{setting}\n{share_text(plain)}\n\n" + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def picture(by_rate: dict):
    made, all_axes = plotting.figure(len(by_rate), (1.5 + 4.7 * len(by_rate), 5.2))
    ways = list(dict.fromkeys(run["way"] for runs in by_rate.values() for run in runs))
    for axes, (rate, runs) in zip(all_axes, by_rate.items()):
        for run in runs:
            how = plotting.style(ways.index(run["way"]))
            axes.plot([point["seconds"] for point in run["points"]], [point["evaluation_loss"] for point in run["points"]], **how)
        axes.axhline(final_loss(plain_of(runs, rate)), color="#777777", linewidth=1, linestyle=":")
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

"""Zen's Figures 11 and 12: steps under DistributedDataParallel, as bench/ddp_steps measured them."""
from statistics import mean

from drawing import figure
from plotting import COLOURS, spread_text
from runs import table


def short(system: str) -> str:
    """What carries the table, or the selected elements: "zen" of rows=zen,dense=dense and of
    top_k:ratio=0.05+zen."""
    return system.split(",dense=")[0].removeprefix("rows=").split("+")[-1]


def steps_of(runs: list, axes, label: str) -> list:
    """Rows of a table: each run's step, and how many times faster than dense's step of the same run."""
    seconds, sent = {}, {}
    for run in runs:
        for result in run["results"]:
            seconds.setdefault(short(result["system"]), []).append(result["seconds_median"])
            sent.setdefault(short(result["system"]), []).append(result["interface_bytes_sent"])
    gains = {name: [dense / own for dense, own in zip(seconds["dense"], of)] for name, of in seconds.items()}
    names = sorted(gains, key=lambda name: mean(gains[name]))
    axes.bar(range(len(names)), [mean(gains[name]) for name in names], color=COLOURS[0])
    axes.axhline(1, color="#000000", linewidth=0.8)
    axes.set_xticks(range(len(names)))
    axes.set_xticklabels(names, rotation=30, ha="right", fontsize=8)
    axes.set_ylabel("times as fast as dense")
    axes.set_title(label, fontsize=10)
    return [[f"`{name}`", ", ".join(f"{1e3 * one:,.0f}" for one in seconds[name]), spread_text(gains[name], ".2f"), f"{mean(sent[name]) / 1e6:,.1f}"]
            for name in reversed(names)]


HEAD = ["by", "step, ms, by run", "times as fast as dense", "MB sent per rank and step"]


def zen_figure_11(parts: dict) -> tuple:
    made, (axes,) = figure()
    one = parts["tables"][0]
    text = ("The paper, LSTM on 16 machines: Zen is 1.67 times as fast as SparCML, 2.48 times as OmniReduce, 3.1 times as AllReduce; for DeepFM and NMT it is "
            "1.44 and 1.51 times as fast as OmniReduce.\n\n"
            f"A click model of {one['parameters']:,} parameters, {one['workers']} ranks, links of 1 Gbit/s; the table goes by each system, the rest by dense.\n\n")
    text += table(HEAD, steps_of(parts["tables"], axes, "1 Gbit/s"))
    made.tight_layout()
    return text, made


def zen_figure_12(parts: dict) -> tuple:
    rates = [rate for rate in ("1Gbit", "100Mbit") if f"wide_{rate}" in parts]
    made, all_axes = figure(len(rates))
    one = parts[f"wide_{rates[0]}"][0]
    text = ("The paper, Llama3.2-3B on 16 machines: Zen is 1.68 times as fast as OmniReduce, 2.19 times as SparCML, 2.02 times as AllReduce.\n\n"
            f"Five layers of {one['parameters']:,} parameters, {one['workers']} ranks; each selects the 5 % largest elements of a bucket and keeps the rest. By "
            "`dense` all elements travel.\n")
    for rate, axes in zip(rates, all_axes):
        title = rate.replace("bit", "bit/s").replace("1G", "1 G").replace("100M", "100 M")
        text += f"\nLinks of {title}:\n\n" + table(HEAD, steps_of(parts[f"wide_{rate}"], axes, title))
    made.tight_layout()
    return text, made

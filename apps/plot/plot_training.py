#!/usr/bin/python3
"""Draw what `thinwire train --json` wrote: test accuracy, or of a text the perplexity, against epochs and against
bytes sent. Of a system that was trained with several seeds: the mean, in a band of one standard deviation.

Usage: plot_training.py RESULTS.json PICTURE.png

Exit status: 0 drawn, 1 failed (one line on stderr), 2 wrong usage, 3 matplotlib is missing (says nothing: the
caller tells what to install).
"""
import json
import math
import os
import sys

try:
    import matplotlib
except ImportError:
    sys.exit(3)

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter  # noqa: E402

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; markers say the same once more.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]


def bytes_text(value: float, _position=None) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"


def by_label(results: list) -> list:
    """The runs of each system, those with an epoch; in the order of the first ones."""
    groups = {}
    for result in results:
        if result["epochs"]:
            groups.setdefault(result["label"], []).append(result)
    return list(groups.values())


def mean(values: list) -> float:
    return sum(values) / len(values)


def deviation(values: list) -> float:
    """Of the sample; of a single value 0."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def draw(results: list, picture: str) -> None:
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (by_epoch, by_bytes) = plt.subplots(1, 2, figsize=(10.5, 4.3), sharey=True)
    sent_anything = False
    # Of a text every epoch has a perplexity, of anything else none.
    perplexity = any(epoch.get("perplexity") is not None for result in results for epoch in result["epochs"])
    measure = "perplexity" if perplexity else "test_accuracy"
    for i, runs in enumerate(by_label(results)):
        # A run that failed early ends its system's line where it ended.
        count = min(len(run["epochs"]) for run in runs)
        failed = sum(1 for run in runs if run["failure"])
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": ["-", "--", ":"][i // len(COLOURS) % 3],
            "markersize": 5,
            "linewidth": 1.7,
            "label": runs[0]["label"] + (" (diverged)" if failed else ""),
        }
        # A perplexity that overflowed is null: a gap in the line.
        values = [
            [math.nan if run["epochs"][at][measure] is None else run["epochs"][at][measure] for run in runs]
            for at in range(count)
        ]
        measured = [mean(of_seeds) for of_seeds in values]
        spread = [deviation(of_seeds) for of_seeds in values]
        sent = [mean([run["epochs"][at]["wire_bytes_so_far"] for run in runs]) for at in range(count)]
        numbers = [epoch["epoch"] for epoch in runs[0]["epochs"][:count]]
        by_epoch.plot(numbers, measured, **style)
        if len(runs) > 1:
            low = [middle - width for middle, width in zip(measured, spread)]
            high = [middle + width for middle, width in zip(measured, spread)]
            by_epoch.fill_between(numbers, low, high, color=style["color"], alpha=0.18, linewidth=0)
        # A single worker sends nothing, which has no place on a logarithmic axis.
        if sent[-1] > 0:
            by_bytes.plot(sent, measured, **style)
            sent_anything = True

    by_epoch.set_xlabel("epoch")
    by_epoch.set_ylabel("test perplexity (lower is better)" if perplexity else "test accuracy")
    by_epoch.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not perplexity:
        by_epoch.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    by_bytes.set_xlabel("sent per worker so far (logarithmic)")
    if sent_anything:
        by_bytes.set_xscale("log")
        low, high = by_bytes.get_xlim()
        # Few decades: marks at 1, 2 and 5 as well, else a picture of one system would have none.
        decades = high / low < 1e3
        by_bytes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades else (1,)))
        by_bytes.xaxis.set_major_formatter(FuncFormatter(bytes_text))
        by_bytes.xaxis.set_minor_formatter(NullFormatter())
    for axes in (by_epoch, by_bytes):
        axes.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
        axes.set_axisbelow(True)

    first = results[0]
    workers = first["workers"]
    figure.suptitle(
        f"{first['model']} on {first['data'].split(':')[0]}, {workers} worker{'s' if workers != 1 else ''}, "
        f"{first['batch']} examples per worker and step, {first['parameters']:,} parameters",
        fontsize=11,
    )
    handles, labels = by_epoch.get_legend_handles_labels()
    columns = min(len(labels), 3)
    rows = -(-len(labels) // max(columns, 1))
    foot = 0.02 + 0.055 * rows
    if labels:
        figure.legend(handles, labels, loc="lower center", ncol=columns, frameon=False)
    figure.tight_layout(rect=(0, foot, 1, 0.99))
    # Beside its place and renamed, as the results are.
    partial = f"{picture}.partial"
    figure.savefig(partial, dpi=150, format="png")
    os.replace(partial, picture)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            results = json.load(file)
        draw(results, sys.argv[2])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        print(f"plot_training.py: {sys.argv[1]}: {error!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

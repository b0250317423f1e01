#!/usr/bin/python3
"""Draw what `thinwire train --json` wrote: test accuracy, or of a text the perplexity, against epochs and against
bytes sent. Of a system that was trained with several seeds: the mean, in a band of one standard deviation; if one of
them diverged, each by itself.

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
    """The runs of each system, in the order of the first ones."""
    groups = {}
    for result in results:
        groups.setdefault(result["label"], []).append(result)
    return list(groups.values())


def title_of(runs: list) -> str:
    failed = sum(1 for run in runs if run["failure"])
    if not failed:
        return runs[0]["label"]
    return runs[0]["label"] + (" (diverged)" if failed == len(runs) else f" ({failed} of {len(runs)} diverged)")


def mean(values: list) -> float:
    return sum(values) / len(values)


def deviation(values: list) -> float:
    """Of the sample; of a single value 0."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def curves_of(runs: list, measure: str) -> list:
    """What is drawn of a system: (epochs, values, deviations, bytes sent) of the mean over its runs, or of each run if one
    failed: a mean would hide it. Runs without an epoch have nothing to draw."""
    begun = [run for run in runs if run["epochs"]]
    if not begun:
        return []
    groups = [begun] if not any(run["failure"] for run in runs) else [[run] for run in begun]
    curves = []
    for group in groups:
        count = min(len(run["epochs"]) for run in group)
        # A perplexity that overflowed is null: a gap in the line.
        values = [
            [math.nan if run["epochs"][at][measure] is None else run["epochs"][at][measure] for run in group]
            for at in range(count)
        ]
        curves.append((
            [epoch["epoch"] for epoch in group[0]["epochs"][:count]],
            [mean(of_seeds) for of_seeds in values],
            [deviation(of_seeds) for of_seeds in values],
            [mean([run["epochs"][at]["wire_bytes_so_far"] for run in group]) for at in range(count)],
        ))
    return curves


def same_line(one: list, other: list) -> bool:
    """Whether two systems' lines lie upon each other, as those of exact systems do."""
    close = lambda a, b: len(a) == len(b) and all(math.isclose(x, y, rel_tol=2e-3) for x, y in zip(a, b))  # noqa: E731
    return len(one) == len(other) and all(close(a[1], b[1]) for a, b in zip(one, other))


def widen(axes, perplexity: bool) -> None:
    """Limits at least so far apart that hundredths of a percent do not fill the picture."""
    low, high = axes.get_ylim()
    least = 0.1 * high if perplexity else 0.04
    if high - low >= least:
        return
    middle = (low + high) / 2
    low, high = middle - least / 2, middle + least / 2
    if not perplexity and high > 1:
        low, high = 1 - least, 1
    axes.set_ylim(max(0.0, low), high)


def make(results: list):
    """The figure."""
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (by_epoch, by_bytes) = plt.subplots(1, 2, figsize=(10.5, 4.3), sharey=True)
    sent_anything = False
    # Of a text every epoch has a perplexity, of anything else none.
    perplexity = any(epoch.get("perplexity") is not None for result in results for epoch in result["epochs"])
    measure = "perplexity" if perplexity else "test_accuracy"
    systems = by_label(results)
    curves = [curves_of(runs, measure) for runs in systems]
    last_epoch = max((max(numbers) for of_system in curves for numbers, *_ in of_system), default=1)
    for i, runs in enumerate(systems):
        # What a later line will cover is drawn wider.
        covered = sum(1 for later in curves[i + 1:] if last_epoch > 1 and curves[i] and same_line(curves[i], later))
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": ["-", "--", ":"][i // len(COLOURS) % 3],
            "markersize": 5 + 4 * covered,
            "linewidth": 1.7 + 2.5 * covered,
        }
        title = title_of(runs)
        if not curves[i]:
            by_epoch.plot([], [], label=title, **style)
        for at, (numbers, measured, spread, sent) in enumerate(curves[i]):
            # Of a single epoch there are only points: side by side.
            places = [1 + 0.06 * (i - (len(systems) - 1) / 2)] if last_epoch == 1 else numbers
            by_epoch.plot(places, measured, label=title if at == 0 else None, **style)
            if any(spread) and last_epoch > 1:
                low = [max(0.0, middle - width) for middle, width in zip(measured, spread)]
                high = [middle + width if perplexity else min(1.0, middle + width) for middle, width in zip(measured, spread)]
                by_epoch.fill_between(numbers, low, high, color=style["color"], alpha=0.18, linewidth=0)
            # A single worker sends nothing, which has no place on a logarithmic axis.
            if sent[-1] > 0:
                by_bytes.plot(sent, measured, **style)
                sent_anything = True

    by_epoch.set_xlabel("epoch")
    by_epoch.set_ylabel("test perplexity (lower is better)" if perplexity else "test accuracy")
    if last_epoch == 1:
        by_epoch.set_xlim(0.5, 1.5)
        by_epoch.set_xticks([1])
    else:
        by_epoch.xaxis.set_major_locator(MaxNLocator(integer=True))
    widen(by_epoch, perplexity)
    if not perplexity:
        by_epoch.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    by_bytes.set_xlabel("sent per worker so far (logarithmic)")
    if sent_anything:
        by_bytes.set_xscale("log")
        low, high = by_bytes.get_xlim()
        # Few decades: marks at 1, 2 and 5 as well, else a picture of one system would have none.
        decades = high / low < 1e3
        if high / low < 4:  # and fewer still
            middle = math.sqrt(low * high)
            by_bytes.set_xlim(min(low, middle / 2), max(high, middle * 2))
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
    return figure


def draw(results: list, picture: str) -> None:
    # Beside its place and renamed, as the results are.
    partial = f"{picture}.partial"
    make(results).savefig(partial, dpi=150, format="png")
    os.replace(partial, picture)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            results = json.load(file)
    except (OSError, ValueError) as error:
        print(f"plot_training.py: {sys.argv[1]}: {error!r}", file=sys.stderr)
        return 1
    try:
        draw(results, sys.argv[2])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        print(f"plot_training.py: {sys.argv[2]}: {error!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""Draw what `thinwire simulate --json` wrote: time of a step's communication over that of dense.

Usage: plot_simulation.py RESULTS.json PICTURE.png

The horizontal axis is what varies: workers, else density, else gamma. Where more than one varies, each value of the
others has a curve of its own. Exit status: 0 drawn, 1 failed (one line on stderr), 2 wrong usage, 3 matplotlib is
missing (says nothing: the caller tells what to install).
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
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator  # noqa: E402

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; markers say the same once more.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
LINES = ["-", "--", ":", "-."]
YARDSTICK = "dense"

# What may vary: its key as asked for, the key to fall back on, and its name on an axis.
DIMENSIONS = [
    ("workers", "workers", "workers"),
    ("density_wanted", "density_in", "density of one worker's gradient"),
    ("gamma_wanted", "gamma", "gamma: union of all workers over one worker's rows"),
]


def value_of(result: dict, dimension: tuple) -> float:
    wanted = result.get(dimension[0])
    return result[dimension[1]] if wanted is None else wanted


def varies(results: list, dimension: tuple) -> bool:
    # A gamma that nobody asked for follows from the others.
    if dimension[0] == "gamma_wanted" and any(r.get("gamma_wanted") is None for r in results):
        return False
    return len({value_of(r, dimension) for r in results}) > 1


def count_text(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def same_curve(one: list, other: list) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=0.02) for a, b in zip(one, other))


def make(results: list):
    """The figure."""
    varying = [d for d in DIMENSIONS if varies(results, d)] or [DIMENSIONS[0]]
    across, others = varying[0], varying[1:]
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(7.5, 4.8))

    systems = list(dict.fromkeys(r["spec"] for r in results))
    settings = sorted({tuple(value_of(r, d) for d in others) for r in results})
    def curve_of(spec: str, setting: tuple) -> list:
        return sorted(
            (value_of(r, across), r["time_vs_dense"])
            for r in results
            if r["spec"] == spec and tuple(value_of(r, d) for d in others) == setting
        )

    drawn = [spec for spec in systems if spec != YARDSTICK]
    for i, spec in enumerate(drawn):
        for j, setting in enumerate(settings):
            curve = curve_of(spec, setting)
            # What a later curve will cover is drawn wider.
            covered = sum(1 for later in drawn[i + 1:] if same_curve(curve, curve_of(later, setting)))
            names = [f"{d[2].split(':')[0].split(' ')[0]} {v:g}" for d, v in zip(others, setting)]
            axes.plot(
                [x for x, _ in curve],
                [y for _, y in curve],
                color=COLOURS[i % len(COLOURS)],
                marker=MARKERS[i % len(MARKERS)],
                linestyle=LINES[j % len(LINES)],
                markersize=5 + 4 * covered,
                linewidth=1.7 + 2.5 * covered,
                label=", ".join([spec, *names]),
            )
    axes.axhline(1, color="#666666", linewidth=1.2)
    # Beside the axes, where no curve is.
    axes.annotate("dense", (1, 1), xycoords=("axes fraction", "data"), xytext=(4, 0), ha="left", va="center",
                  textcoords="offset points", color="#666666")

    places = sorted({value_of(r, across) for r in results})
    if len(places) > 1 and places[0] > 0 and places[-1] / places[0] >= 4:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(across[2])
    axes.set_ylabel("time of a step over that of dense")
    ratios = [r["time_vs_dense"] for r in results]
    if max(ratios) > 4:  # what lies below 1 must remain legible
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)

    first = results[0]
    scale = first["scale"]
    facts = [f"{count_text(first['elements'] * scale)} elements", first["link"]]
    facts += [
        f"{d[2].split(':')[0].split(' ')[0]} {value_of(first, d):g}"
        for d in DIMENSIONS
        if d not in varying and (d[0] != "gamma_wanted" or first.get("gamma_wanted") is not None)
    ]
    if first["row_width"] > 1:
        facts.append(f"rows of {first['row_width']}")
    if first.get("contiguous"):
        facts.append("popular rows side by side")
    codecs = {str(r["codec"]) for r in results if r["spec"] != YARDSTICK}
    if codecs - {"off"}:
        facts.append("computing charged")
    axes.set_title(", ".join(facts), fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    rows = 0
    if labels:
        columns = min(len(labels), 3 if max(map(len, labels)) < 30 else 2)
        rows = -(-len(labels) // columns)
        figure.legend(handles, labels, loc="lower center", ncol=columns, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.01 + 0.045 * rows, 1, 1))
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
        print(f"plot_simulation.py: {sys.argv[1]}: {error!r}", file=sys.stderr)
        return 1
    try:
        draw(results, sys.argv[2])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        print(f"plot_simulation.py: {sys.argv[2]}: {error!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""Draw what `thinwire simulate --json` wrote: time of a step's communication over that of dense.

Usage: plot_simulation.py RESULTS.json PICTURE.png

The horizontal axis is what varies: workers, else density, else gamma. Where more than one varies, each value
of the others has a curve of its own. Exit status: 0 drawn, 1 failed (one line on stderr), 2 wrong usage, 3
matplotlib is missing (says nothing: the caller tells what to install).
"""
import math
import sys

sys.dont_write_bytecode = True  # where it is installed nothing is added
from plotting import figure, legend_below, main, style, with_prefix  # noqa: E402

try:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
except ImportError:
    sys.exit(3)

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


def value_text(result: dict, dimension: tuple) -> str:
    return f"{dimension[2].split(':')[0].split(' ')[0]} {value_of(result, dimension):g}"


def varies(results: list, dimension: tuple) -> bool:
    # A gamma that nobody asked for follows from the others.
    if dimension[0] == "gamma_wanted" and any(r.get("gamma_wanted") is None for r in results):
        return False
    return len({value_of(r, dimension) for r in results}) > 1


def same_curve(one: list, other: list) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=0.02) for a, b in zip(one, other))


def draw_curves(axes, results: list, across: tuple, others: list) -> None:
    """A colour for each system, a kind of line for each setting of the other dimensions."""
    def setting_of(result: dict) -> tuple:
        return tuple(value_of(result, d) for d in others)

    def curve_of(spec: str, setting: tuple) -> list:
        return sorted((value_of(r, across), r["time_vs_dense"]) for r in results
                      if r["spec"] == spec and setting_of(r) == setting)

    drawn = [spec for spec in dict.fromkeys(r["spec"] for r in results) if spec != YARDSTICK]
    settings = {setting_of(r): ", ".join(value_text(r, d) for d in others) for r in results}
    for i, spec in enumerate(drawn):
        for j, setting in enumerate(sorted(settings)):
            curve = curve_of(spec, setting)
            covered = sum(1 for later in drawn[i + 1:] if same_curve(curve, curve_of(later, setting)))
            axes.plot([x for x, _ in curve], [y for _, y in curve],
                      label=", ".join(filter(None, [spec, settings[setting]])),
                      **{**style(i, covered), "linestyle": LINES[j % len(LINES)]})
    axes.axhline(1, color="#666666", linewidth=1.2)
    # Beside the axes, where no curve is.
    axes.annotate("dense", (1, 1), xycoords=("axes fraction", "data"), xytext=(4, 0), ha="left", va="center",
                  textcoords="offset points", color="#666666")


def scale_axes(axes, places: list, ratios: list) -> None:
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if len(places) > 1 and places[0] > 0 and places[-1] / places[0] >= 4:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(plain)
    axes.set_ylabel("time of a step over that of dense")
    if max(ratios) > 4:  # what lies below 1 must remain legible
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)


def facts_of(results: list, varying: list) -> list:
    """What all results have in common."""
    first = results[0]
    facts = [f"{with_prefix(first['elements'] * first['scale'])} elements", first["link"]]
    facts += [value_text(first, d) for d in DIMENSIONS
              if d not in varying and (d[0] != "gamma_wanted" or first.get("gamma_wanted") is not None)]
    if first["row_width"] > 1:
        facts.append(f"rows of {first['row_width']}")
    if first.get("contiguous"):
        facts.append("popular rows side by side")
    if {str(r["codec"]) for r in results if r["spec"] != YARDSTICK} - {"off"}:
        facts.append("computing charged")
    return facts


def make(results: list):
    """The figure."""
    varying = [d for d in DIMENSIONS if varies(results, d)] or [DIMENSIONS[0]]
    across, others = varying[0], varying[1:]
    made, (axes,) = figure(1, (7.5, 4.8))
    draw_curves(axes, results, across, others)
    axes.set_xlabel(across[2])
    scale_axes(axes, sorted({value_of(r, across) for r in results}), [r["time_vs_dense"] for r in results])
    axes.set_title(", ".join(facts_of(results, varying)), fontsize=10)
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    legend_below(made, axes, 3 if longest < 30 else 2, foot=0.01, line=0.045, fontsize=9)
    return made


if __name__ == "__main__":
    sys.exit(main(__doc__, make))

"""What Thinwire's pictures have in common. Importing it takes no matplotlib; drawing does."""
import json
import math
import os
import sys

# Okabe and Ito's colours, which people with any kind of colour vision tell apart;
# markers say the same once more.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]


def figure(columns: int, size: tuple, **how):
    """The figure and a list of its axes, side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
                         "axes.axisbelow": True})
    made, axes = plt.subplots(1, columns, figsize=size, squeeze=False, **how)
    for one in axes[0]:
        one.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    return made, list(axes[0])


def style(at: int, covered: int = 0) -> dict:
    """Of the line number `at`, which `covered` later ones lie upon: it is wider than they are."""
    return {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)],
            "linestyle": ["-", "--", ":"][at // len(COLOURS) % 3], "markersize": 5 + 4 * covered,
            "linewidth": 1.7 + 2.5 * covered}


def legend_below(made, axes, columns: int, foot: float, line: float, top: float = 1, **how) -> None:
    """axes: whose legend it is, or handles and labels.
    foot, line: the height below the legend and of one of its rows, of the picture's; top: where the axes
    end."""
    handles, labels = axes if isinstance(axes, tuple) else axes.get_legend_handles_labels()
    rows = 0
    if labels:
        columns = min(len(labels), columns)
        rows = -(-len(labels) // columns)
        made.legend(handles, labels, loc="lower center", ncol=columns, frameon=False, **how)
    made.tight_layout(rect=(0, foot + line * rows, 1, top))


def epoch_axis(axes, last: int) -> None:
    """A horizontal axis of whole epochs, the first to the last."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    if last == 1:
        axes.set_xlim(0.5, 1.5)
        axes.set_xticks([1])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def with_prefix(value: float, unit: str = "") -> str:
    """2500000 as "2.5 M" and, of bytes, "2.5 MB"."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g} {prefix}{unit}"
    return f"{value:g} {unit}".rstrip()


def mean(values: list) -> float:
    return sum(values) / len(values)


def deviation(values: list) -> float:
    """Of the sample; of a single value none: 0, which nobody prints."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def spread_text(values: list, form: str) -> str:
    """Mean and deviation, the latter of several values only. form: of the mean, as in "+.2f"."""
    text = format(mean(values), form)
    return text if len(values) < 2 else f"{text} ± {deviation(values):{form.lstrip('+')}}"


def main(description: str, make) -> int:
    """The whole of a script that is given results and a picture's name: make(results) is the figure. Exit
    status: 0 drawn, 1 failed (one line on stderr), 2 wrong usage."""
    script = os.path.basename(sys.argv[0])
    if len(sys.argv) != 3:
        print(description, file=sys.stderr)
        return 2
    at = 1
    try:
        with open(sys.argv[at], encoding="utf-8") as file:
            results = json.load(file)
        at = 2
        # Beside its place and renamed, as the results are.
        partial = f"{sys.argv[at]}.partial"
        make(results).savefig(partial, dpi=150, format="png")
        os.replace(partial, sys.argv[at])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        print(f"{script}: {sys.argv[at]}: {error!r}", file=sys.stderr)
        return 1
    return 0

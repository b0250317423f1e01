#!/usr/bin/python3
"""Draw what `thinwire train --json` wrote: test accuracy, or of a text the perplexity, against epochs and
against bytes sent. Of a system that was trained with several seeds: the mean, in a band of one standard
deviation; if one of them diverged, each by itself.

Usage: plot_training.py RESULTS.json PICTURE.png

Exit status: 0 drawn, 1 failed (one line on stderr), 2 wrong usage, 3 matplotlib is missing (says nothing: the
caller tells what to install).
"""
import math
import sys

sys.dont_write_bytecode = True  # where it is installed nothing is added
from plotting import deviation, epoch_axis, figure, legend_below, main, mean, style, with_prefix  # noqa: E402

try:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
except ImportError:
    sys.exit(3)


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
    return runs[0]["label"] + (" (diverged)" if failed == len(runs)
                               else f" ({failed} of {len(runs)} diverged)")


def curves_of(runs: list, measure: str) -> list:
    """What is drawn of a system: (epochs, values, deviations, bytes sent) of the mean over its runs, or of
    each run if one failed: a mean would hide it. Runs without an epoch have nothing to draw."""
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
    def close(a, b):
        return len(a) == len(b) and all(math.isclose(x, y, rel_tol=2e-3) for x, y in zip(a, b))

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


def draw_curves(by_epoch, by_bytes, results: list, perplexity: bool) -> int:
    """Every system's curves. Returns the last epoch."""
    systems = by_label(results)
    curves = [curves_of(runs, "perplexity" if perplexity else "test_accuracy") for runs in systems]
    last_epoch = max((max(numbers) for of_system in curves for numbers, *_ in of_system), default=1)
    for i, runs in enumerate(systems):
        covered = sum(1 for later in curves[i + 1:] if last_epoch > 1 and curves[i]
                      and same_line(curves[i], later))
        how = style(i, covered)
        if last_epoch == 1:  # there is no line that leads the eye to the point
            how = {**how, "linestyle": "none", "markersize": 11}
        title = title_of(runs)
        if not curves[i]:
            by_epoch.plot([], [], label=title, **how)
        for at, (numbers, measured, spread, sent) in enumerate(curves[i]):
            # Of a single epoch there are only points: side by side.
            places = [1 + 0.06 * (i - (len(systems) - 1) / 2)] if last_epoch == 1 else numbers
            by_epoch.plot(places, measured, label=title if at == 0 else None, **how)
            if any(spread) and last_epoch > 1:
                low = [max(0.0, middle - width) for middle, width in zip(measured, spread)]
                high = [middle + width if perplexity else min(1.0, middle + width)
                        for middle, width in zip(measured, spread)]
                by_epoch.fill_between(numbers, low, high, color=how["color"], alpha=0.18, linewidth=0)
            # A single worker sends nothing, which has no place on a logarithmic axis.
            if sent[-1] > 0:
                by_bytes.plot(sent, measured, **how)
    return last_epoch


def scale_bytes(axes) -> None:
    """A logarithmic axis, unless nothing was drawn."""
    axes.set_xlabel("sent per worker so far (logarithmic)")
    if not axes.get_lines():
        return
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    # Few decades: marks at 1, 2 and 5 as well, else a picture of one system would have none.
    decades = high / low < 1e3
    if high / low < 4:  # and fewer still
        middle = math.sqrt(low * high)
        axes.set_xlim(min(low, middle / 2), max(high, middle * 2))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: with_prefix(value, "B")))
    axes.xaxis.set_minor_formatter(NullFormatter())


def make(results: list):
    """The figure."""
    made, (by_epoch, by_bytes) = figure(2, (10.5, 4.3), sharey=True)
    # Of a text every epoch has a perplexity, of anything else none.
    perplexity = any(epoch.get("perplexity") is not None for result in results for epoch in result["epochs"])
    last_epoch = draw_curves(by_epoch, by_bytes, results, perplexity)
    by_epoch.set_ylabel("test perplexity (lower is better)" if perplexity else "test accuracy")
    epoch_axis(by_epoch, last_epoch)
    widen(by_epoch, perplexity)
    if not perplexity:
        by_epoch.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    scale_bytes(by_bytes)
    first = results[0]
    workers = first["workers"]
    made.suptitle(
        f"{first['model']} on {first['data'].split(':')[0]}, {workers} worker{'s' if workers != 1 else ''}, "
        f"{first['batch']} examples per worker and step, {first['parameters']:,} parameters",
        fontsize=11,
    )
    legend_below(made, by_epoch, 3, foot=0.02, line=0.055, top=0.99)
    return made


if __name__ == "__main__":
    sys.exit(main(__doc__, make))

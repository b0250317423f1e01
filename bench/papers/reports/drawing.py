"""How the experiments' pictures look. Where a seed diverged or collapsed every seed is drawn by
itself, never a mean."""
import math

import plotting
from plotting import COLOURS, deviation, epoch_axis, mean
from runs import DIFFERENCE, System, describe, named, systems_in, table


def figure(columns: int = 1):
    return plotting.figure(columns, (5.2 * columns + 1.3, 4.4))


def style(at: int) -> dict:
    return {**plotting.style(at), "linewidth": 1.6}


def place(axes, name: str) -> int:
    """The number of the style that a name has, in all panels of a picture."""
    places = vars(axes.figure).setdefault("places_of_names", {})
    return places.setdefault(name, len(places))


def colour_of(handle) -> tuple:
    from matplotlib.colors import to_rgba

    drawn = handle[0] if isinstance(handle, tuple) else handle  # the line of error bars, one of several bars
    if hasattr(drawn, "get_color"):
        return to_rgba(drawn.get_color())
    return to_rgba(drawn.get_facecolor() if drawn.get_fill() else drawn.get_edgecolor())


def legend(made, columns: int = 3) -> None:
    """Of all panels. ValueError where a label has another colour in one of them."""
    handles = {}
    for axes in made.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            if colour_of(handles.setdefault(label, handle)) != colour_of(handle):
                raise ValueError(f"{label!r} has two colours in one picture")
    plotting.legend_below(made, (list(handles.values()), list(handles)), columns, foot=0.03, line=0.045, fontsize=8)


def limits(middle: float, width: float, top: float = 100.0) -> list:
    """How far an error bar goes down and up: no share is below 0 or above the whole."""
    return [[min(width, middle)], [min(width, top - middle)]]


def point(axes, x: float, system: System, **how) -> None:
    """Accuracy in percent: mean and deviation, or an open marker for each seed and what
    became of the others."""
    if system.whole():
        axes.errorbar(x, 100 * system.accuracy(), yerr=limits(100 * system.accuracy(), 100 * system.spread()), capsize=3, **how)
        return
    values = [100 * value for value in system.accuracies.values()]
    axes.plot([x] * len(values), values, **{**how, "linestyle": "none", "markerfacecolor": "none"})
    axes.annotate(system.trouble(), (x, max(values, default=0)), textcoords="offset points", xytext=(0, 7), fontsize=7, ha="center")


def plot_epochs(axes, systems: list, key: str, name: str, label=lambda system: system.label, top: float = math.inf) -> None:
    """top: the largest value there can be."""
    for system in systems:
        at = place(axes, label(system))
        runs = system.by_epoch(key)
        title = label(system) + (f" ({system.trouble()})" if system.trouble() else "")
        if not runs:
            axes.plot([], [], label=title, **style(at))
            continue
        if not system.whole():
            for one, values in enumerate(runs):
                axes.plot(range(1, len(values) + 1), values, label=title if one == 0 else None,
                          **{**style(at), "markerfacecolor": "none", "linewidth": 0.9})
            continue
        by_epoch = list(zip(*runs))
        epochs = range(1, len(by_epoch) + 1)
        axes.plot(epochs, [mean(values) for values in by_epoch], label=title, **style(at))
        axes.fill_between(epochs, [max(0.0, mean(values) - deviation(values)) for values in by_epoch],
                          [min(top, mean(values) + deviation(values)) for values in by_epoch],
                          color=COLOURS[at % len(COLOURS)], alpha=0.15, linewidth=0)
    axes.set_ylabel(name)
    epoch_axis(axes, max((len(values) for system in systems for values in system.by_epoch(key)), default=0))


def bars(axes, names: list, systems: list) -> None:
    """Accuracies in percent, and of a system that failed for some seeds a hatched outline up to its best,
    with every finished seed as a cross. None: nothing there finished."""
    for at, system in enumerate(systems):
        colour = COLOURS[at % len(COLOURS)]
        if system is None or not system.accuracies:
            axes.text(at, 1, "diverged", ha="center", va="bottom", rotation=90, fontsize=7)
            continue
        values = [100 * value for value in system.accuracies.values()]
        if system.whole():
            middle, width = mean(values), deviation(values)
            axes.bar(at, middle, color=colour, yerr=limits(middle, width) if len(values) > 1 else None, capsize=3)
            axes.text(at, min(100.0, middle + width) + 1, f"{middle:.1f}", ha="center", va="bottom", fontsize=7)
        else:
            axes.bar(at, max(values), facecolor="none", edgecolor=colour, hatch="//", linewidth=0.8, alpha=0.6)
            axes.plot([at] * len(values), values, linestyle="none", marker="x", color="#000000", markersize=5)
            axes.text(at, max(values) + 1, system.trouble().replace(", ", "\n").replace(" diverged", "\ndiverged").replace(
                " collapsed", "\ncollapsed"), ha="center", va="bottom", fontsize=6)
    axes.set_xticks(range(len(names)))
    axes.set_xticklabels(names, rotation=30, ha="right", fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylim(0, 105)


def panels_of_bars(shown: dict, name=lambda system: system.label):
    """A panel of accuracies for each title, of its systems."""
    made, all_axes = figure(len(shown))
    for axes, (title, systems) in zip(all_axes, shown.items()):
        bars(axes, [name(system) for system in systems], systems)
        axes.set_title(title, fontsize=10)
    all_axes[0].set_ylabel("test accuracy, %")
    made.tight_layout()
    return made


def loss_and_accuracy(parts: dict, label, paper: str) -> tuple:
    """Trainings of one call: loss by epoch and accuracy."""
    systems = systems_in(parts["train"])
    made, (losses, accuracies) = figure(2)
    plot_epochs(losses, systems, "loss", "training loss", label)
    plot_epochs(accuracies, systems, "test_accuracy", "test accuracy", label, 1.0)
    legend(made)
    rows = []
    dense = named(systems, "dense")
    for system in systems:
        rows.append([f"`{system.label}`", system.at_the_end("loss"), system.accuracy_text(),
                     "" if system is dense else system.difference_text(dense), f"{system.bytes:,.0f}"])
    head = ["system", "training loss, last epoch", "test accuracy, %", DIFFERENCE, "bytes per worker and step"]
    return paper + "\n\n" + describe(parts["train"]) + "\n\n" + table(head, rows), made

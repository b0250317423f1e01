"""Marsit: each experiment's table and figure."""
from drawing import bars, figure, legend, plot_epochs, point, style
from runs import DIFFERENCE, System, accuracy_table, compression, describe, named, systems_in, table


def best_rate(systems: list) -> System:
    """Of those that every seed finished, if there are any."""
    finished = [system for system in systems if system.accuracies]
    finished = [system for system in finished if system.whole()] or finished
    return max(finished, key=lambda system: system.accuracy()) if finished else None


def marsit_table_1(parts: dict) -> tuple:
    paper = {("cascading_sign", 3): "87.2 ± 2.31", ("cascading_sign", 8): "divergence", ("dense", 3): "99.1 ± 0.13", ("dense", 8): "99.2 ± 0.07"}
    groups = {}
    for name, results in parts.items():
        system, workers, _ = name.rsplit("_", 2)
        groups.setdefault((system, int(workers)), []).extend(systems_in(results))
    rows = []
    names, shown = [], []
    for (name, workers), systems in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1])):
        best = best_rate(systems)
        tried = "; ".join(f"{system.runs[0]['lr']:g}: {system.accuracy_text()}"
                          for system in sorted(systems, key=lambda system: -system.runs[0]["lr"]))
        rows.append([f"`{name}`", workers, best.accuracy_text() if best else "diverged", tried, paper[(name, workers)]])
        names.append(f"{name}, {workers} workers")
        shown.append(best)
    made, (axes,) = figure()
    bars(axes, names, shown)
    axes.set_ylabel("test accuracy at the best rate, %")
    made.tight_layout()
    head = ["system", "workers", "best, %", "by learning rate", "paper (MNIST, AlexNet)"]
    runs = [run for results in parts.values() for run in results if run["workers"] == 3]
    return describe(runs) + " On 8 workers: the same batch of all together.\n\n" + table(head, rows), made


def marsit_table_2(parts: dict) -> tuple:
    systems = systems_in(parts["train"] + parts["ssdm"])
    dense = named(systems, "dense")
    paper = {"dense": "93.42", "signsgd": "88.92", "ef_signsgd": "91.85", "ssdm": "89.18", "marsit:full_every=100": "92.18",
             "marsit:full_every=0": "90.15"}
    made, (axes,) = figure()
    bars(axes, [system.label for system in systems], systems)
    axes.set_ylabel("test accuracy, %")
    made.tight_layout()
    return describe(parts["train"] + parts["ssdm"]) + "\n\n" + accuracy_table(systems, dense, ("paper, ResNet-20 on CIFAR-10", paper)), made


def k_of(system: System) -> str:
    every = system.options.get("full_every")
    return "dense" if every is None else "K = ∞" if every == "0" else f"K = {every}"


def marsit_figure_3(parts: dict) -> tuple:
    systems = systems_in(parts["train"])
    dense = named(systems, "dense")
    paper = {"1": ("93.42", "32"), "50": ("92.28", "1.62"), "100": ("91.73", "1.31"), "200": ("92.00", "1.16"), "0": ("90.75", "1")}
    made, (by_epoch, by_bits) = figure(2)
    plot_epochs(by_epoch, systems, "test_accuracy", "test accuracy", k_of, 1.0)
    rows = []
    for at, system in enumerate(systems):
        bits = 32 / compression(system, dense)
        point(by_bits, bits, system, **style(at))
        theirs = paper.get(system.options.get("full_every"), ("", ""))
        rows.append([k_of(system), system.accuracy_text(), "" if system is dense else system.difference_text(dense), f"{bits:.2f}", *theirs])
    by_bits.set_xscale("log", base=2)
    by_bits.xaxis.set_major_formatter("{x:g}")
    by_bits.set_xlabel("bits per element, frames included")
    by_bits.set_ylabel("test accuracy, %")
    legend(made, by_epoch)
    head = ["K", "test accuracy, %", DIFFERENCE, "bits per element, frames included", "paper's accuracy", "paper's bits"]
    return describe(parts["train"]) + "\n\n" + table(head, rows), made

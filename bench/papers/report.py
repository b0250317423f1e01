#!/usr/bin/python3
"""Tables and plots of the papers' experiments, from what `thinwire` wrote.

Usage: report.py EXPERIMENT FOLDER SMALLER [NOTE]

Reads FOLDER/*.json and writes FOLDER/table.md and FOLDER/plot.png. SMALLER says what is smaller than in the paper, NOTE
whatever else should stand in the table's head. Accuracies are means over seeds, with the standard deviation of the sample;
differences to dense are taken seed by seed first, for a seed's order of examples moves all systems alike.
"""
import glob
import json
import math
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter  # noqa: E402

# Okabe and Ito's colours, as in the other plots.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]


# --- Reading -----------------------------------------------------------------------------------------------------------

def load(folder: str) -> dict:
    """Results by part: what each call of thinwire wrote."""
    parts = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path, encoding="utf-8") as file:
            parts[os.path.basename(path)[: -len(".json")]] = json.load(file)
    if not parts:
        raise ValueError(f"no results in {folder}")
    return parts


def options_of(spec: str) -> dict:
    """Of the last system in a spec: {"": name, option: value}."""
    words = spec.split("+")[-1].split(":")
    return {"": words[0], **dict(word.split("=", 1) for word in words[1:])}


def mean(values: list) -> float:
    return sum(values) / len(values)


def deviation(values: list) -> float:
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


class System:
    """One system's trainings with several seeds."""

    def __init__(self, runs: list):
        self.runs = runs
        self.label = runs[0]["label"]
        self.options = options_of(self.label)
        self.accuracies = {run["seed"]: run["test_accuracy"] for run in runs if run["test_accuracy"] is not None}
        self.bytes = mean([run["wire_bytes_sent_max"] for run in runs])
        self.failed = sum(1 for run in runs if run["failure"])

    def accuracy(self) -> float:
        return mean(list(self.accuracies.values())) if self.accuracies else math.nan

    def spread(self) -> float:
        return deviation(list(self.accuracies.values()))

    def accuracy_text(self) -> str:
        if self.failed == len(self.runs):
            return "diverged"
        text = f"{100 * self.accuracy():.2f} ± {100 * self.spread():.2f}"
        return text + (f" ({self.failed} of {len(self.runs)} diverged)" if self.failed else "")

    def difference_text(self, other: "System") -> str:
        """In percentage points, over the seeds that both finished."""
        common = [100 * (self.accuracies[seed] - other.accuracies[seed]) for seed in self.accuracies
                  if seed in other.accuracies]
        return f"{mean(common):+.2f} ± {deviation(common):.2f}" if common else "-"

    def by_epoch(self, key: str) -> tuple:
        """Epochs, and over seeds mean and deviation of a key, as far as all runs went."""
        # Runs that diverged are counted in accuracy_text(); they have no loss to average.
        runs = [run for run in self.runs if not run["failure"]] or self.runs
        count = min(len(run["epochs"]) for run in runs)
        values = [[run["epochs"][at][key] for run in runs] for at in range(count)]
        values = [[math.nan if value is None else value for value in of_seeds] for of_seeds in values]
        return range(1, count + 1), [mean(v) for v in values], [deviation(v) for v in values]


def systems_in(results: list) -> list:
    groups = {}
    for run in results:
        groups.setdefault(run["label"], []).append(run)
    return [System(runs) for runs in groups.values()]


def named(systems: list, label: str) -> System:
    return next(system for system in systems if system.label == label)


# --- Writing -----------------------------------------------------------------------------------------------------------

def table(head: list, rows: list) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def compression(system: System, dense: System) -> float:
    return dense.bytes / system.bytes if system.bytes > 0 else math.nan


def accuracy_table(systems: list, dense: System, paper=None, label=lambda system: f"`{system.label}`") -> str:
    """paper: a column's head and what the paper has for each label."""
    head = ["system", "test accuracy, %", "less dense's, seed by seed", "bytes per worker and step", "times fewer than dense"]
    rows = []
    for system in systems:
        row = [label(system), system.accuracy_text(), "" if system is dense else system.difference_text(dense),
               f"{system.bytes:,.0f}", f"{compression(system, dense):.1f}"]
        rows.append(row + ([paper[1].get(system.label, "")] if paper else []))
    return table(head + ([paper[0]] if paper else []), rows)


def describe(results: list) -> str:
    one = max(results, key=lambda run: len(run["epochs"]))
    seeds = sorted({run["seed"] for run in results})
    return (f"{one['model']} ({one['parameters']:,} parameters) on {one['data'].split(':')[0]}, {one['workers']} workers, batch of "
            f"{one['batch']} per worker, {len(one['epochs'])} epochs of {one['epochs'][0]['steps'] if one['epochs'] else 0} steps, "
            f"learning rate {one['lr']:g} ({one['lr_schedule']}), seeds {', '.join(map(str, seeds))}.")


def figure(columns: int = 1):
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True})
    made, axes = plt.subplots(1, columns, figsize=(5.2 * columns + 1.3, 4.4), squeeze=False)
    for one in axes[0]:
        one.grid(True, color="#DDDDDD", linewidth=0.7)
    return made, list(axes[0])


def style(at: int) -> dict:
    return {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)],
            "linestyle": ["-", "--", ":"][at // len(COLOURS) % 3], "markersize": 5, "linewidth": 1.6}


def legend(made, axes, columns: int = 3) -> None:
    handles, labels = axes.get_legend_handles_labels()
    rows = -(-len(labels) // columns)
    made.legend(handles, labels, loc="lower center", ncol=columns, frameon=False, fontsize=8)
    made.tight_layout(rect=(0, 0.03 + 0.045 * rows, 1, 1))


def plot_epochs(axes, systems: list, key: str, name: str, label=lambda system: system.label) -> None:
    for at, system in enumerate(systems):
        epochs, middle, width = system.by_epoch(key)
        axes.plot(epochs, middle, label=label(system), **style(at))
        low = [m - w for m, w in zip(middle, width)]
        high = [m + w for m, w in zip(middle, width)]
        axes.fill_between(epochs, low, high, color=COLOURS[at % len(COLOURS)], alpha=0.15, linewidth=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def bars(axes, names: list, values: list, errors=None, formatted="{:.2f}") -> None:
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    drawn = axes.bar(range(len(names)), values, yerr=errors, capsize=3, color=colours)
    axes.set_xticks(range(len(names)))
    axes.set_xticklabels(names, rotation=30, ha="right", fontsize=8)
    axes.bar_label(drawn, labels=[formatted.format(value) if value > 0 else "diverged" for value in values], fontsize=7, padding=2)


# --- The experiments: each returns the table and the figure --------------------------------------------------------------

def sketched_sgd_figure_5(parts: dict) -> tuple:
    dense = systems_in(parts["dense"])[0]
    top = systems_in(parts["global_top_k"])
    sketched = systems_in(parts["sketched_sgd"])
    made, (axes,) = figure()
    axes.axhline(100 * dense.accuracy(), color=COLOURS[1], linewidth=1.5, label="dense")
    ratios = [system.options["ratio"] for system in top]
    for at, system in enumerate(top):
        axes.axhline(100 * system.accuracy(), color=COLOURS[(at + 2) % len(COLOURS)], linestyle="--", linewidth=1,
                     label=f"true top-k, k = {100 * float(ratios[at]):g} %")
    for system in sketched:
        at = ratios.index(system.options["ratio"]) if system.options["ratio"] in ratios else len(ratios)
        axes.errorbar(compression(system, dense), 100 * system.accuracy(), yerr=100 * system.spread(), capsize=3,
                      color=COLOURS[(at + 2) % len(COLOURS)], marker=MARKERS[at % len(MARKERS)])
        axes.annotate(f"P {system.options['p']}", (compression(system, dense), 100 * system.accuracy()),
                      textcoords="offset points", xytext=(5, 4), fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("compression: dense's bytes over sketched SGD's (points: colour by k)")
    axes.set_ylabel("test accuracy, %")
    legend(made, axes, 2)
    paper = ("The paper (CIFAR-10, ResNet-9): dense about 94 %, sketched SGD no loss at about 4 times, one point at about 8, with its "
             "50 epochs against dense's 24 counted in.\n\n")
    text = paper + describe(parts["dense"]) + "\n\n" + accuracy_table([dense] + top + sketched, dense)
    return text + "\nglobal_top_k finds its elements by a dense all-reduce: what it shows is accuracy.\n", made


def sketched_sgd_figure_6(parts: dict) -> tuple:
    dense = systems_in(parts["dense"])[0]
    top_k = systems_in(parts["global_top_k"])[0]
    points = sorted((int(name.split("_")[1]), systems_in(part)[0]) for name, part in parts.items() if name.startswith("workers_"))
    made, (axes,) = figure()
    axes.errorbar([count for count, _ in points], [100 * system.accuracy() for _, system in points],
                  yerr=[100 * system.spread() for _, system in points], capsize=3, label=points[0][1].options[""], **style(0))
    for at, system in enumerate((dense, top_k), start=1):
        axes.axhline(100 * system.accuracy(), linestyle="--", color=style(at).get("color"),
                     label=f"{system.options['']}, {parts[system.options['']][0]['workers']} workers")
    axes.set_xscale("log", base=2)
    axes.set_xticks([count for count, _ in points])
    axes.set_xticklabels([count for count, _ in points])
    axes.set_xlabel("workers (the same batch of all together)")
    axes.set_ylabel("test accuracy, %")
    legend(made, axes)
    rows = [[parts[system.options[""]][0]["workers"], f"`{system.label}`", system.accuracy_text(),
             "" if system is dense else system.difference_text(dense), f"{system.bytes:,.0f}"] for system in (dense, top_k)]
    rows += [[count, f"`{system.label}`", system.accuracy_text(), system.difference_text(dense), f"{system.bytes:,.0f}"]
             for count, system in points]
    text = "The paper: accuracy does not depend on the number of workers.\n\n" + describe(parts["dense"]) + "\n\n"
    return text + table(["workers", "system", "test accuracy, %", "less dense's, seed by seed", "bytes per worker and step"], rows), made


# ResNet-32 on CIFAR-10.
CASQ_TABLE_1 = {
    "dense": "92.61", "terngrad": "89.78", "qsgd:2": "87.14", "qsgd:3": "89.90", "nuqsgd:2": "65.19", "nuqsgd:3": "82.36", "amq:2": "82.20",
    "amq:3": "91.80", "amq-n:2": "83.15", "amq-n:3": "91.70", "alq:2": "79.21", "alq:3": "92.27", "alq-n:2": "80.80", "alq-n:3": "92.47",
    "casq:2": "92.49", "casq:3": "92.88",
}


def quantizer_name(system) -> str:
    """"alq-n:3": as the paper calls it, and bits."""
    options = options_of(system if isinstance(system, str) else system.label)
    name = options[""] + ("-n" if options.get("normalised") == "on" else "")
    return name + (f":{options['bits']}" if "bits" in options else "")


def casq_table_1(parts: dict) -> tuple:
    systems = systems_in(parts["train"])
    dense = named(systems, "dense")
    paper = {system.label: CASQ_TABLE_1.get(quantizer_name(system), "") for system in systems
             if system.options.get("feedback") != "on"}
    made, (axes,) = figure()
    made.set_size_inches(9, 4.8)
    names = [quantizer_name(s) + (" EF" if s.options.get("feedback") == "on" else "") for s in systems]
    shown = [0.0 if math.isnan(system.accuracy()) else 100 * system.accuracy() for system in systems]
    bars(axes, names, shown, [100 * system.spread() for system in systems], "{:.1f}")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(bottom=max(0.0, min(shown) - 5))
    made.tight_layout()
    text = describe(parts["train"]) + "\n\n" + accuracy_table(systems, dense, ("paper, ResNet-32 on CIFAR-10", paper))
    return text, made


def casq_figure_5(parts: dict) -> tuple:
    names = sorted(parts, key=lambda name: -int(name.split("_")[1]))
    made, all_axes = figure(len(names))
    errors = {}
    for axes, name in zip(all_axes, names):
        results = [result for result in parts[name] if result["spec"] != "dense"]
        for at, result in enumerate(results):
            squares = [error ** 2 for error in result["relative_errors"]]
            errors.setdefault(result["spec"], {})[name] = squares
            axes.plot(range(len(squares)), squares, label=quantizer_name(result["spec"]), **{**style(at), "markersize": 3})
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("recorded step")
        count = int(name.split("_")[1])
        axes.set_title("error of one worker's Q(p)" if count == 1 else f"error of the mean of {count} workers", fontsize=10)
        axes.set_ylabel("squared error over squared gradient")
    legend(made, all_axes[0], 5)
    head = ["quantizer"] + [f"{'one worker' if name.endswith('_1') else name.replace('_', ' ') + ', mean'}: {what}" for name in names
                            for what in ("median over steps", "least to most")]
    rows = []
    for spec, by_part in errors.items():
        row = [f"`{spec}`"]
        for name in names:
            squares = sorted(by_part[name])
            row += [f"{squares[len(squares) // 2]:.3g}", f"{squares[0]:.3g} to {squares[-1]:.3g}"]
        rows.append(row)
    text = ("|Q(p) - p|^2 / |p|^2, or of the mean over workers. The paper's Figure 5: casq with 2 bits errs less than every other quantizer "
            "with 3. terngrad, qsgd, nuqsgd, amq and alq are unbiased: their errors average out over workers and steps, "
            "casq's do so in part.\n\n")
    return text + table(head, rows), made


def loss_and_accuracy(parts: dict, label, paper: str) -> tuple:
    """Trainings of one call: loss by epoch and accuracy."""
    systems = systems_in(parts["train"])
    made, (losses, accuracies) = figure(2)
    plot_epochs(losses, systems, "loss", "training loss", label)
    plot_epochs(accuracies, systems, "test_accuracy", "test accuracy", label)
    legend(made, losses)
    rows = []
    dense = named(systems, "dense")
    for system in systems:
        _, loss, spread = system.by_epoch("loss")
        rows.append([f"`{system.label}`", f"{loss[-1]:.4f} ± {spread[-1]:.4f}" if loss else "-", system.accuracy_text(),
                     "" if system is dense else system.difference_text(dense), f"{system.bytes:,.0f}"])
    head = ["system", "training loss, last epoch", "test accuracy, %", "less dense's, seed by seed", "bytes per worker and step"]
    return paper + "\n\n" + describe(parts["train"]) + "\n\n" + table(head, rows), made


def casq_figure_10(parts: dict) -> tuple:
    return loss_and_accuracy(parts, lambda system: system.options.get("allocation", "dense"),
                             "The paper: with adaptive allocation training converges faster by 18,000 steps than with even.")


def casq_figure_14(parts: dict) -> tuple:
    return loss_and_accuracy(
        parts, lambda system: f"{100 * float(system.options['buckets']):g} % buckets" if "buckets" in system.options else "dense",
        "The paper: more buckets help slightly, from 0.2 % on hardly.")


def best_rate(systems: list) -> System:
    finished = [system for system in systems if not math.isnan(system.accuracy())]
    return max(finished, key=lambda system: system.accuracy()) if finished else None


def marsit_table_1(parts: dict) -> tuple:
    paper = {("cascading_sign", 3): "87.2 ± 2.31", ("cascading_sign", 8): "divergence", ("dense", 3): "99.1 ± 0.13", ("dense", 8): "99.2 ± 0.07"}
    groups = {}
    for name, results in parts.items():
        system, workers, _ = name.rsplit("_", 2)
        groups.setdefault((system, int(workers)), []).extend(systems_in(results))
    rows = []
    names, values, errors = [], [], []
    for (name, workers), systems in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1])):
        best = best_rate(systems)
        tried = ", ".join(f"{system.runs[0]['lr']:g}: {system.accuracy_text()}"
                          for system in sorted(systems, key=lambda system: -system.runs[0]["lr"]))
        rows.append([f"`{name}`", workers, best.accuracy_text() if best else "diverged", tried, paper[(name, workers)]])
        names.append(f"{name}, {workers} workers")
        values.append(100 * best.accuracy() if best else 0.0)
        errors.append(100 * best.spread() if best else 0.0)
    made, (axes,) = figure()
    bars(axes, names, values, errors, "{:.1f}")
    axes.set_ylabel("test accuracy at the best rate, %")
    made.tight_layout()
    head = ["system", "workers", "best, %", "by learning rate", "paper (MNIST, AlexNet)"]
    runs = [run for results in parts.values() for run in results if run["system"] == "dense" and run["workers"] == 3]
    return describe(runs) + " On 8 workers: the same batch of all together.\n\n" + table(head, rows), made


def marsit_table_2(parts: dict) -> tuple:
    systems = systems_in(parts["train"] + parts["ssdm"])
    dense = named(systems, "dense")
    paper = {"dense": "93.42", "signsgd": "88.92", "ef_signsgd": "91.85", "ssdm": "89.18", "marsit:full_every=100": "92.18",
             "marsit:full_every=0": "90.15"}
    made, (axes,) = figure()
    shown = [0.0 if math.isnan(system.accuracy()) else 100 * system.accuracy() for system in systems]
    bars(axes, [system.label for system in systems], shown, [100 * system.spread() for system in systems], "{:.1f}")
    axes.set_ylabel("test accuracy, %")
    made.tight_layout()
    return describe(parts["train"]) + "\n\n" + accuracy_table(systems, dense, ("paper, ResNet-20 on CIFAR-10", paper)), made


def k_of(system: System) -> str:
    every = system.options.get("full_every")
    return "dense" if every is None else "K = ∞" if every == "0" else f"K = {every}"


def marsit_figure_3(parts: dict) -> tuple:
    systems = systems_in(parts["train"])
    dense = named(systems, "dense")
    paper = {"1": ("93.42", "32"), "50": ("92.28", "1.62"), "100": ("91.73", "1.31"), "200": ("92.00", "1.16"), "0": ("90.75", "1")}
    made, (by_epoch, by_bits) = figure(2)
    plot_epochs(by_epoch, systems, "test_accuracy", "test accuracy", k_of)
    rows = []
    for at, system in enumerate(systems):
        bits = 32 / compression(system, dense)
        by_bits.errorbar(bits, 100 * system.accuracy(), yerr=100 * system.spread(), capsize=3, **style(at))
        theirs = paper.get(system.options.get("full_every"), ("", ""))
        rows.append([k_of(system), system.accuracy_text(), "" if system is dense else system.difference_text(dense), f"{bits:.2f}", *theirs])
    by_bits.set_xscale("log", base=2)
    by_bits.xaxis.set_major_formatter("{x:g}")
    by_bits.set_xlabel("bits per element, frames included")
    by_bits.set_ylabel("test accuracy, %")
    legend(made, by_epoch)
    head = ["K", "test accuracy, %", "less dense's, seed by seed", "bits per element, frames included", "paper's accuracy", "paper's bits"]
    return describe(parts["train"]) + "\n\n" + table(head, rows), made


def s2_reducer_figure_8(parts: dict) -> tuple:
    return loss_and_accuracy(
        parts, lambda system: f"lambda {system.options['lambda']}" if "lambda" in system.options else "dense",
        "The paper: lambda 0.5 is as good as 1; below, accuracy falls.")


def zen_figure_13(parts: dict) -> tuple:
    paper = {"LSTM": "6.77", "DeepFM": "2.10", "top_5_percent": "3.44 (OPT-2.7B), 3.51 (Gemma2-2B)"}
    order = [name for name in ("LSTM", "DeepFM", "NMT", "top_5_percent") if name in parts]
    systems = [result["spec"] for result in parts[order[0]] if result["spec"] != "dense"]
    made, (axes,) = figure()
    made.set_size_inches(8, 4.6)
    rows = []
    for at, spec in enumerate(systems):
        speedups = []
        for name in order:
            result = next(result for result in parts[name] if result["spec"] == spec)
            speedups.append(1 / result["time_vs_dense"])
        drawn = axes.bar([place + at * 0.16 for place in range(len(order))], speedups, 0.15, color=COLOURS[at],
                         label=options_of(spec)[""])
        axes.bar_label(drawn, labels=[f"{value:.1f}" for value in speedups], fontsize=6)
        rows.append([f"`{spec}`"] + [f"{value:.2f}" for value in speedups])
    axes.axhline(1, color="#000000", linewidth=0.8)
    axes.set_xticks([place + 0.32 for place in range(len(order))])
    axes.set_xticklabels([name.replace("_", " ") for name in order])
    axes.set_yscale("log")
    axes.set_ylabel("times faster than dense all-reduce")
    legend(made, axes, 5)
    rows.append(["the paper's zen"] + [paper.get(name, "") for name in order])
    return "Communication at 16 workers, times faster than dense.\n\n" + table(["system"] + [n.replace("_", " ") for n in order], rows), made


def zen_figure_15(parts: dict) -> tuple:
    # Of the largest sender, without frame headers, as a share of dense's bytes of an all-gather.
    by_density = {}
    for result in parts["formats"]:
        payload = result["wire_bytes_sent_max"] - result["frame_header_bytes_max"]
        by_density.setdefault(result["density_wanted"], {})[result["spec"]] = payload
    workers = parts["formats"][0]["workers"]
    elements = parts["formats"][0]["elements"]
    dense_pull = 4 * elements * (workers - 1) / workers
    lines = {"lists (COO)": [], "hash bitmap": [], "blocks of 256 (OmniReduce)": [], "bitmap of all indices (computed)": []}
    densities = sorted(by_density)
    for density in densities:
        sizes = by_density[density]
        push = sizes["zen:scheme=push_pull:pull=list"] / 2
        lines["lists (COO)"].append(push / dense_pull)
        lines["hash bitmap"].append((sizes["zen:scheme=push_pull"] - push) / dense_pull)
        lines["blocks of 256 (OmniReduce)"].append(sizes["omnireduce"] / 2 / dense_pull)
        # Owners that share indices by hashing have places all over: each needs a bit for every index.
        lines["bitmap of all indices (computed)"].append(density + workers / 32)
    made, (formats, breakdown) = figure(2)
    for at, (name, values) in enumerate(lines.items()):
        formats.plot(densities, values, label=name, **style(at))
    formats.axhline(1, color="#000000", linewidth=0.8)
    formats.set_xlabel("density after aggregation")
    formats.set_ylabel("bytes of the aggregated gradient, of dense")
    formats.legend(frameon=False, fontsize=8)
    text = "(a) Bytes of a pull as a share of dense's, 16 workers.\n\n" + table(
        ["density"] + list(lines), [[f"{density:g}"] + [f"{values[at]:.3f}" for values in lines.values()]
                                    for at, density in enumerate(densities)])
    steps = [("sparse_ps", "lists, even slices"), ("zen:scheme=push_pull:pull=list", "lists, hashed owners"),
             ("zen:scheme=push_pull", "hash bitmap, hashed owners")]
    settings = sorted(name for name in parts if name.startswith("breakdown_"))
    rows = []
    for at, (spec, name) in enumerate(steps):
        speedups = [1 / next(r for r in parts[setting] if r["spec"] == spec)["time_vs_dense"] for setting in settings]
        drawn = breakdown.bar([place + at * 0.26 for place in range(len(settings))], speedups, 0.24, color=COLOURS[at], label=name)
        breakdown.bar_label(drawn, labels=[f"{value:.2f}" for value in speedups], fontsize=7)
        rows.append([name] + [f"{value:.2f}" for value in speedups])
    titles = [setting[len("breakdown_"):].replace("_", " ") for setting in settings]
    breakdown.set_xticks([place + 0.26 for place in range(len(settings))])
    breakdown.set_xticklabels(titles)
    breakdown.set_ylabel("times faster than dense all-reduce")
    breakdown.legend(frameon=False, fontsize=8)
    made.tight_layout()
    text += ("\n(b) Communication, times faster than dense. The paper (throughput of training): lists through Algorithm 1 2.74 times for LSTM and 1.53 "
             "for Llama3.2-3B, the hash bitmap 13 % and 34 % more.\n\n")
    return text + table(["step"] + titles, rows), made


EXPERIMENTS = {
    "sketched_sgd_figure_5": ("Sketched-SGD, Figure 5: accuracy against compression", sketched_sgd_figure_5),
    "sketched_sgd_figure_6": ("Sketched-SGD, Figure 6: accuracy against the number of workers", sketched_sgd_figure_6),
    "casq_table_1": ("CASQ, Table 1: accuracy at 2 and 3 bits", casq_table_1),
    "casq_figure_5": ("CASQ, Figure 5: compression error per step on real gradients", casq_figure_5),
    "casq_figure_10": ("CASQ, Figure 10: allocation of buckets", casq_figure_10),
    "casq_figure_14": ("CASQ, Figure 14: number of buckets", casq_figure_14),
    "marsit_table_1": ("Marsit, Table 1: cascading compression", marsit_table_1),
    "marsit_table_2": ("Marsit, Table 2: accuracy of one-bit systems", marsit_table_2),
    "marsit_figure_3": ("Marsit, Figure 3: K against accuracy and bits", marsit_figure_3),
    "s2_reducer_figure_8": ("S2 Reducer, Figure 8: lambda against accuracy", s2_reducer_figure_8),
    "zen_figure_13": ("Zen, Figure 13: communication speedups over all-reduce", zen_figure_13),
    "zen_figure_15": ("Zen, Figure 15: formats, and what each part brings", zen_figure_15),
}


def main() -> int:
    if len(sys.argv) not in (4, 5) or sys.argv[1] not in EXPERIMENTS:
        print(__doc__ + "\nExperiments: " + " ".join(EXPERIMENTS), file=sys.stderr)
        return 2
    name, folder, smaller = sys.argv[1:4]
    note = sys.argv[4] if len(sys.argv) == 5 else ""
    title, make = EXPERIMENTS[name]
    try:
        text, made = make(load(folder))
    except (OSError, ValueError, KeyError, IndexError, StopIteration) as error:
        print(f"report.py: {folder}: {error!r}", file=sys.stderr)
        return 1
    made.savefig(os.path.join(folder, "plot.png"), dpi=110)
    smaller = " ".join(smaller.split())
    head = f"# {title}\n\n    bench/papers/{name}\n\nSmaller than in the paper: {smaller}.\n\n"
    if note:
        head += f"{note}\n\n"
    text = head + text + "\n![](plot.png)\n"
    with open(os.path.join(folder, "table.md"), "w", encoding="utf-8") as file:
        file.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

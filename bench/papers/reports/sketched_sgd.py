"""Sketched-SGD: each experiment's table and figure."""
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from drawing import figure, legend, plot_epochs, point, style
from plotting import COLOURS, MARKERS
from runs import DIFFERENCE, System, accuracy_table, compression, describe, systems_in, table


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
        # Two settings of the same size: side by side, half a percent each way.
        twins = [other for other in sketched if abs(compression(other, dense) / compression(system, dense) - 1) < 0.01]
        x = compression(system, dense) * (1 + 0.012 * (2 * twins.index(system) - len(twins) + 1))
        point(axes, x, system, color=COLOURS[(at + 2) % len(COLOURS)], marker=MARKERS[at % len(MARKERS)])
        side = "center" if len(twins) == 1 else "right" if twins[0] is system else "left"
        axes.annotate(f"P {system.options['p']}\n{100 * float(system.options['columns_ratio']):g} %",
                      (x, 100 * (system.accuracy() + system.spread())), textcoords="offset points", xytext=(0, 3), ha=side,
                      fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([1, 2, 5, 7, 10, 15, 20, 30, 50, 100]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.margins(x=0.08, y=0.12)
    axes.set_xlabel("compression: dense's bytes over sketched SGD's\n(points: colour by k; P, and columns as a share of the elements)")
    axes.set_ylabel("test accuracy, %")
    legend(made, 2)
    paper = ("The paper (CIFAR-10, ResNet-9): dense about 94 %, sketched SGD no loss at about 4 times, one point at about 8, with its "
             "50 epochs against dense's 24 counted in. Per step that is 8.3 and 16.7 times.\n\n")
    text = paper + describe(parts["dense"]) + "\n\n" + accuracy_table([dense] + top + sketched, dense)
    return text + "\nglobal_top_k finds its elements by a dense all-reduce: what it shows is accuracy.\n", made


def sketched_sgd_figure_6(parts: dict) -> tuple:
    dense = systems_in(parts["dense"])[0]
    top_k = systems_in(parts["global_top_k"])[0]
    points = sorted((int(name.split("_")[1]), systems_in(part)[0]) for name, part in parts.items() if name.startswith("workers_"))
    made, (axes,) = figure()
    whole = [(count, system) for count, system in points if system.whole()]
    axes.plot([count for count, _ in whole], [100 * system.accuracy() for _, system in whole], label=points[0][1].options[""], **style(0))
    for count, system in points:
        point(axes, count, system, **style(0))
    for at, system in enumerate((dense, top_k), start=1):
        axes.axhline(100 * system.accuracy(), linestyle="--", color=style(at).get("color"),
                     label=f"{system.options['']}, {parts[system.options['']][0]['workers']} workers")
    axes.set_xscale("log", base=2)
    axes.set_xticks([count for count, _ in points])
    axes.set_xticklabels([count for count, _ in points])
    axes.set_xlabel("workers (the same batch of all together)")
    axes.set_ylabel("test accuracy, %")
    legend(made)
    rows = [[parts[system.options[""]][0]["workers"], f"`{system.label}`", system.accuracy_text(),
             "" if system is dense else system.difference_text(dense), f"{system.bytes:,.0f}"] for system in (dense, top_k)]
    rows += [[count, f"`{system.label}`", system.accuracy_text(), system.difference_text(dense), f"{system.bytes:,.0f}"]
             for count, system in points]
    text = "The paper: accuracy does not depend on the number of workers.\n\n" + describe(parts["dense"]) + "\n\n"
    return text + table(["workers", "system", "test accuracy, %", DIFFERENCE, "bytes per worker and step"], rows) + all_workers_bytes(parts["bytes"]), made


def all_workers_bytes(results: list) -> str:
    """Section 1.1: how bytes grow with the workers."""
    by_system = {}
    for result in results:
        if result["spec"] != "dense":
            by_system.setdefault(result["spec"], {})[result["workers"]] = result["workers"] * result["wire_bytes_sent_mean"]
    counts = sorted({result["workers"] for result in results})
    return ("\nThe paper: what all W workers send grows as Wk, and as W^2 k where each sends its own largest elements to all. Here of a million elements, k = 0.1 %, "
            "bytes of all workers and a step:\n\n" + table(["system"] + [f"{count} workers" for count in counts],
                                                         [[f"`{spec}`"] + [f"{sent[count]:,.0f}" for count in counts] for spec, sent in by_system.items()]))


def sketch_name(system: System) -> str:
    """"sketch r 29, P 20", or what else it is."""
    options = system.options
    if options[""] == "dense":
        return "dense"
    if options[""] == "global_top_k":
        return f"true top-k, {100 * float(options['ratio']):g} %"
    size = float(options["rows"]) * float(options["columns_ratio"])
    return f"sketch r {options['rows']}, P {options['p']}, {100 * size:.2g} %" + (", random fill" if options.get("fill") == "random" else "") \
        + (", each element hashed" if options.get("run") == "1" else "")


def sketched_sgd_figure_4(parts: dict) -> tuple:
    dense = systems_in(parts["dense"])[0]
    per_bucket = [system for name, results in parts.items() if name.endswith("_per_bucket") for system in systems_in(results)]
    top, sketched = ([system for name, results in parts.items() if name.startswith(kind) and not name.endswith("_per_bucket")
                      for system in systems_in(results)] for kind in ("top_k_", "sketch_"))
    made, (curves, against_k) = figure(2)
    same_k = [system for system in top if system.options["ratio"] == "0.0015"]
    plot_epochs(curves, [dense] + same_k + sketched, "test_accuracy", "test accuracy", sketch_name, 1.0)
    curves.set_xlabel(f"epoch of {parts['dense'][0]['epochs'][0]['steps']} steps")
    points = [(100 * float(system.options["ratio"]), system) for system in top]
    against_k.axhline(100 * dense.accuracy(), color="#000000", linewidth=1, linestyle="--", label="dense at the end")
    for x, system in points:
        point(against_k, x, system, **style(1))
    against_k.set_xscale("log")
    against_k.set_xlabel("k, % of the elements (true top-k)")
    against_k.set_ylabel("test accuracy, %")
    legend(made)
    text = ("The paper: Figure 4, with momentum true top-k is best at k = 0.15 %, worse above, where masking stops the momentum too often, and worse "
            "below. Figure 3: sketches learn as true top-k does. Figure 5: sketches lose nothing at about 4 times fewer bytes and one point at about 8. These have 50 "
            "epochs there and dense 24, so per step that is 8.3 and 16.7 times.\n\n" + describe(parts["dense"]) +
            " The others have the same momentum before the selection, with masking.\n\n")
    return text + accuracy_table([dense] + top + sketched, dense) + (
        "\nglobal_top_k finds its elements by a dense all-reduce: what it shows is accuracy.\n\n"
        "A selection in each bucket of up to half a MB, or of a tensor that is larger, in place of one of the whole gradient:\n\n"
        + accuracy_table([dense] + per_bucket, dense)), made

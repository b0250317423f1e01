"""S2 Reducer: each experiment's table and figure."""
from drawing import figure, legend, loss_and_accuracy, style
from runs import table


def s2_reducer_figure_8(parts: dict) -> tuple:
    return loss_and_accuracy(
        parts, lambda system: f"lambda {system.options['lambda']}" if "lambda" in system.options else "dense",
        "The paper: lambda 0.5 is as good as 1; below, accuracy falls.")


def s2_reducer_figure_5(parts: dict) -> tuple:
    made, (axes,) = figure()
    rows = []
    for results in parts.values():
        reduce, gather = (next(result for result in results if result["spec"] == spec) for spec in ("dense", "agsparse"))
        rows.append([4 * reduce["elements"] * reduce["scale"] / 2**20, 1e3 * reduce["modelled_seconds"], 1e3 * gather["modelled_seconds"]])
    rows.sort()
    for at, name in ((1, "all-reduce"), (2, "all-gather")):
        axes.plot([row[0] for row in rows], [row[at] for row in rows], label=name, **style(at))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("message, MB")
    axes.set_ylabel("ms")
    legend(made, axes)
    text = "The paper, 16 GPUs over InfiniBand: from 8 MB on all-reduce is over 11 times as fast as all-gather.\n\n"
    return text + table(["message, MB", "all-reduce, ms", "all-gather, ms", "all-gather over all-reduce"],
                        [[f"{size:g}", f"{reduce:.3f}", f"{gather:.3f}", f"{gather / reduce:.2f}"] for size, reduce, gather in rows]), made

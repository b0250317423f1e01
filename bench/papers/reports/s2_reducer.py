"""S2 Reducer: each experiment's table and figure."""
from statistics import mean

from drawing import figure, legend, loss_and_accuracy, style
from plotting import COLOURS, spread_text
from runs import table, table_system, with_momentum


def s2_reducer_figure_8(parts: dict) -> tuple:
    text, made = loss_and_accuracy(
        parts, lambda system: f"lambda {system.options['lambda']}" if "lambda" in system.options else "dense",
        "The paper: lambda 0.5 is as good as 1; below, accuracy falls.")
    return text + with_momentum(parts), made


# Of the baselines, by how much S2 Reducer's communication is below theirs in the paper.
BELOW = {"omnireduce": 81, "sparcml": 94, "agsparse": 87}
SKETCH = "s2_reducer:lambda=0.5"


def gamma_of(part: str) -> float:
    return float(part.rsplit("_", 1)[1])


def communication_by_gamma(axes, parts: dict, baselines: tuple) -> str:
    """A table of milliseconds by gamma, and by how much the sketch's are below the baselines'."""
    rows = []
    lines = {}  # of each system: gamma and milliseconds
    for name, results in sorted(parts.items(), key=lambda one: gamma_of(one[0])):
        seconds = {}  # of each seed
        errors = []
        for result in results:
            seconds.setdefault(table_system(result["spec"]), []).append(result["modelled_seconds"])
            if table_system(result["spec"]) == SKETCH:
                errors.append(result["relative_error"])
        for system, of_seeds in seconds.items():
            lines.setdefault(system, []).append((gamma_of(name), 1e3 * mean(of_seeds)))
        below = [spread_text([100 * (1 - own / other) for own, other in zip(seconds[SKETCH], seconds[one])], ".1f") for one in baselines]
        rows.append([f"{gamma_of(name):g}", *(spread_text([1e3 * one for one in seconds[system]], ".1f") for system in seconds), spread_text(errors, ".2f"), *below])
    for at, (system, points) in enumerate(lines.items()):
        axes.plot([one[0] for one in points], [one[1] for one in points], label=system, **style(at))
    axes.set_xlabel("gamma: blocks of all workers over those of one")
    axes.set_ylabel("communication of a step, ms")
    heads = ["gamma", *(f"`{system}`, ms" for system in lines), "error of the sketch's mean", *(f"% below {system}" for system in baselines)]
    return table(heads, rows)


def s2_reducer_figure_4(parts: dict) -> tuple:
    made, all_axes = figure(3)
    paper = ", ".join(f"{percent} % below {system}" for system, percent in BELOW.items())
    text = f"The paper, ResNet-50 on 16 workers: {paper}.\n"
    gnmt = ("omnireduce:rows=block", "sparcml", "agsparse", "sparse_ps")
    kinds = {"gamma": ("ResNet-50, one block in 32, at 1 Gbit/s", (*BELOW, "sparse_ps")), "embeddings": ("GNMT-8, embeddings of 265 MB, 4.83 % of the rows, at 10 Gbit/s", gnmt),
             "blocks": ("GNMT-8, the whole gradient of 460 MB, one block in 32, at 10 Gbit/s", gnmt)}
    for axes, (kind, (title, baselines)) in zip(all_axes, kinds.items()):
        if kind == "embeddings":
            text += ("\nThe paper, GNMT-8: 83 % below SparCML and 59 % below AllGather, without the panel's name. Its embeddings' training is 1.25 times as fast as with "
                     "AllGather, GNMT-16's 1.4 times as with OmniReduce; by blocks it is 1.8 times as fast as with OmniReduce, and communication takes 65 % less.\n")
        chosen = {name: results for name, results in parts.items() if name.startswith(kind)}
        text += f"\n{title}:\n\n" + communication_by_gamma(axes, chosen, baselines)
        axes.set_title(title.split(", at")[0].replace(", ", ",\n", 1), fontsize=8)
        axes.legend(frameon=False, fontsize=6)
    made.tight_layout()
    return text, made


ACCURACY_OF_FIGURE_3 = 0.84  # which every training reaches


def steps_until(run: dict, accuracy: float) -> float:
    """By straight lines between epochs' ends, from chance on."""
    before, done = 0.1, 0
    for epoch in run["epochs"]:
        if epoch["test_accuracy"] >= accuracy:
            return done + epoch["steps"] * (accuracy - before) / (epoch["test_accuracy"] - before)
        before, done = epoch["test_accuracy"], done + epoch["steps"]
    raise ValueError(f"{run['label']} with seed {run['seed']} does not reach {accuracy}")


def s2_reducer_figure_3_blocks(parts: dict) -> tuple:
    """Steps of s2_reducer_figure_8's trainings with momentum, times s2_reducer_figure_4's time of a step."""
    trained = {}
    for run in parts["s2_reducer_figure_8/momentum_0.05"]:
        trained.setdefault(run["label"], []).append(steps_until(run, ACCURACY_OF_FIGURE_3))
    block = "block_top_k:ratio=0.03125+s2_reducer:lambda="
    sketch, exact = trained[block + "0.5"], trained[block + "exact"]
    made, (axes,) = figure()
    rows, lines = [], {}
    for name in sorted((name for name in parts if name.startswith("s2_reducer_figure_4/gamma_")), key=gamma_of):
        gamma = f"{gamma_of(name):g}"
        seconds = {}  # of each seed
        for result in parts[name]:
            seconds.setdefault(table_system(result["spec"]), []).append(result["modelled_seconds"])
        own = [steps * each for steps, each in zip(sketch, seconds[SKETCH])]
        times = {system: [steps * each for steps, each in zip(exact, seconds[system])] for system in BELOW}
        times["dense"] = [steps * each for steps, each in zip(trained["dense"], seconds["dense"])]
        rows.append([gamma] + [spread_text([other / one for one, other in zip(own, times[system])], ".2f") for system in times])
        for system, of_seeds in {"s2_reducer": own, **times}.items():
            lines.setdefault(system, []).append((float(gamma), mean(of_seeds)))
    for at, (system, points) in enumerate(lines.items()):
        axes.plot([gamma for gamma, _ in points], [value for _, value in points], label=system, **style(at))
    axes.set_yscale("log")
    axes.set_xlabel("gamma: blocks of all workers over those of one")
    axes.set_ylabel(f"communication until {100 * ACCURACY_OF_FIGURE_3:.0f} %, s")
    legend(made)
    text = ("The paper, ResNet-50, block-wise: training is 4.1 times as fast as with SparCML and 2.3 times as with AllGather, at the same accuracy; sparse "
            f"communication takes 81 % less than with OmniReduce.\n\nSteps until {100 * ACCURACY_OF_FIGURE_3:.0f} % of the test set are right, momentum 0.9: dense "
            f"{spread_text(trained['dense'], '.0f')}, lossless blocks {spread_text(exact, '.0f')}, `s2_reducer:lambda=0.5` {spread_text(sketch, '.0f')}. SparCML, "
            "AllGather and OmniReduce lose nothing, so they need the steps of lossless blocks. Communication alone, of a training until then; computing, which "
            "is the same for all, is left out.\n\nHow many times as fast `s2_reducer:lambda=0.5` is as:\n\n")
    return text + table(["gamma", *times], rows), made


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
    legend(made)
    text = "The paper, 16 GPUs over InfiniBand: from 8 MB on all-reduce is over 11 times as fast as all-gather.\n\n"
    return text + table(["message, MB", "all-reduce, ms", "all-gather, ms", "all-gather over all-reduce"],
                        [[f"{size:g}", f"{reduce:.3f}", f"{gather:.3f}", f"{gather / reduce:.2f}"] for size, reduce, gather in rows]), made


def perplexities(results: list) -> str:
    found = {}
    for run in results:
        found.setdefault(table_system(run["label"]), {})[run["seed"]] = run
    rows = [[f"`{name}`", spread_text([run["perplexity"] for run in of_seed.values()], ".1f"),
             "" if name == "dense" else spread_text([run["perplexity"] - found["dense"][seed]["perplexity"] for seed, run in of_seed.items()], "+.2f"),
             f"{mean([run['wire_bytes_sent_mean'] for run in of_seed.values()]):,.0f}"] for name, of_seed in found.items()]
    one = results[0]
    return (f"\nPerplexity of a held-out part of the King James Bible after {one['steps']} steps, {one['workers']} workers, batches of {one['batch']}, learning rate "
            f"{one['lr']:g}, no momentum:\n\n" + table(["tables by", "perplexity", "minus dense's, seed by seed", "bytes per worker and step"], rows))


def s2_reducer_figure_3(parts: dict) -> tuple:
    systems = {}  # of each seed
    part = next(name for name in parts if name.startswith("communication_"))
    for result in parts[part]:
        systems.setdefault(table_system(result["spec"]), []).append(result)
    made, (axes,) = figure()
    seconds = {name: [result["modelled_seconds"] for result in of_seeds] for name, of_seeds in systems.items()}
    rows = []
    for name, of_seeds in systems.items():
        rows.append([f"`{name}`", f"{mean([result['wire_bytes_sent_max'] for result in of_seeds]):,.0f}",
                     spread_text([1e3 * own for own in seconds[name]], ".2f"),
                     spread_text([other / own for own, other in zip(seconds[name], seconds["sparcml"])], ".2f"),
                     f"{mean([result['relative_error'] for result in of_seeds]):.2g}"])
    axes.bar(range(len(systems)), [1e3 * mean(of_seeds) for of_seeds in seconds.values()], color=COLOURS[0])
    axes.set_xticks(range(len(systems)))
    axes.set_xticklabels(list(systems), rotation=30, ha="right", fontsize=8)
    axes.set_ylabel("communication of a step, ms")
    made.tight_layout()
    one = parts[part][0]
    text = ("The paper: with S2 Reducer the LSTM trains 1.6 times as fast as with SparCML, to the same perplexity.\n\n"
            f"Text: {part.removeprefix('communication_')}. {one['workers']} workers, {one['elements']:,} parameters of which the table's gradient is sparse, densification {one['gamma']:.1f} over all "
            "of them. The rest goes by dense in every line.\n\n")
    return text + table(["tables by", "bytes per worker and step", "communication, ms", "times as fast as sparcml", "relative error of the mean"], rows) + perplexities(parts["perplexity"]), made

"""CASQ: each experiment's table and figure."""
from itertools import accumulate
from statistics import mean, median, stdev

from matplotlib.ticker import MaxNLocator

from drawing import COLOURS, bars, figure, legend, loss_and_accuracy, panels_of_bars, plot_epochs, point, style
from plotting import spread_text
from runs import DIFFERENCE, accuracy_table, by_spec, describe, named, options_of, order_text, systems_in, table, with_momentum

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


def quantizer_in_full(spec: str) -> str:
    """Its name and the options in which those of one name differ: "alq:3 zero=off"."""
    options = options_of(spec)
    return " ".join([quantizer_name(spec)] + [f"{key}={options[key]}" for key in ("zero", "norm", "topology", "clusters") if key in options])


def casq_table_1(parts: dict) -> tuple:
    systems = systems_in(parts["train"] + parts["published"])
    dense = named(systems, "dense")
    # Of casq, the paper's form is the one whose mean is not coded once more.
    paper = {system.label: CASQ_TABLE_1.get(quantizer_name(system), "") for system in systems
             if system.options.get("feedback") != "on" and (system.options[""] != "casq" or "topology" in system.options)}
    made, (axes,) = figure()
    made.set_size_inches(9, 4.8)
    names = [quantizer_name(s) + (" gathered" if "topology" in s.options else "") + (" EF" if s.options.get("feedback") == "on" else "")
             for s in systems]
    bars(axes, names, systems)
    axes.set_ylabel("test accuracy, %")
    made.tight_layout()
    text = describe(parts["train"]) + "\n\n" + accuracy_table(systems, dense, ("paper, ResNet-32 on CIFAR-10", paper))
    return text, made


def casq_figure_7(parts: dict) -> tuple:
    counts = sorted({int(name.split("_")[1]) for name in parts})
    made, all_axes = figure(len(counts))
    rows = {}
    for count, axes in zip(counts, all_axes):
        sent, coded = {}, {}  # of each seed
        for alone, both in zip(parts[f"off_{count}"], parts[f"measured_{count}"]):
            spec = alone["spec"]
            sent.setdefault(spec, []).append(1e3 * alone["modelled_seconds"])
            # dense has nothing to quantize; adding up is the engine's.
            coded.setdefault(spec, []).append(0.0 if spec == "dense" else max(0.0, 1e3 * (both["modelled_seconds"] - alone["modelled_seconds"])))
        communication, quantization = ({spec: mean(values) for spec, values in of.items()} for of in (sent, coded))
        names = list(communication)
        alq = next(name for name in names if name.startswith("alq"))
        for at, (what, times) in enumerate((("communication", communication), ("quantization", quantization))):
            axes.bar(range(len(names)), [times[name] for name in names],
                     bottom=[communication[name] if at else 0.0 for name in names], color=COLOURS[at], label=what)
        axes.set_xticks(range(len(names)))
        axes.set_xticklabels([name.replace(":feedback=off", "").replace(":clusters=own", "").replace(":topology=", " ").replace(":downlink=", " ")
                              for name in names], rotation=40, ha="right", fontsize=7)
        axes.set_title(f"{count} workers", fontsize=10)
        axes.set_ylabel("ms")
        for name in names:
            rows.setdefault(name, []).extend([f"{communication[name]:.1f}", f"{communication[name] / communication[alq]:.2f}", spread_text(coded[name], ".1f"),
                                              spread_text([100 * own / (own + of) for own, of in zip(coded[name], sent[name])], ".0f")])
    legend(made, 2)
    head = ["system"] + [f"{count} workers: {what}" for count in counts for what in ("communication, ms", "of ALQ's", "quantization, ms", "quantization, % of both")]
    text = ("The paper: CASQ with 2 bits communicates up to 28 % less than ALQ with 3, and quantizes about as long; that is up to 16 % of a step. "
            "Of a step with computing the share would be smaller.\n\n")
    return text + table(head, [[f"`{name}`"] + cells for name, cells in rows.items()]), made


def casq_table_1_more(parts: dict) -> tuple:
    systems = systems_in(parts["train"])
    paper = {system.label: CASQ_TABLE_1[quantizer_name(system)] for system in systems}
    shown = {"no momentum": systems}
    shown |= {f"momentum, a rate of {name.removeprefix('momentum_')}": systems_in(parts[name]) for name in sorted(parts) if name.startswith("momentum_")}
    made = panels_of_bars(shown, lambda system: quantizer_name(system) + (" own clusters" if system.options.get("clusters") == "own" else ""))
    text = "All without error feedback; casq gathered.\n\n" + describe(parts["train"]) + "\n\n"
    return text + accuracy_table(systems, named(systems, "dense"), ("paper, ResNet-32 on CIFAR-10", paper)) + with_momentum(parts), made


def casq_table_1_codes(parts: dict) -> tuple:
    models = sorted(parts)
    specs = list(by_spec(parts[models[0]], len))
    by_model = {model: {spec: [result for result in parts[model] if result["spec"] == spec] for spec in specs} for model in models}

    def elias(result: dict) -> float:
        return min(bits for bits in (result["elias_gaps"], result["elias_each"]) if bits is not None)

    def bits_of(model: str, spec: str, value) -> list:
        return [value(result) for result in by_model[model][spec]]

    rows = []
    for spec in specs:
        row = [f"`{spec}`", f"{by_model[models[0]][spec][0]['fixed']:g}"]
        for model in models:
            row += [spread_text(bits_of(model, spec, elias), ".2f"), spread_text(bits_of(model, spec, lambda result: result["entropy"]), ".2f")]
        rows.append(row)
    made, (axes,) = figure()
    made.set_size_inches(8, 4.6)
    for at, model in enumerate(models):
        for marker, value in (("o", elias), ("x", lambda result: result["entropy"])):
            axes.plot([mean(bits_of(model, spec, value)) for spec in specs], range(len(specs)), marker, color=COLOURS[at],
                      label=f"{model}, {'Elias' if marker == 'o' else 'entropy'}")
    axes.plot([by_model[models[0]][spec][0]["fixed"] for spec in specs], range(len(specs)), "|", color="#000000", markersize=12, label="fixed length")
    axes.set_yticks(range(len(specs)))
    axes.set_yticklabels([quantizer_name(spec) for spec in specs])
    axes.set_xlabel("bits per element")
    axes.legend(frameon=False, fontsize=7)
    made.tight_layout()
    text = ("Bits per element of codes alone, without norms, centres and means. Elias: the shorter of two codes, of every element or of the non-zeros and "
            "the gaps between them (QSGD, section 3); casq's clusters are numbered from the most frequent one on. Entropy: of each worker's codes in a "
            "step, each element by itself. Dense tensors alone; an LSTM's table of rows is left out.\n\n")
    head = ["spec", "fixed"] + [f"{model}, {what}" for model in models for what in ("Elias", "entropy")]
    return text + table(head, rows), made


def casq_figure_5(parts: dict) -> tuple:
    names = sorted([name for name in parts if name != "noise"], key=lambda name: -int(name.split("_")[1]))
    made, all_axes = figure(len(names))
    errors = {}
    for axes, name in zip(all_axes, names):
        for at, (spec, squares) in enumerate(by_spec(parts[name], lambda result: [error ** 2 for error in result["relative_errors"]]).items()):
            errors.setdefault(spec, {})[name] = squares
            axes.plot(range(len(squares[0])), squares[0], label=quantizer_in_full(spec), **{**style(at), "markersize": 3})
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("recorded step")
        count = int(name.split("_")[1])
        axes.set_title("error of one worker's Q(p)" if count == 1 else f"error of the mean of {count} workers", fontsize=10)
        axes.set_ylabel("squared error over squared gradient")
    legend(made, 4)
    head = ["quantizer"] + [f"{'one worker' if name.endswith('_1') else name.replace('_', ' ') + ', mean'}: {what}" for name in names
                            for what in ("median over steps", "least to most")]
    rows = []
    for spec, by_part in errors.items():
        row = [f"`{spec}`"]
        for name in names:
            every = [error for squares in by_part[name] for error in squares]
            row += [spread_text([median(squares) for squares in by_part[name]], ".3g"), f"{min(every):.3g} to {max(every):.3g}"]
        rows.append(row)
    row = ["stochastic gradients themselves"]
    for name in names:
        steps = [step["of_one" if name.endswith("_1") else "of_mean"] for step in parts["noise"]]
        row += [f"{median(steps):.3g}", f"{min(steps):.3g} to {max(steps):.3g}"]
    rows.append(row)
    orders = {name.replace("_", " "): {spec: [median(squares) for squares in by_part[name]] for spec, by_part in errors.items()} for name in names}
    text = ("The error is |Q(p) - p|^2 / |p|^2, or that of the mean over workers. The paper's Figure 5: casq with 2 bits errs less than every other quantizer "
            "with 3. terngrad, qsgd, nuqsgd, amq and alq are unbiased: their errors average out over workers and steps, "
            "casq's do so in part. Without topology=all_gather casq's mean is coded once more on its way back, which the "
            "paper does not do. Medians are means over seeds; the picture has the first seed. "
            "Stochastic gradients themselves differ from the gradient that they stand for: the variance over workers says by how much, over all steps and "
            "seeds. In the paper casq with 3 bits errs as little.\n\n")
    return text + table(head, rows) + "\n" + order_text(orders) + gap_over_the_training(errors, names), made


def gap_over_the_training(errors: dict, names: list) -> str:
    """Section 5.1: whether the gap between casq and alq grows when the learning rate falls."""
    casq = next(by_part for spec, by_part in errors.items() if spec.startswith("casq:bits=2:") and "clusters=own" in spec)
    alq = next(by_part for spec, by_part in errors.items() if spec.startswith("alq:bits=3:") and "zero=off:feedback" in spec)
    if len(casq[names[0]][0]) < 4:
        return ""
    rows = []
    for name in names:
        ratios = [[one / other for one, other in zip(*both)] for both in zip(casq[name], alq[name])]
        quarter = len(ratios[0]) // 4
        rows.append(["one worker" if name.endswith("_1") else name.replace("_", " ") + ", mean"] +
                    [spread_text([median(ratio[at * quarter:(at + 1) * quarter]) for ratio in ratios], ".3f") for at in range(4)])
    return ("\nThe paper: casq's error with 2 bits is like alq's with 3 until the learning rate falls; then the gap grows. Here the rate falls by a cosine. "
            "casq's error as published over alq's (no level 0), medians over a quarter of the training:\n\n" +
            table(["error", "first quarter", "second", "third", "last"], rows))


def casq_downlink(parts: dict) -> tuple:
    made, all_axes = figure(len(parts))
    errors, sent = {}, {}
    for axes, (name, results) in zip(all_axes, parts.items()):
        for result in results:
            sent[result["spec"]] = result["wire_bytes_sent_max"]
        of_part = by_spec(results, lambda result: result["relative_error"])
        for at, (spec, values) in enumerate(of_part.items()):
            errors.setdefault(spec, []).append(spread_text(values, ".3f"))
            axes.plot([sent[spec] / 1e6], [sum(values) / len(values)], label=quantizer_in_full(spec),
                      **{**style(at), "linestyle": "", "fillstyle": "none" if at >= len(COLOURS) else "full"})
        axes.set_title("normal values" if name == "tails_0" else "heavy tails", fontsize=10)
        axes.set_xlabel("MB that a worker sends")
        axes.set_ylabel("error of the mean over its length")
    legend(made, 3)
    text = ("The paper gathers all codes, so that each worker makes the mean of what all have sent. By default the owner of a part codes its mean once more. "
            "The error is |mean - exact mean| / |exact mean|.\n\n")
    return text + table(["system", "bytes of the worker that sends most", "error, normal values", "heavy tails"],
                        [[f"`{spec}`", f"{sent[spec]:,.0f}"] + of for spec, of in errors.items()]), made


def published(system) -> bool:
    """Gathered, and without error feedback."""
    return system.options.get("topology") == "all_gather" and system.options.get("feedback") == "off"


def of_form(system, what: str) -> str:
    return what + (f", as published, {system.options['bits']} bits" if published(system) else "")


def casq_figure_10(parts: dict) -> tuple:
    return loss_and_accuracy(parts, lambda system: of_form(system, system.options.get("allocation", "dense")),
                             "The paper: with adaptive allocation training converges faster by 18,000 steps than with even.")


def casq_figure_14(parts: dict) -> tuple:
    def label(system) -> str:
        return of_form(system, f"{100 * float(system.options['buckets']):g} % buckets") if "buckets" in system.options else "dense"
    return loss_and_accuracy(parts, label, "The paper: more buckets help slightly, from 0.2 % on hardly.")


def by_option(axes, systems: list, key: str, dense, name: str, label: str, at: int) -> None:
    """Accuracy against an option, on a logarithmic axis."""
    points = [(float(system.options[key]), system) for system in systems]
    whole = [(x, 100 * system.accuracy()) for x, system in points if system.whole()]
    axes.plot([x for x, _ in whole], [y for _, y in whole], label=label, **style(at))
    for x, system in points:
        point(axes, x, system, **style(at))
    if at == 0:
        axes.axhline(100 * dense.accuracy(), color="#000000", linewidth=1, linestyle="--", label="dense")
    axes.set_xlabel(name)
    axes.set_ylabel("test accuracy, %")


LOSSES_OF_FIGURE_8 = (0.6, 0.4)
COUNTS_OF_FIGURE_8 = (8, 16, 24)  # workers
OWN_2, OWN_3 = (f"casq:bits={bits}:topology=all_gather:clusters=own:feedback=off" for bits in (2, 3))
AMQ_3 = "amq:bits=3:zero=off:feedback=off"
# Trained as, and timed as.
FIGURE_8 = [
    ("dense", "dense"), ("alq:bits=3:zero=off:feedback=off", "alq:bits=3:zero=off:feedback=off"),
    (OWN_2, OWN_2), (OWN_2, "casq:bits=2:topology=server:downlink=float32:clusters=own:feedback=off"),
    (OWN_3, OWN_3), (OWN_3, "casq:bits=3:topology=server:downlink=float32:clusters=own:feedback=off"),
    ("casq:bits=2:feedback=on", "casq:bits=2:feedback=off"), ("casq:bits=3:feedback=on", "casq:bits=3:feedback=off"),
]


def steps_until(run: dict, loss: float):
    """At an even pace between the middles of two epochs, whose mean losses are known. None: not reached."""
    epochs = run["epochs"]
    for at, (before, after) in enumerate(zip(epochs, epochs[1:])):
        if after["loss"] <= loss:
            return (at + 0.5 + (before["loss"] - loss) / (before["loss"] - after["loss"])) * after["steps"]
    return None


def spread_or_each(values: list, form: str) -> str:
    """Mean and deviation; each seed where one is None."""
    if None not in values:
        return spread_text(values, form)
    return ", ".join("not reached" if value is None else format(value, form) for value in values)


def seconds_of_a_step(parts: dict) -> dict:
    """casq_figure_7's, by spec and number of workers, a value for each seed."""
    seconds = {}
    for count in COUNTS_OF_FIGURE_8:
        for alone, both in zip(parts[f"casq_figure_7/off_{count}"], parts[f"casq_figure_7/measured_{count}"]):
            # dense has nothing to quantize; adding up is the engine's.
            of_step = alone if alone["spec"] == "dense" else both
            seconds.setdefault((alone["spec"], count), []).append(of_step["modelled_seconds"])
    return seconds


def times_to_a_loss(trained: dict, loss: float, seconds: dict) -> str:
    """A table: steps until each system's training has the loss, and their time. trained: runs by label."""
    rows = []
    for label, spec in FIGURE_8:
        steps = [steps_until(run, loss) for run in trained[label]]
        row = [f"`{spec}`" if label == spec else f"`{label}`, time of `{spec}`", spread_or_each(steps, ".0f")]
        for count in COUNTS_OF_FIGURE_8:
            of_dense = [steps_until(run, loss) * each for run, each in zip(trained["dense"], seconds["dense", count])]
            row.append(spread_or_each([None if many is None else dense / (many * each)
                                       for dense, many, each in zip(of_dense, steps, seconds[spec, count])], ".2f"))
        rows.append(row)
    return table(["system", "steps"] + [f"{count} workers: times as fast as dense" for count in COUNTS_OF_FIGURE_8], rows)


def reach_amqs_loss(trained: dict) -> str:
    """How many seeds of each system come to the loss that AMQ with 3 bits ends at: the paper's target."""
    ends = {run["seed"]: run["epochs"][-1]["loss"] for run in trained[AMQ_3] if not run["failure"]}
    if not ends:
        return "The paper's target is the loss that AMQ ends at. Here AMQ diverged with each seed.\n"
    reached = [f"`{label}` {sum(steps_until(run, ends[run['seed']]) is not None for run in trained[label] if run['seed'] in ends)}"
               for label in dict.fromkeys(label for label, _ in FIGURE_8)]
    return (f"The paper's target is the loss that AMQ ends at, here {spread_text(list(ends.values()), '.3f')} with 3 bits and without momentum. So many of "
            f"{len(ends)} seeds come to it: " + ", ".join(reached) + ".\n")


def casq_figure_6(parts: dict) -> tuple:
    more = parts["casq_table_1_more/train"]
    of_own = [run for run in more if run["label"] in (OWN_2, OWN_3)]
    settings = {"without momentum": parts["casq_table_1/train"] + of_own}
    settings |= {f"with momentum at a rate of {rate}": parts[f"casq_table_1_more/momentum_{rate}"]
                 for rate in ("0.02", "0.05") if f"casq_table_1_more/momentum_{rate}" in parts}
    made, all_axes = figure(len(settings))
    made.set_size_inches(5 * len(settings), 4.8)
    text = ("The paper's Figure 6 (a): casq's loss with 3 bits almost matches dense's, and with 2 bits it falls faster than every other "
            "quantizer's with 3. Casq has each worker's own clusters here, as in the paper.\n\n")
    for axes, (name, runs) in zip(all_axes, settings.items()):
        systems = systems_in(runs)
        # 3 bits, and casq with 2 as well, all without error feedback.
        shown = [system for system in systems if system.options.get("bits", "3") == "3" or system.options[""] == "casq"]
        shown = [system for system in shown if system.options[""] != "casq" or published(system)]
        plot_epochs(axes, shown, "loss", "training loss", lambda system: quantizer_name(system))
        axes.set_title(name, fontsize=10)
        text += describe(runs) + "\n\n" + table(
            ["system", "training loss, last epoch", DIFFERENCE],
            [[f"`{system.label}`", system.at_the_end("loss"), system.difference_of("loss", named(systems, "dense")) if system.label != "dense" else ""]
             for system in shown]) + "\n"
    legend(made, 4)
    text += ("Figure 8, time to a training loss: steps of these trainings, of 4 workers, times communication and quantization of a step by casq_figure_7, on 8, "
             "16 and 24 workers. Other computing is left out, which favours whatever sends least. The paper: CASQ is up to 5.4 times as fast as dense, and "
             "ahead of every quantizer. " + reach_amqs_loss({system.label: system.runs for system in systems_in(settings["without momentum"])}))
    seconds = seconds_of_a_step(parts)
    for name, runs in settings.items():
        trained = {system.label: system.runs for system in systems_in(runs)}
        for loss in LOSSES_OF_FIGURE_8:
            text += f"\nTo {loss}, {name}:\n\n" + times_to_a_loss(trained, loss, seconds)
    return text, made


def casq_figure_12(parts: dict) -> tuple:
    stored = systems_in(parts["casq_table_1/train"])
    systems = systems_in(parts["sample"])
    tenth = next(system for system in systems_in(parts["casq_table_1/published"])
                 if published(system) and system.options["bits"] == "3")
    tenth.options["sample"] = "0.1"
    systems = sorted(systems + [tenth], key=lambda system: float(system.options["sample"]))
    dense = named(stored, "dense")
    made, (accuracy, cost) = figure(2)
    by_option(accuracy, systems, "sample", dense, "share of the elements that is clustered", "casq, 3 bits, as published", 0)
    accuracy.set_xscale("log")

    def milliseconds(name: str, sample: str) -> list:
        """Of a step, by process."""
        return [1e3 * result["seconds_median"] for result in parts[name] if options_of(result["spec"])["sample"] == sample]

    samples = [system.options["sample"] for system in systems]
    coding = [milliseconds("every_1000000", sample) for sample in samples]
    clustering = [[with_it - without for with_it, without in zip(milliseconds("every_1", sample), steps)]
                  for sample, steps in zip(samples, coding)]
    cost.errorbar([float(sample) for sample in samples], [mean(each) for each in clustering],
                  yerr=[stdev(each) if len(each) > 1 else 0 for each in clustering], **style(1))
    cost.set_xscale("log")
    cost.set_xlabel("share of the elements that is clustered")
    cost.set_ylabel("one clustering, ms")
    legend(made)
    rows = [[f"{100 * float(sample):g} %", system.accuracy_text(), system.difference_text(dense), spread_text(each, ".2f"),
             f"{spread_text([one / step for one, step in zip(each, steps)], '.2f')} %"]
            for sample, system, each, steps in zip(samples, systems, clustering, coding)]
    text = ("The paper: below 10 % one point of accuracy is lost, and clustering takes less than 0.5 % of the training; with all elements it takes "
            "3 %.\n\n" + describe(parts["sample"]) + "\n\n")
    head = ["clustered", "test accuracy, %", DIFFERENCE, "one clustering, ms", "of 100 steps of coding, one of which clusters"]
    return text + table(head, rows), made


def casq_figure_13(parts: dict) -> tuple:
    systems = systems_in(parts["bits"] + parts["casq_table_1/published"] + parts["casq_table_1/train"])
    dense = named(systems, "dense")
    casq = [system for system in systems if system.options[""] == "casq"]
    ways = {"as published": [system for system in casq if published(system)],
            "the default": [system for system in casq if "topology" not in system.options and system.options.get("feedback") == "on"]}
    made, (axes,) = figure()
    rows = []
    for at, (way, of_way) in enumerate(ways.items()):
        of_way.sort(key=lambda system: system.options["bits"])
        by_option(axes, of_way, "bits", dense, "bits", way, at)
        rows += [[way, system.options["bits"], system.accuracy_text(), system.difference_text(dense), f"{system.bytes:,.0f}"]
                 for system in of_way]
    axes.set_xticks([1, 2, 3, 4])
    legend(made)
    text = ("The paper: 2 bits are less than 1 point below 3, and 4 bits are not better than 3. As published: gathered, without error feedback. "
            "The default: codes come back, with error feedback.\n\n" + describe(parts["bits"]) + "\n\n")
    return text + table(["casq", "bits", "test accuracy, %", DIFFERENCE, "bytes per worker and step"], rows), made


def steps_of_seeds(steps: list) -> list:
    """Of each step its results with every seed. steps: those of one seed after those of another."""
    found = {}
    for step in steps:
        found.setdefault(step["step"], []).append(step)
    return list(found.values())


def casq_figure_1(parts: dict) -> tuple:
    made, (curve, cumulative) = figure(2)
    rows = []
    edges = parts["first"][0]["upper_edges"]
    for at, step in enumerate(steps_of_seeds(parts["first"])):
        curve.plot(edges, step[0]["shares"][:len(edges)], linewidth=1, color=style(at)["color"], label=f"step {51 + at}")
    for at, step in enumerate(steps_of_seeds(parts["spread"])):
        below = [list(accumulate(of_seed["shares"][:len(edges)])) for of_seed in step]
        cumulative.plot(edges, below[0], linewidth=1, color=style(at)["color"], label=f"step {50 * at + 1}")
        tenth, hundredth = edges.index(0.1), edges.index(0.01)
        rows.append([50 * at + 1, spread_text([shares[hundredth] for shares in below], ".3f"), spread_text([shares[tenth] for shares in below], ".3f"),
                     spread_text([sum(of_seed["shares_of_squares"][tenth + 1:]) for of_seed in step], ".3f")])
    curve.set_ylabel("share of the elements")
    cumulative.set_ylabel("share of the elements below")
    for axes in (curve, cumulative):
        axes.set_xscale("log")
        axes.set_xlabel("magnitude over the largest of its parameter")
        axes.set_xlim(1e-7, 1)
        axes.legend(frameon=False, fontsize=7)
    made.tight_layout()
    text = ("The paper: most gradients are very close to zero, large ones are rare, and the distribution is almost the same from step to step. The picture has the first seed.\n\n")
    head = ["step", "share below 1 % of the largest", "share below 10 %", "the others' share of the sum of squares"]
    return text + table(head, rows), made


def casq_figure_11(parts: dict) -> tuple:
    made, (axes,) = figure()
    rows = []
    for at, result in enumerate(result for result in parts["errors"] if result["spec"] != "dense"):
        options = options_of(result["spec"])
        squares = [error ** 2 for error in result["relative_errors"]]
        name = "ALQ-Sketch" if options.get("levels") == "alq" else options[""]
        axes.plot(range(len(squares)), squares, label=f"{name}, {options['bits']} bits", **style(at))
        rows.append([f"`{result['spec']}`", name, f"{median(squares):.3g}", f"{min(squares):.3g} to {max(squares):.3g}"])
    axes.set_yscale("log")
    axes.set_xlabel("recorded step")
    axes.set_ylabel("squared error of the mean over squared mean")
    legend(made)
    text = "The paper: with ALQ's levels in place of K-means' centres accuracy falls by over 5 points, below ALQ's own.\n\n"
    errors = table(["spec", "system", "squared error, median over steps", "least to most"], rows)
    trained = systems_in(parts["train"])
    dense = named(trained, "dense")
    rows = [[f"`{system.label}`", system.accuracy_text(), "" if system is dense else system.difference_text(dense)]
            for system in trained]
    return (text + errors + "\n" + describe(parts["train"]) + "\n\n"
            + table(["spec", "test accuracy, %", DIFFERENCE], rows)), made

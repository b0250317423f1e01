"""CASQ: each experiment's table and figure."""
from matplotlib.ticker import MaxNLocator

from drawing import bars, figure, legend, loss_and_accuracy, style
from runs import accuracy_table, describe, named, options_of, systems_in, table

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
    return " ".join([quantizer_name(spec)] + [f"{key}={options[key]}" for key in ("zero", "norm", "topology") if key in options])


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


def casq_figure_5(parts: dict) -> tuple:
    names = sorted(parts, key=lambda name: -int(name.split("_")[1]))
    made, all_axes = figure(len(names))
    errors = {}
    for axes, name in zip(all_axes, names):
        results = [result for result in parts[name] if result["spec"] != "dense"]
        for at, result in enumerate(results):
            squares = [error ** 2 for error in result["relative_errors"]]
            errors.setdefault(result["spec"], {})[name] = squares
            axes.plot(range(len(squares)), squares, label=quantizer_in_full(result["spec"]),
                      **{**style(at), "markersize": 3})
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("recorded step")
        count = int(name.split("_")[1])
        axes.set_title("error of one worker's Q(p)" if count == 1 else f"error of the mean of {count} workers", fontsize=10)
        axes.set_ylabel("squared error over squared gradient")
    legend(made, all_axes[0], 4)
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
            "casq's do so in part. Without topology=all_gather casq's mean is coded once more on its way back, which the "
            "paper does not do.\n\n")
    return text + table(head, rows), made


def casq_figure_10(parts: dict) -> tuple:
    return loss_and_accuracy(parts, lambda system: system.options.get("allocation", "dense"),
                             "The paper: with adaptive allocation training converges faster by 18,000 steps than with even.")


def casq_figure_14(parts: dict) -> tuple:
    return loss_and_accuracy(
        parts, lambda system: f"{100 * float(system.options['buckets']):g} % buckets" if "buckets" in system.options else "dense",
        "The paper: more buckets help slightly, from 0.2 % on hardly.")

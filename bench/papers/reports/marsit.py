"""Marsit: each experiment's table and figure."""
from statistics import mean, median

from drawing import bars, figure, legend, plot_epochs, point, style
from plotting import COLOURS, spread_text
from runs import DIFFERENCE, System, accuracy_table, by_spec, compression, describe, named, options_of, order_text, systems_in, table


def best_rate(systems: list) -> System:
    """Of those that every seed finished, if there are any."""
    finished = [system for system in systems if system.accuracies]
    finished = [system for system in finished if system.whole()] or finished
    return max(finished, key=lambda system: system.accuracy()) if finished else None


ACCURACY_OF_ROUNDS = 0.7


def rounds_to(run: dict, accuracy: float) -> int:
    steps = 0
    for epoch in run["epochs"]:
        steps += epoch["steps"]
        if epoch["test_accuracy"] >= accuracy:
            return steps
    raise ValueError(f"dense on {run['workers']} workers with seed {run['seed']} does not reach {accuracy}")


def rounds_text(parts: dict) -> str:
    """Whether more workers need fewer rounds when nothing is compressed."""
    rows = [[count, spread_text([rounds_to(run, ACCURACY_OF_ROUNDS) for run in parts[f"rounds_{count}"]], ".0f")] for count in (3, 8)]
    return ("\nThe paper: without compression 8 workers need fewer rounds than 3. Here with batches of 16 of each worker and a constant rate of 0.1, rounds "
            f"until {100 * ACCURACY_OF_ROUNDS:.0f} % of the test set are right, looked at every 10:\n\n" + table(["workers", "rounds"], rows))


def marsit_table_1(parts: dict) -> tuple:
    trained = {name: results for name, results in parts.items() if not name.startswith("rounds_")}
    paper = {("cascading_sign", 3): "87.2 ± 2.31", ("cascading_sign", 8): "divergence", ("dense", 3): "99.1 ± 0.13", ("dense", 8): "99.2 ± 0.07"}
    groups = {}
    for name, results in trained.items():
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
    runs = [run for results in trained.values() for run in results if run["workers"] == 3]
    return describe(runs) + " On 8 workers: the same batch of all together.\n\n" + table(head, rows) + rounds_text(parts), made


def marsit_table_2(parts: dict) -> tuple:
    systems = systems_in(parts["train"] + parts["ssdm"])
    dense = named(systems, "dense")
    paper = {"dense": "93.42", "signsgd": "88.92", "ef_signsgd": "91.85", "ssdm": "89.18", "marsit:full_every=100": "92.18",
             "marsit:full_every=0": "90.15"}
    made, (axes,) = figure()
    bars(axes, [system.label for system in systems], systems)
    axes.set_ylabel("test accuracy, %")
    made.tight_layout()
    text = describe(parts["train"] + parts["ssdm"]) + "\n\n" + accuracy_table(systems, dense, ("paper, ResNet-20 on CIFAR-10", paper))
    for name, results in sorted(parts.items()):
        if name.startswith("own_"):
            of_own = systems_in(results)
            rows = [[f"`{system.label}`", each_seed(system), system.accuracy_text(),
                     "" if system.label == "dense" else system.difference_text(named(of_own, "dense"))] for system in of_own]
            text += (f"\nEach worker's own optimizer, {results[0]['local_steps']} steps from one synchronization to the next; rates stay as they are after a full "
                     f"one. {describe(results)}\n\n" + table(["system", "each seed, %", "test accuracy, %", DIFFERENCE], rows))
    return text, made


def each_seed(system: System) -> str:
    return ", ".join(f"{100 * system.accuracies[seed]:.2f}" if seed in system.accuracies else "diverged"
                     for seed in sorted(run["seed"] for run in system.runs))


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


def marsit_figure_1(parts: dict) -> tuple:
    names = sorted(parts, key=lambda name: int(name.split("_")[1]))
    made, (axes,) = figure()
    rows, orders = {}, {}
    for at, name in enumerate(names):
        found = by_spec(parts[name], lambda result: [100 * share for share in result["sign_agreements"]])
        for place, (spec, by_seed) in enumerate(found.items()):
            medians = [median(shares) for shares in by_seed]
            least, most = min(map(min, by_seed)), max(map(max, by_seed))
            middle = mean(medians)
            orders.setdefault(name.replace("workers_", "") + " workers", {})[spec] = medians
            rows.setdefault(spec, []).append(f"{spread_text(medians, '.1f')} ({least:.1f} to {most:.1f})")
            axes.bar(place + 0.4 * at, middle, 0.36, color=COLOURS[at], label=name.replace("workers_", "") + " workers" if place == 0 else None,
                     yerr=[[middle - least], [most - middle]], capsize=2)
        axes.set_xticks([place + 0.2 for place in range(len(found))])
        axes.set_xticklabels([options_of(spec)[""] for spec in found], fontsize=8)
    axes.axhline(50, color="#000000", linewidth=0.8)
    axes.set_ylim(45, 100)
    axes.set_ylabel("signs that agree with the exact mean's, %")
    legend(made, axes)
    steps = len(parts[names[0]][0]["relative_errors"])
    text = (f"Of the elements whose exact mean is not 0, the share that has its sign in the mean that is delivered; the median over {steps} recorded "
            "steps, and the least and the largest. The paper, 3 workers: cascading compression has the lowest, about 56 %; chance is 50 %.\n\n")
    return text + table(["system"] + [name.replace("_", " ").replace("workers ", "") + " workers, %" for name in names],
                        [[f"`{spec}`"] + of_spec for spec, of_spec in rows.items()]) + "\n" + order_text(orders), made


def phases(parts: dict, count: str) -> dict:
    """By spec: (ms of communication, of compression) of each seed; of Marsit also with a full step in 50, 100
    and 200."""
    found = {}
    for alone, both in zip(parts[f"communication_{count}"], parts[f"both_{count}"]):
        sent = 1e3 * alone["modelled_seconds"]
        # dense has nothing to compress; adding up is the engine's.
        coded = 0.0 if alone["spec"] == "dense" else max(0.0, 1e3 * both["modelled_seconds"] - sent)
        found.setdefault(alone["spec"], []).append((sent, coded))
    for spec in [spec for spec in found if options_of(spec)[""] == "marsit"]:
        for every in (50, 100, 200):
            found[spec.replace("100000", str(every))] = [tuple((1 - 1 / every) * one + of_full / every for one, of_full in zip(*both))
                                                         for both in zip(found[spec], found["dense"])]
    return found


def marsit_figure_5(parts: dict) -> tuple:
    counts = sorted({name.split("_")[1] for name in parts}, key=int)
    made, all_axes = figure(len(counts))
    rows, orders = {}, {}
    for count, axes in zip(counts, all_axes):
        of_seeds = phases(parts, count)
        found = {name: [mean(phase) for phase in zip(*by_seed)] for name, by_seed in of_seeds.items()}
        names = [name for name in found if not name.startswith(("marsit:full_every=50", "marsit:full_every=200"))]
        orders[f"{count} workers"] = {name: [sum(phase) for phase in of_seeds[name]] for name in names}
        for at, what in ((0, "communication"), (1, "compression")):
            below = [found[name][0] if at else 0.0 for name in names]
            axes.bar(range(len(names)), [found[name][at] for name in names], bottom=below, color=COLOURS[at], label=what)
        axes.set_xticks(range(len(names)))
        axes.set_xticklabels([name.replace(":full_every=100000", "").replace(":full_every=100", "-100").replace(":topology=", " ")
                              for name in names], rotation=40, ha="right", fontsize=7)
        axes.set_title(f"{count} workers", fontsize=10)
        axes.set_ylabel("ms")
        for name in found:
            shares = [sum(own) / sum(dense) for own, dense in zip(of_seeds[name], of_seeds["dense"])]
            rows.setdefault(name, []).extend([f"{found[name][0]:,.0f}", spread_text([coded for _, coded in of_seeds[name]], ",.0f"),
                                              spread_text(shares, ".3f")])
    legend(made, all_axes[0], 2)
    one = parts[f"communication_{counts[0]}"][0]
    head = ["system"] + [f"{count} workers: {what}" for count in counts for what in ("communication, ms", "compression, ms", "both, of dense")]
    text = ("The paper: Marsit communicates least, with little compression; cascading compression communicates little and compresses long; a torus takes "
            "less time than a ring. (Table 1, of a whole training on 3 workers: 11.2 minutes with cascading compression, 20.7 without. "
            f"Figure 3, K = 1, 50, 100, 200, never: 40.2, 22.1, 21.3, 22.4, 18.8 minutes.)\n\n{one['elements'] * one['scale']:,.0f} elements. "
            "full_every=100000 has one-bit steps alone; full_every=K is 1 - 1 / K of that and 1 / K of dense's.\n\n")
    text += table(head, [[f"`{name}`"] + of_name for name, of_name in rows.items()])
    return text + "\nBoth phases together. " + order_text(orders), made


def marsit_figure_3_rates(parts: dict) -> tuple:
    """Parts "rate_R" have a common optimizer without momentum, parts "own_R" one for each worker, with it."""
    made, all_axes = figure(len(parts))
    rows, texts = [], {}
    paper = {"50": "92.28", "100": "91.73", "200": "92.00", "0": "90.75"}
    for axes, (name, results) in zip(all_axes, sorted(parts.items(), reverse=True)):
        kind = "each worker's own" if name.startswith("own_") else "common"
        texts.setdefault(kind, []).extend(results)
        systems = systems_in(results)
        dense = named(systems, "dense")
        plot_epochs(axes, systems, "test_accuracy", "test accuracy", k_of, 1.0)
        axes.set_title(f"{kind} optimizer, rate {results[0]['lr']:g}", fontsize=9)
        rows += [[kind, f"{results[0]['lr']:g}", k_of(system),
                  each_seed(system), system.accuracy_text(), "" if system is dense else system.difference_text(dense),
                  "93.42" if system is dense else paper.get(system.options["full_every"], "")] for system in systems]
    legend(made, all_axes[0])
    head = ["optimizer", "rate", "K", "each seed, %", "test accuracy, %", DIFFERENCE, "paper's accuracy (AlexNet, CIFAR-10)"]
    text = "\n\n".join(f"{kind[0].upper()}{kind[1:]} optimizer: {describe(runs)}" for kind, runs in texts.items())
    return text + "\n\n" + table(head, rows), made

"""Marsit: each experiment's table and figure."""
from statistics import mean, median

from drawing import bars, figure, legend, panels_of_bars, place, plot_epochs, point, style
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
    raise ValueError(f"{run['label']} on {run['workers']} workers with seed {run['seed']} does not reach {accuracy}")


def rounds_text(parts: dict) -> str:
    """Whether more workers need fewer rounds."""
    rows = [[f"`{parts[part + '3'][0]['label']}`"] + [spread_text([rounds_to(run, ACCURACY_OF_ROUNDS) for run in parts[f"{part}{count}"]], ".0f") for count in (3, 8)]
            for part in ("rounds_", "rounds_marsit_")]
    return ("\nThe paper: without compression 8 workers need fewer rounds than 3, and Marsit converges the faster the more workers there are (Theorem 1). Here with batches of 16 of each worker and a constant rate of 0.1, rounds "
            f"until {100 * ACCURACY_OF_ROUNDS:.0f} % of the test set are right, looked at every 10:\n\n" + table(["system", "3 workers", "8 workers"], rows))


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
    own = sorted(name for name in parts if name.startswith("own_"))
    shown = {"a common optimizer, no momentum": systems}
    shown |= {f"own optimizers, momentum, a rate of {name.removeprefix('own_')}": systems_in(parts[name]) for name in own}
    text = describe(parts["train"] + parts["ssdm"]) + "\n\n" + accuracy_table(systems, dense, ("paper, ResNet-20 on CIFAR-10", paper))
    return text + own_optimizers(parts), panels_of_bars(shown)


def own_optimizers(parts: dict, paper: dict | None = None) -> str:
    """paper: accuracies of its own, by system."""
    text = ""
    for name, results in sorted(parts.items()):
        if name.startswith("own_"):
            systems = systems_in(results)
            rows = [[f"`{system.label}`", each_seed(system), system.accuracy_text(),
                     "" if system.label == "dense" else system.difference_text(named(systems, "dense"))]
                    + ([paper.get(system.label, "")] if paper else []) for system in systems]
            text += (f"\nEach worker's own optimizer, {results[0]['local_steps']} steps from one synchronization to the next; rates stay as they are after a full "
                     f"one. {describe(results)}\n\n" + table(["system", "each seed, %", "test accuracy, %", DIFFERENCE] + (["paper, AlexNet on CIFAR-10"] if paper else []), rows))
    return text


def marsit_table_2_alexnet(parts: dict) -> tuple:
    # The paper's K = 100 stands beside K = 25 here: as many full synchronizations.
    paper = {"dense": "82.38", "signsgd": "80.74", "ef_signsgd": "82.25", "marsit:full_every=25": "82.30 (K = 100)", "marsit:full_every=0": "81.58"}
    (results,) = parts.values()
    return own_optimizers(parts, paper).lstrip("\n"), panels_of_bars({"own optimizers, momentum": systems_in(results)})


def marsit_theorem_1(parts: dict) -> tuple:
    shown = {}
    text = "The paper: with eta_s = sqrt(1 / (T D)) and a rate of sqrt(workers / T) Marsit converges for large T.\n"
    for name, results in sorted(parts.items()):
        systems = systems_in(results)
        text += f"\n{describe(results)}\n\n" + accuracy_table(systems, named(systems, "dense"))
        shown[name.replace("_", " = ")] = systems
    return text, panels_of_bars(shown, lambda system: f"{k_of(system)}{', theorem' if 'horizon' in system.options else ''}")


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
    legend(made)
    head = ["K", "test accuracy, %", DIFFERENCE, "bits per element, frames included", "paper's accuracy", "paper's bits"]
    return describe(parts["train"]) + "\n\n" + table(head, rows), made


def deviations(parts: dict, names: list) -> str:
    """The remark of section 3.2.2 and appendix A: how far what is delivered lies from the exact mean."""
    rows = {}
    for name in names:
        for spec, values in by_spec(parts[name], lambda result: median(result["relative_errors"])).items():
            rows.setdefault(spec, []).append(spread_text(values, ".3g"))
    return ("\nThe remark of section 3.2.2, and appendix A: the deviation from the exact mean explodes with the number of workers for cascading compression, and "
            "does not for SSDM by a server. `ssdm` delivers what a server would. Distance over the exact mean's length, median over steps:\n\n" +
            table(["system"] + [name.replace("workers_", "") + " workers" for name in names], [[f"`{spec}`"] + of for spec, of in rows.items()]))


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
    legend(made)
    steps = len(parts[names[0]][0]["relative_errors"])
    text = (f"Of the elements whose exact mean is not 0, the share that has its sign in the mean that is delivered; the median over {steps} recorded "
            "steps, and the least and the largest. The paper, 3 workers: cascading compression has the lowest, about 56 %; chance is 50 %.\n\n")
    return text + table(["system"] + [name.replace("_", " ").replace("workers ", "") + " workers, %" for name in names],
                        [[f"`{spec}`"] + of_spec for spec, of_spec in rows.items()]) + "\n" + order_text(orders) + deviations(parts, names), made


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


def link_of(result: dict) -> tuple:
    """Bytes per second and seconds of latency of a link such as 1Gbit:50us."""
    rate, latency = result["link"].split(":")
    return float(rate.removesuffix("Gbit")) * 1e9 / 8, float(latency.removesuffix("us")) * 1e-6


def dense_torus(ring: dict) -> float:
    """What dense's ms on a ring would be on a torus: as many bytes, in fewer hops one after the other."""
    workers = ring["workers"]
    side = max(one for one in range(1, workers + 1) if workers % one == 0 and one * one <= workers)
    hops = 2 * (side - 1) + 2 * (workers // side - 1)
    return 1e3 * (ring["modelled_seconds"] - (2 * (workers - 1) - hops) * link_of(ring)[1])


# Of every element: bits up to a server and bits back.
BY_SERVER = {"dense": (32, 32), "ssdm, sums of signs come back": (1, None), "ssdm, one bit comes back": (1, 1)}


def servers(parts: dict, counts: list) -> str:
    """Figure 1 (a): a parameter server, computed, beside what is sent by all-reduce."""
    rows = []
    for name, (up, down) in BY_SERVER.items():
        row = [name]
        for count in counts:
            found = {one["spec"]: one for one in parts[f"communication_{count}"]}
            ring = found["dense" if name == "dense" else "ssdm:topology=ring"]
            rate, latency = link_of(ring)
            back = down or int(count).bit_length()  # a sum of signs has one of count + 1 values
            one_link = 1e3 * (ring["elements"] * ring["scale"] / 8 * (up + back) / rate + 2 * latency)
            row += [f"{1e3 * ring['modelled_seconds']:,.0f}", f"{int(count) * one_link:,.0f}", f"{one_link:,.0f}"]
        rows.append(row)
    return ("\nFigure 1 (a), a parameter server, computed: every worker sends all to it and gets all back. The paper: without compression an all-reduce takes less "
            "time than a server, and SSDM's takes more, since its sums grow. The server has one link as the workers have, or one that is no limit. Communication, ms:\n\n" +
            table(["system"] + [f"{count} workers: {what}" for count in counts for what in ("ring", "server with one link", "server without limit")], rows))


def marsit_figure_5(parts: dict) -> tuple:
    counts = sorted({name.split("_")[1] for name in parts}, key=int)
    made, all_axes = figure(len(counts))
    rows, orders = {}, {}
    for count, axes in zip(counts, all_axes):
        of_seeds = phases(parts, count)
        of_seeds["dense, torus, computed"] = [(dense_torus(one), 0.0) for one in parts[f"communication_{count}"] if one["spec"] == "dense"]
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
    legend(made, 2)
    one = parts[f"communication_{counts[0]}"][0]
    head = ["system"] + [f"{count} workers: {what}" for count in counts for what in ("communication, ms", "compression, ms", "both, of dense")]
    text = ("The paper: Marsit communicates least, with little compression; cascading compression communicates little and compresses long; a torus takes "
            "less time than a ring. (Table 1, of a whole training on 3 workers: 11.2 minutes with cascading compression, 20.7 without. "
            f"Figure 3, K = 1, 50, 100, 200, never: 40.2, 22.1, 21.3, 22.4, 18.8 minutes.)\n\n{one['elements'] * one['scale']:,.0f} elements. "
            "full_every=100000 has one-bit steps alone; full_every=K is 1 - 1 / K of that and 1 / K of dense's.\n\n")
    text += table(head, [[name if " " in name else f"`{name}`"] + of_name for name, of_name in rows.items()])
    return text + "\nBoth phases together. " + order_text(orders) + servers(parts, counts), made


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
    legend(made)
    head = ["optimizer", "rate", "K", "each seed, %", "test accuracy, %", DIFFERENCE, "paper's accuracy (AlexNet, CIFAR-10)"]
    text = "\n\n".join(f"{kind[0].upper()}{kind[1:]} optimizer: {describe(runs)}" for kind, runs in texts.items())
    return text + "\n\n" + table(head, rows), made


def synchronization(times: dict, label: str) -> list:
    """Seconds of one synchronization with each seed, on a ring. times: what phases() found."""
    name, every = options_of(label)[""], options_of(label).get("full_every")
    if every is None:
        found = times[name if name in ("dense", "signsgd") else f"{name}:topology=ring"]
        return [sum(both) / 1e3 for both in found]
    full = 1 / int(every) if every != "0" else 0.0
    return [((1 - full) * sum(one) + full * sum(dense)) / 1e3 for one, dense in zip(times["marsit:full_every=100000"], times["dense"])]


def reached(run: dict, accuracy: float, key):
    """key(epoch) where a training reaches an accuracy, by straight lines between epochs' ends from chance on;
    None where it does not."""
    before = (0.1, 0.0)
    for epoch in run["epochs"]:
        now = (epoch["test_accuracy"], key(epoch))
        if now[0] >= accuracy:
            return before[1] + (now[1] - before[1]) * (accuracy - before[0]) / (now[0] - before[0])
        before = now
    return None


def at_most(run: dict, sent: float) -> float:
    """The accuracy with so many bytes sent, in the same way."""
    before = (0.1, 0.0)
    for epoch in run["epochs"]:
        now = (epoch["test_accuracy"], epoch["wire_bytes_so_far"])
        if now[1] >= sent:
            return before[0] + (now[0] - before[0]) * (sent - before[1]) / (now[1] - before[1])
        before = now
    return before[0]


# Accuracies that most systems of a part reach.
ACCURACY_OF_FIGURE_4 = {"train": 0.8, "own_0.005": 0.7, "own_0.002": 0.6}


def of_figure_4(name: str, results: list, times: dict, axes: tuple) -> str:
    systems = [system for system in systems_in(results) if system.whole()]
    local = max(1, results[0].get("local_steps") or 1)
    steps = lambda epoch: epoch["epoch"] * epoch["steps"] / local  # noqa: E731
    best = max((system for system in systems if system.options[""] == "marsit" and system.options["full_every"] != "0"), key=System.accuracy)
    sent_then = mean([run["epochs"][-1]["wire_bytes_so_far"] for run in best.runs])
    sent_first = mean([run["epochs"][0]["wire_bytes_so_far"] for run in best.runs])
    wanted = ACCURACY_OF_FIGURE_4[name]
    dense = named(systems, "dense")
    of_dense = [reached(run, wanted, steps) * each for run, each in zip(dense.runs, synchronization(times, "dense"))]
    rows = []
    for system in systems:
        at = place(axes[0], system.label)
        seconds = synchronization(times, system.label)
        accuracies = [mean(values) for values in zip(*system.by_epoch("test_accuracy"))]
        axes[0].plot([steps(epoch) * mean(seconds) for epoch in system.runs[0]["epochs"]], accuracies, label=system.label, **style(at))
        axes[1].plot([mean([run["epochs"][epoch]["wire_bytes_so_far"] for run in system.runs]) / 1e6 for epoch in range(len(accuracies))], accuracies,
                     label=system.label, **style(at))
        until = [reached(run, wanted, steps) for run in system.runs]
        bytes_until = [reached(run, wanted, lambda epoch: epoch["wire_bytes_so_far"]) for run in system.runs]
        missing = any(value is None for value in until)
        rows.append([f"`{system.label}`", system.accuracy_text(), f"{mean([run['epochs'][-1]['wire_bytes_so_far'] for run in system.runs]) / 1e6:,.1f}"] +
                    (["not reached by each seed"] * 2 if missing else [
                        spread_text([value / 1e6 for value in bytes_until], ",.1f"),
                        spread_text([one / (many * each) for one, many, each in zip(of_dense, until, seconds)], ".1f")]) +
                    [spread_text([100 * at_most(run, sent) for run in system.runs], ".1f") for sent in (sent_first, sent_then)])
    axes[0].set_xscale("log")
    axes[1].set_xscale("log")
    axes[0].set_xlabel("seconds of synchronization, 16 workers")
    axes[1].set_xlabel("MB sent by each of 4 workers")
    axes[0].set_ylabel("test accuracy" if name == "train" else "test accuracy, own optimizers")
    kind = "A common optimizer" if name == "train" else f"Each worker's own optimizer, {local} steps from one synchronization to the next"
    return (f"\n{kind}. {describe(results)}\n\n" +
            table(["system", "test accuracy, %", "MB of the training", f"MB until {100 * wanted:.0f} %", f"times as fast as dense until {100 * wanted:.0f} %",
                   f"accuracy at {sent_first / 1e6:,.1f} MB, of the first epoch of `{best.label}`, %", f"at its {sent_then / 1e6:,.1f} MB, %"], rows))


def marsit_figure_4(parts: dict) -> tuple:
    trained = [name for name in ("train", "own_0.005", "own_0.002") if f"marsit_table_2/{name}" in parts]
    times = phases({name.removeprefix("marsit_figure_5/"): results for name, results in parts.items()}, "16")
    made, all_axes = figure(2 * len(trained))
    text = ("The paper, ResNet-50 on ImageNet: Marsit reaches a similar accuracy 1.5 times as fast as PSGD; it sends 90 % less than PSGD and 70 % less than other "
            "one-bit systems; with the same bytes it has the higher accuracy.\n\nAccuracies are marsit_table_2's, with 4 workers. A synchronization "
            "takes what marsit_figure_5 has for a ring of 16 workers, 57 million elements; computing is left out, which favours whatever sends least. "
            "Accuracies are known after each of four epochs; between them, and from chance on, lines are straight.\n")
    for at, name in enumerate(trained):
        text += of_figure_4(name, parts[f"marsit_table_2/{name}"], times, all_axes[2 * at:2 * at + 2])
    legend(made)
    return text, made


def marsit_sign_rings(parts: dict) -> tuple:
    made, (axes,) = figure()
    counts = sorted(int(name.split("_")[1]) for name in parts)
    sent = {}
    for count in counts:
        for result in parts[f"workers_{count}"]:
            sent.setdefault(result["spec"], []).append(result["wire_bytes_sent_max"])
    for at, (spec, of) in enumerate(sent.items()):
        axes.plot(counts, [each / 1e3 for each in of], label=spec.replace(":feedback=off", ""), **style(at))
    axes.set_xticks(counts)
    axes.set_xlabel("workers")
    axes.set_ylabel("kB that a worker sends")
    legend(made)
    text = ("The paper: sums of signs grow on a ring, up to log2 of the workers in bits, and Elias coding makes them shorter. Bytes of the worker that sends "
            "most:\n\n")
    return text + table(["system"] + [f"{count} workers" for count in counts], [[f"`{spec}`"] + [f"{each:,.0f}" for each in of] for spec, of in sent.items()]), made

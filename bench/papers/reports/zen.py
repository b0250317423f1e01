"""Zen: each experiment's table and figure."""
from math import log, sqrt
from statistics import mean, stdev

from drawing import figure, legend, place, style
from plotting import COLOURS, deviation, spread_text
from runs import by_spec, options_of, order_text, table, table_system

ORDER_OF_ELEMENTS = ("Side by side: popular elements lie together, as in an embedding sorted by frequency, which loads even slices (`sparse_ps`) "
                     "unevenly. That is more skewed than the paper's gradients, of which over 60 % of the non-zeros lie in the first of eight "
                     "partitions; scattered is less skewed. docs/gain.md has LSTM and DeepFM scattered, where even slices do nearly as well as "
                     "hashed ones.")


def setting_name(part: str, parts: dict) -> str:
    """"LSTM, side by side": the part's name and how its elements lie."""
    name = part.removesuffix("_contiguous").removesuffix("_skewed").replace("_", " ")
    if part.endswith(("_skewed", "_rows")):
        return name + ", the paper's skew"
    return name + (", side by side" if parts[part][0].get("contiguous") else ", scattered")


def speedup(result: dict) -> float:
    return 1 / result["time_vs_dense"]


def zen_figure_13(parts: dict) -> tuple:
    llms = "3.44 (OPT-2.7B), 3.51 (Gemma2-2B)"
    paper = {"LSTM": "6.77", "DeepFM": "2.10", "top_5_percent": llms, "top_5_percent_contiguous": llms}
    order = [name for name in ("LSTM", "DeepFM", "NMT", "top_5_percent", "top_5_percent_contiguous") if name in parts]
    speedups = {name: by_spec(parts[name], speedup) for name in order}
    made, (axes,) = figure()
    made.set_size_inches(8, 4.6)
    rows = []
    for at, spec in enumerate(speedups[order[0]]):
        means = [mean(speedups[name][spec]) for name in order]
        drawn = axes.bar([place + at * 0.16 for place in range(len(order))], means, 0.15, color=COLOURS[at],
                         label=options_of(spec)[""])
        axes.bar_label(drawn, labels=[f"{value:.1f}" for value in means], fontsize=6)
        rows.append([f"`{spec}`"] + [spread_text(speedups[name][spec], ".2f") for name in order])
    axes.axhline(1, color="#000000", linewidth=0.8)
    axes.set_xticks([place + 0.32 for place in range(len(order))])
    axes.set_xticklabels([setting_name(name, parts).replace(", ", "\n") for name in order])
    axes.set_yscale("log")
    axes.set_ylabel("times faster than dense all-reduce")
    legend(made, 5)
    rows.append(["the paper's zen"] + [paper.get(name, "") for name in order])
    text = f"Communication at 16 workers, times faster than dense. {ORDER_OF_ELEMENTS}\n\n"
    return text + table(["system"] + [setting_name(n, parts) for n in order], rows) + "\n" + order_text(speedups), made


def bitmaps() -> str:
    """Section 3.3's sizes."""
    megabytes, servers = 856, 16
    rows = [["bitmaps, owners with even slices", f"{megabytes / 32:.0f}", "27"],
            [f"bitmaps of all indices, {servers} hashed owners", f"{servers * megabytes / 32:.0f}", "428"],
            [f"hash bitmaps, {servers} hashed owners", f"{megabytes / 32:.0f}", "27, whatever the number of owners"]]
    return (f"\nSection 3.3, {megabytes} MB of DeepFM's table: a bit for each index that an owner may have, MB that a worker gets, computed. Of hash bitmaps the table above "
            "shows that size: at each density what it has beyond the density itself.\n\n" + table(["format", "MB", "paper"], rows))


def zen_figure_15(parts: dict) -> tuple:
    # Of the largest sender, without frame headers, as a share of dense's bytes of an all-gather.
    by_density = {}
    for result in parts["formats"]:
        payload = result["wire_bytes_sent_max"] - result["frame_header_bytes_max"]
        by_density.setdefault(result["density_wanted"], {}).setdefault(result["spec"], []).append(payload)
    workers = parts["formats"][0]["workers"]
    elements = parts["formats"][0]["elements"]
    dense_pull = 4 * elements * (workers - 1) / workers
    lines = {"lists (COO)": [], "hash bitmap alone": [], "the smaller of the two": [], "blocks of 256 (OmniReduce)": [], "bitmap of all indices (computed)": []}
    densities = sorted(by_density)
    for density in densities:
        sizes = {spec: mean(payloads) for spec, payloads in by_density[density].items()}
        push = sizes["zen:scheme=push_pull:pull=list"] / 2
        lines["lists (COO)"].append(push / dense_pull)
        lines["hash bitmap alone"].append((sizes["zen:scheme=push_pull:pull=bitmap"] - push) / dense_pull)
        lines["the smaller of the two"].append((sizes["zen:scheme=push_pull"] - push) / dense_pull)
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
    text += bitmaps()
    steps = [("sparse_ps", "lists, even slices"), ("zen:scheme=push_pull:pull=list", "lists, hashed owners"),
             ("zen:scheme=push_pull:pull=bitmap", "hash bitmap alone, hashed owners"),
             ("zen:scheme=push_pull", "the smaller of the two, hashed owners")]
    settings = sorted(name for name in parts if name.startswith("breakdown_"))
    speedups = {setting: by_spec(parts[setting], speedup) for setting in settings}
    rows = []
    for at, (spec, name) in enumerate(steps):
        means = [mean(speedups[setting][spec]) for setting in settings]
        drawn = breakdown.bar([place + at * 0.2 for place in range(len(settings))], means, 0.18, color=COLOURS[at], label=name)
        breakdown.bar_label(drawn, labels=[f"{value:.2f}" for value in means], fontsize=7)
        rows.append([name] + [spread_text(speedups[setting][spec], ".2f") for setting in settings])
    titles = [setting_name(setting, parts)[len("breakdown_"):] for setting in settings]
    breakdown.set_xticks([place + 0.3 for place in range(len(settings))])
    breakdown.set_xticklabels([title.replace(", ", "\n") for title in titles])
    breakdown.set_ylabel("times faster than dense all-reduce")
    breakdown.legend(frameon=False, fontsize=8)
    made.tight_layout()
    text += ("\n(b) Communication, times faster than dense. The paper (throughput of training): lists through Algorithm 1 2.74 times for LSTM and 1.53 "
             f"for Llama3.2-3B, the hash bitmap 13 % and 34 % more. {ORDER_OF_ELEMENTS}\n\n")
    return text + table(["step"] + titles, rows) + "\n" + order_text(dict(zip(titles, speedups.values()))), made


def extremes_of_real_gradients(gradients: dict) -> str:
    """Section 2.3's inequality, from densifications: true where Balanced Parallelism is the faster scheme."""
    rows = []
    for name, seeds in gradients.items():
        left = [1 + sum(found["gammas"][count][1] for count in ("2", "4", "8")) for found in seeds]
        right = [15 / 16 * (found["gammas"]["16"][1] + 1) for found in seeds]
        rows.append([titled(name), spread_text(left, ".2f"), spread_text(right, ".2f")])
    return ("\nSection 2.3: with 16 workers Balanced Parallelism (zen's push and pull) is faster than Hierarchical Centralization where 1 and the densifications of 2, 4 and 8 "
            "workers have a larger sum than 15/16 of 1 and that of 16. The paper: that is so in practice.\n\n" +
            table(["gradient", "the sum for Hierarchical Centralization", "for Balanced Parallelism"], rows))


def titled(name: str) -> str:
    return name.replace("_", " ").replace("top 5 percent", "top 5 %")


ELEMENTS_OF_LSTM_TABLE = 1_280_000


def batches_of_1(results: list) -> str:
    """Section 2.4's claim about few workers with little to send."""
    seconds, sent, of_table = {}, {}, {}
    for result in results:
        name = table_system(result["spec"])
        beside = 2 * (result["workers"] - 1) / result["workers"] * 4 * (result["elements"] - ELEMENTS_OF_LSTM_TABLE)
        of_table.setdefault(name, []).append(result["wire_bytes_formula"] - beside)
        seconds.setdefault(name, []).append(1e3 * result["modelled_seconds"])
        sent.setdefault(name, []).append(result["wire_bytes_sent_max"])
    return ("\nSection 2.4: with 8 GPUs and batches of 1 SparCML is the best of the known schemes. Here the LSTM's gradients of 8 workers with batches of 1, at "
            "25 Gbit/s; the table by each scheme, the rest by dense in every line; computing free:\n\n" +
            table(["table by", "bytes per worker and step", "of these the table's, without frame headers", "ms", "times as fast as dense"],
                  [[f"`{name}`", f"{mean(sent[name]):,.0f}", spread_text(of_table[name], ",.0f"), spread_text(of, ".3f"),
                    spread_text([dense / own for dense, own in zip(seconds["dense"], of)], ".2f")] for name, of in seconds.items()]) +
            "\n" + order_text({"batches of 1": seconds}))


def zen_figure_2(parts: dict) -> tuple:
    made, (overlap, growth, skew) = figure(3)
    rows, ratios = [], []
    gradients = {name: part for name, part in parts.items() if name != "batches_of_1"}
    for at, (name, seeds) in enumerate(gradients.items()):
        title = titled(name)
        overlaps = [ratio for found in seeds for ratio in found["overlaps"]]
        overlap.hist(overlaps, bins=[share / 40 for share in range(41)], density=True, histtype="step", color=COLOURS[at], label=title)
        counts = list(seeds[0]["gammas"])
        gammas = [[found["gammas"][count][1] for found in seeds] for count in counts]
        growth.plot([int(count) for count in counts], [mean(of) for of in gammas], label=title, **style(at))
        skew.plot(range(1, 9), [mean(shares) for shares in zip(*(found["partitions_by_frequency"] for found in seeds))], label=title, **style(at))
        rows.append([title, f"{seeds[0]['places']:,}", f"{100 * mean([found['density'] for found in seeds]):.2f} %",
                     f"{mean(overlaps):.2f} ± {stdev(overlaps):.2f}"] +
                    [spread_text(gammas[counts.index(count)], ".2f") for count in ("2", "4", "8", "16")] +
                    [spread_text([found[what][0] for found in seeds], ".2f") for what in ("partitions", "partitions_by_frequency")])
        skews = [found["skewness_ratios"] for found in seeds if "skewness_ratios" in found]
        if skews:
            ratios.append([title, len(skews)] + [spread_text([of[count] for of in skews], ".1f") for count in skews[0]])
    growth.plot([2, 16], [2, 16], color="#000000", linewidth=0.8, label="as many as workers")
    for axes, x, y in ((overlap, "overlap ratio of two workers", "density"), (growth, "workers", "densification"),
                       (skew, "partition, by frequency", "share of a worker's non-zeros")):
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    legend(made, 3)
    text = ("The paper: two workers' non-zeros overlap in part, by a ratio that varies; the densification grows with the workers and stays below their "
            "number; with eight partitions over 60 % of the non-zeros are in the first.\n\nA model with tables: its rows; partitions are of each table by itself, and "
            "the mean over tables counts. Otherwise the elements of the largest 5 % of magnitudes, all parameters one behind the other. By frequency: as it would be in a table that is sorted by how often "
            "its rows were used in these steps. Overlaps with their deviation over pairs, steps and seeds; the rest over seeds.\n\n")
    head = ["gradient", "rows or elements", "density", "overlap ratio of two", "densification of 2", "4", "8", "16", "in the first of 8 partitions",
            "the same by frequency"]
    counts = next(seeds[0]["skewness_ratios"] for seeds in gradients.values() if "skewness_ratios" in seeds[0])
    text += table(head, rows) + ("\nFigure 3 (b), the skewness ratio: the largest partition's share times the number of partitions. The paper: over 70 with 128 for LSTM's "
                                 "table.\n\n") + table(["gradient", "seeds"] + [f"{count} partitions" for count in counts], ratios)
    return text + extremes_of_real_gradients(gradients) + batches_of_1(parts["batches_of_1"]), made


def speedups_over(dense: list, results: list) -> dict:
    """Of each spec, how many times faster than `dense`, a dense bucket with the same seed."""
    seconds = {one["seed"]: one["modelled_seconds"] for one in dense}
    return by_spec(results, lambda result: seconds[result["seed"]] / result["modelled_seconds"])


def short(spec: str) -> str:
    """A system's name, and SparCML's switch to a dense vector."""
    options = options_of(spec)
    return options[""] + (":switch=on" if options.get("switch") == "on" else "")


def zen_figure_8(parts: dict) -> tuple:
    made, all_axes = figure(2)
    text = ("The paper: at 128 workers Balanced Parallelism with lists takes 36 % less than dense, and half of its time is indices; no other scheme is "
            "below dense there. AGsparse is above it from 40 workers on, OmniReduce gains with few workers.\n\n")
    for axes, name in zip(all_axes, [name for name in ("elements", "rows") if name in parts]):
        times_by_spec = {}
        for result in parts[name]:
            if result["spec"] == "dense":
                continue
            times = times_by_spec.setdefault(short(result["spec"]), {})
            times.setdefault(result["workers"], []).append(result["time_vs_dense"])
            if result["spec"].startswith("zen") and name == "elements":
                # Half of a list is indices; what is left over of the time is latency.
                rate = float(result["link"].split("Gbit:")[0]) * 1e9 / 8
                sent = result["wire_bytes_sent_max"] * result["scale"] / rate
                ideal = result["time_vs_dense"] * (1 - sent / 2 / result["modelled_seconds"])
                times_by_spec.setdefault("zen without indices, computed", {}).setdefault(result["workers"], []).append(ideal)
        counts = sorted({result["workers"] for result in parts[name]})
        for spec, times in times_by_spec.items():
            axes.plot(counts, [mean(times[count]) for count in counts], label=spec, **style(place(axes, spec)))
        axes.axhline(1, color="#000000", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(counts)
        axes.set_xticklabels(counts)
        axes.set_xlabel("workers")
        axes.set_ylabel("time, of dense's")
        axes.set_title("single elements" if name == "elements" else "rows of 256", fontsize=10)
        gammas = {result["workers"]: result["gamma"] for result in parts[name]}
        rows = [["densification"] + [f"{gammas[count]:.2f}" for count in counts]]
        rows += [[f"`{spec}`" if " " not in spec else spec] + [spread_text(times[count], ".3f") for count in counts]
                 for spec, times in times_by_spec.items()]
        orders = {f"{count} workers": {spec: times[count] for spec, times in times_by_spec.items() if " " not in spec} for count in counts}
        text += f"Time of dense's, {axes.get_title()}:\n\n" + table(["workers"] + [str(count) for count in counts], rows)
        text += "\n" + order_text(orders) + "\n"
    legend(made, 3)
    return text + imbalances(parts) + extremes(parts), made


def imbalances(parts: dict) -> str:
    """Theorem 2: what zen's push measured, beside the bound's root."""
    rows = []
    for name, what in (("elements", "elements"), ("rows", "rows")):
        by_count = {}
        for result in parts[name]:
            if result["spec"].startswith("zen"):
                by_count.setdefault(result["workers"], []).append(result)
        for count, results in by_count.items():
            listed = results[0]["elements"] / (results[0]["row_width"] or 1) * results[0]["density_in"]
            root = sqrt(count * log(count) / listed)
            pushes = [result["imbalance_push"] for result in results]
            rows.append([f"{listed:,.0f} {what}", count, spread_text(pushes, ".2f"), f"{root:.3f}", spread_text([(push - 1) / root for push in pushes], ".1f")])
    return ("\nTheorem 2: the imbalance of a push is at most 1 and a constant times sqrt(n log n / non-zeros) with a probability of 1 - 1 / n. The push of the worst "
            "worker:\n\n" + table(["non-zeros of a worker", "owners", "imbalance", "the root", "(imbalance - 1) / root"], rows))


def times_of_schemes(parts: dict, kind: str) -> str:
    """A table of ms, by the scheme and the densification."""
    names = sorted((name for name in parts if name.startswith(kind)), key=lambda name: float(name.split("_")[1]))
    rows = {}
    for name in names:
        for spec, values in by_spec(parts[name], lambda result: 1e3 * result["modelled_seconds"]).items():
            rows.setdefault(spec, []).append(spread_text(values, ".2f"))
    return table(["scheme"] + [f"densification {parts[name][0]['gamma']:.2f}" for name in names], [[f"`{spec}`"] + of for spec, of in rows.items()])


def extremes(parts: dict) -> str:
    """Section 2.3's two extremes, by both of the best schemes; and what zen takes."""
    return ("\nSection 2.3's extremes, 16 workers, computed. The paper: when all workers have the same non-zeros Balanced Parallelism takes about half of what "
            "Hierarchical Centralization takes; when they have none in common it takes a little longer. Lists both ways; ms:\n\n" +
            times_of_schemes(parts, "extremes_") +
            "\nTheorem 1: which of the two `zen` takes by itself, from one step that it profiled. The same gradients without scale, at 1 Gbit/s; ms:\n\n" +
            times_of_schemes(parts, "choices_"))


def zen_figure_13_rows(parts: dict) -> tuple:
    models = ("LSTM", "DeepFM", "NMT", "top_5_percent")
    paper = {"LSTM": "6.77", "DeepFM": "2.10", "top_5_percent": "3.44 (OPT-2.7B), 3.51 (Gemma2-2B)"}
    made, all_axes = figure(2)
    text = ("Communication at 16 workers, times faster than dense. In the paper OmniReduce is the best baseline of DeepFM and NMT, SparCML of LSTM, and "
            "AGsparse, SparCML and Sparse PS can lose to dense.\n\n")
    for axes, codec in zip(all_axes, ("off", "measured")):
        rows = []
        speedups = {model.replace("_", " "): speedups_over(parts[f"{model}_dense_{codec}"], parts[f"{model}_{codec}"]) for model in models}
        for at, spec in enumerate(speedups["LSTM"]):
            of_models = [of_model[spec] for of_model in speedups.values()]
            axes.bar([place + at * 0.12 for place in range(len(models))], [mean(values) for values in of_models], 0.11, color=COLOURS[at],
                     label=short(spec) + (":rows=block" if "rows=block" in spec else ""))
            rows.append([f"`{spec}`"] + [spread_text(values, ".2f") for values in of_models])
        gammas = [parts[f"{model}_{codec}"][0]["gamma"] for model in models]
        rows += [["densification"] + [f"{gamma:.1f}" for gamma in gammas], ["the paper's zen"] + [paper.get(model, "") for model in models]]
        axes.axhline(1, color="#000000", linewidth=0.8)
        axes.set_yscale("log")
        axes.set_xticks([place + 0.35 for place in range(len(models))])
        axes.set_xticklabels([model.replace("_", " ") for model in models])
        axes.set_title("computing free" if codec == "off" else "with each codec's CPU time", fontsize=10)
        text += ("Computing free" if codec == "off" else "With each codec's CPU time") + ":\n\n" + table(["system"] + list(speedups), rows)
        text += "\n" + order_text(speedups) + "\n"
    all_axes[0].set_ylabel("times faster than dense all-reduce")
    legend(made, 5)
    return text, made


def range_of(values: list) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def aged_thresholds(parts: dict, axes) -> str:
    """How evenly thresholds share gradients: the tables, and the picture."""
    found = {name: part for name, part in parts.items() if name not in ("split", "LSTM_systems")}
    rows = []
    for at, (name, seeds) in enumerate(found.items()):
        title = name.replace("_", " ").replace("top 5 percent", "top 5 %")
        one = seeds[0]
        steps = [one["apart"] * step for step in range(len(one["first"]))]
        axes.plot(steps, one["first"], label=f"{title}: thresholds", **style(at))
        axes.plot(steps, one["hash"], label=f"{title}: hash", **{**style(at), "linestyle": ":"})
        rows.append([title, f"{one['places']:,}", f"{mean([part['non_zeros'] for part in seeds]):,.0f}"] +
                    [range_of([value for part in seeds for value in values_of(part)]) for values_of in (
                        lambda part: part["by_age"]["0"], lambda part: part["by_age"][str(part["apart"])], lambda part: part["first"][1:],
                        lambda part: [value for age, values in part["by_age"].items() if age != "0" for value in values],
                        lambda part: part["first_pull"][1:], lambda part: part["slices"], lambda part: part["hash"])])
    axes.set_xlabel("step")
    axes.set_ylabel("imbalance of the push, 16 owners")
    axes.set_title("thresholds of step 0", fontsize=10)
    axes.set_ylim(0, 1.5 * max(max(seeds[0]["first"]) for seeds in found.values()))
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    any_part = next(iter(found.values()))[0]
    one, last = any_part["apart"], any_part["apart"] * (len(any_part["first"]) - 1)
    text = ("\nThresholds. The paper: the union of a step's indices is sorted and cut evenly, and the cuts are the owners' thresholds for the next 1000 "
            "steps. NMT's push among 16 then has an imbalance that fluctuates between 1.4 and 5.1. Imbalance: the largest share of a worker's non-zeros "
            "that one owner gets, times the number of owners; of the worst worker.\n\n"
            f"Gradients of steps 0, {one}, ... {last} of one training with each seed, 16 workers and 16 owners; least and largest value of all. The picture has the first seed. The hash is a random permutation "
            "here.\n\n")
    text += table(["gradient", "rows or elements", "non-zeros of a worker", "thresholds of the same step", f"{one} steps old",
                   f"of step 0, {one} to {last} steps old", f"any, {one} to {last} steps old", "the pull, of step 0", "even slices", "hash"], rows)
    text += "\nThe systems themselves on the LSTM's gradients, the worst of steps and workers; thresholds are those of step 0:\n\n"
    return text + table(["system", "imbalance of the push", "of the pull"],
                        [[f"`{spec}`", range_of([push for push, _ in of_seeds]), range_of([pull for _, pull in of_seeds])]
                         for spec, of_seeds in by_spec(parts["LSTM_systems"], lambda result: (result["imbalance_push"], result["imbalance_pull"])).items()])


def strawmen(benchmarks: dict, one_in: int, axes) -> list:
    """Rows of figure 14's table: what section 3 of the paper argues against. Draws what Algorithm 3 loses."""
    times, lost = benchmarks["times"], benchmarks["lost"]
    rows = []
    for what, name in (("thresholds of another step, the split alone", "thresholds"), ("thresholds, the sort alone", "sort_for_thresholds"),
                       ("thresholds for all 16 ranks, by sorting their indices", "mapping_by_sorting"),
                       ("the same by a bitmap", "mapping_by_bitmap")):
        if f"split_among_16_owners/{name}/one_in:{one_in}/manual_time" not in times:
            continue  # of an earlier build
        of = times[f"split_among_16_owners/{name}/one_in:{one_in}/manual_time"]
        rows.append([f"1 in {one_in}", what, "", "", spread_text(of, ".2f"), "0"])
    begin = f"split_among_16_owners/algorithm_3/one_in:{one_in}/memory_percent:"
    memories = sorted(int(name[len(begin):].split("/")[0]) for name in times if name.startswith(begin))
    shares = []
    for memory in memories:
        of = times[f"{begin}{memory}/manual_time"]
        shares.append(lost[f"{begin}{memory}/manual_time"])
        rows.append([f"1 in {one_in}", "Algorithm 3", f"{memory / 100:g} nnz", 1, spread_text(of, ".2f"), f"{100 * shares[-1]:.2f} %"])
    axes.plot([memory / 100 for memory in memories], shares, label=f"one element in {one_in}", **style(0 if one_in == 100 else 1))
    return rows


def written_serially(memory: float, hashes: int, steps: int = 10000) -> float:
    """Of the indices the share that finds no free place under any hash, with a memory of so many times their
    number: the share of places that is full grows by 1 - full^hashes for each index."""
    full = 0.0
    for _ in range(steps):
        full += (1 - full ** hashes) / (steps * memory)
    return 1 - full * memory


def collisions() -> str:
    counts = (1, 2, 3, 4)
    return ("\nTechnique #2 of section 3.2. The paper: with four hashes less than 1 % of the indices collide. Computed for hashes that are independent and even, the "
            "share that no hash finds a free place for:\n\n" +
            table(["r1"] + [f"k = {count}" for count in counts],
                  [[f"{memory} nnz"] + [f"{100 * written_serially(memory, count):.2f} %" for count in counts] for memory in (1, 2, 4)]))


def zen_figure_14(parts: dict) -> tuple:
    times, lost = {}, {}
    for process in parts["split"]:
        repeated = {}
        for run in process["benchmarks"]:
            if run["run_type"] == "iteration":
                repeated.setdefault(run["run_name"], []).append(run["cpu_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1.0}[run["time_unit"]])
                lost[run["run_name"]] = run.get("lost_share", 0)
        for name, repetitions in repeated.items():
            times.setdefault(name, []).append(mean(repetitions))
    made, all_axes = figure(4)
    rows = []
    for axes, one_in in zip(all_axes, (100, 10)):
        sort = f"split_among_16_owners/one_in:{one_in}/manual_time"
        rows.append([f"1 in {one_in}", "counting sort", "", "", spread_text(times[sort], ".2f"), "0"])
        for at, what in enumerate(("r1", "k")):
            settings = [(1, 3), (2, 3), (4, 3)] if what == "r1" else [(2, 1), (2, 2), (2, 3), (2, 4)]
            found = []
            for memory, hashes in settings:
                of = times[f"split_among_16_owners/algorithm_1_shape/one_in:{one_in}/r1_percent:{100 * memory}/k:{hashes}/manual_time"]
                found.append((memory if what == "r1" else hashes, mean(of), deviation(of)))
                if (what, memory, hashes) != ("k", 2, 3):
                    rows.append([f"1 in {one_in}", "Algorithm 1", f"{memory} nnz", hashes, spread_text(of, ".1f"), "0"])
            axes.errorbar([x for x, _, _ in found], [y for _, y, _ in found], yerr=[error for _, _, error in found], capsize=3,
                          label="against r1 over nnz, k = 3" if what == "r1" else "against k, r1 = 2 nnz", **style(at))
        rows += strawmen({"times": times, "lost": lost}, one_in, all_axes[2])
        axes.set_title(f"one element in {one_in}", fontsize=10)
        axes.set_ylabel("ms")
        axes.set_ylim(bottom=0)
    all_axes[2].set_title("Algorithm 3", fontsize=10)
    all_axes[2].set_xscale("log")
    all_axes[2].set_xlabel("memory over nnz")
    all_axes[2].set_ylabel("share of the indices that is lost")
    all_axes[2].legend(frameon=False, fontsize=8)
    text = ("The paper, on a GPU: r1 = 2 nnz takes less than 1 or 4, and k = 3 less than 1 and as much as 4.\n\n25 million elements, split among 16 "
            "owners on one core; processor time, mean and deviation of three processes, each with three repetitions.\n\nk = 1 is technique #1 of section 3.2: one hash, and collisions are "
            "written one after the other. Algorithm 3 is the strawman of section 3.2 and appendix A: one hash, and an index overwrites another one. The "
            "paper: 17.5 % are lost with memory of a dense tensor's size at a density of 10 %, here 10 nnz, and 4.8 % with four times as much. Thresholds "
            "are the strawman of section 3.1. Algorithm 1's time has the sort of what each owner got, which the others need not or do not do.\n\n")
    text += table(["density", "split", "memory", "hashes", "ms", "lost"], rows) + collisions()
    text += aged_thresholds(parts, all_axes[3])
    made.tight_layout()
    legend(made)
    return text, made

"""Zen: each experiment's table and figure."""
from drawing import figure, legend, style
from plotting import COLOURS
from runs import options_of, table

ORDER_OF_ELEMENTS = ("Side by side: popular elements lie together, as in an embedding sorted by frequency, which loads even slices (`sparse_ps`) "
                     "unevenly. That is more skewed than the paper's gradients, of which over 60 % of the non-zeros lie in the first of eight "
                     "partitions; scattered is less skewed. docs/gain.md has LSTM and DeepFM scattered, where even slices do nearly as well as "
                     "hashed ones.")


def setting_name(part: str, parts: dict) -> str:
    """"LSTM, side by side": the part's name and how its elements lie."""
    name = part.removesuffix("_contiguous").replace("_", " ")
    return name + (", side by side" if parts[part][0].get("contiguous") else ", scattered")


def zen_figure_13(parts: dict) -> tuple:
    llms = "3.44 (OPT-2.7B), 3.51 (Gemma2-2B)"
    paper = {"LSTM": "6.77", "DeepFM": "2.10", "top_5_percent": llms, "top_5_percent_contiguous": llms}
    order = [name for name in ("LSTM", "DeepFM", "NMT", "top_5_percent", "top_5_percent_contiguous") if name in parts]
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
    axes.set_xticklabels([setting_name(name, parts).replace(", ", "\n") for name in order])
    axes.set_yscale("log")
    axes.set_ylabel("times faster than dense all-reduce")
    legend(made, axes, 5)
    rows.append(["the paper's zen"] + [paper.get(name, "") for name in order])
    text = f"Communication at 16 workers, times faster than dense. {ORDER_OF_ELEMENTS}\n\n"
    return text + table(["system"] + [setting_name(n, parts) for n in order], rows), made


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
    titles = [setting_name(setting, parts)[len("breakdown_"):] for setting in settings]
    breakdown.set_xticks([place + 0.26 for place in range(len(settings))])
    breakdown.set_xticklabels([title.replace(", ", "\n") for title in titles])
    breakdown.set_ylabel("times faster than dense all-reduce")
    breakdown.legend(frameon=False, fontsize=8)
    made.tight_layout()
    text += ("\n(b) Communication, times faster than dense. The paper (throughput of training): lists through Algorithm 1 2.74 times for LSTM and 1.53 "
             f"for Llama3.2-3B, the hash bitmap 13 % and 34 % more. {ORDER_OF_ELEMENTS}\n\n")
    return text + table(["step"] + titles, rows), made

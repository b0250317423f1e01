#!/usr/bin/python3
"""Tables and plots of the papers' experiments, from what `thinwire` wrote.

Usage: report.py EXPERIMENT FOLDER SMALLER [NOTE [OPTIONS [TAKEN...]]]

Reads FOLDER/*.json and writes FOLDER/table.md and FOLDER/plot.png. SMALLER says what is smaller than in the
paper, NOTE whatever else should stand in the table's head, OPTIONS with which options the experiment ran.
TAKEN: experiments beside FOLDER whose results it also uses, as parts TAKEN/PART.
Accuracies are means over seeds, with the standard deviation of the sample; differences to dense are taken
seed by seed first, for a seed's order of examples moves all systems alike. Where a seed diverged or
collapsed, all seeds are listed instead.
"""
import os
import sys
import textwrap

sys.dont_write_bytecode = True  # the source tree stays as it is

from runs import load  # noqa: E402  # first: it knows where plotting.py lies
import casq  # noqa: E402
import marsit  # noqa: E402
import s2_reducer  # noqa: E402
import sketched_sgd  # noqa: E402
import zen  # noqa: E402
import zen_throughput  # noqa: E402

# Each returns the table and the figure.
EXPERIMENTS = {
    "sketched_sgd_figure_4": ("Sketched-SGD, Figures 3 and 4: learning curves, and k with momentum", sketched_sgd.sketched_sgd_figure_4),
    "sketched_sgd_figure_5": ("Sketched-SGD, Figure 5: accuracy against compression", sketched_sgd.sketched_sgd_figure_5),
    "sketched_sgd_figure_6": ("Sketched-SGD, Figure 6: accuracy against the number of workers", sketched_sgd.sketched_sgd_figure_6),
    "casq_table_1": ("CASQ, Table 1: accuracy at 2 and 3 bits", casq.casq_table_1),
    "casq_table_1_more": ("CASQ, Table 1: clusters of each worker's own, and normalised quantizers", casq.casq_table_1_more),
    "casq_table_1_codes": ("CASQ, Table 1: codes of a fixed length, Elias codes and entropies", casq.casq_table_1_codes),
    "casq_downlink": ("CASQ: what the mean's way back costs", casq.casq_downlink),
    "casq_figure_5": ("CASQ, Figure 5: compression error per step on real gradients", casq.casq_figure_5),
    "casq_figure_1": ("CASQ, Figure 1: how gradients are distributed", casq.casq_figure_1),
    "casq_figure_6": ("CASQ, Figures 6 (a) and 8: training loss, and time to a loss", casq.casq_figure_6),
    "casq_figure_7": ("CASQ, Figure 7: communication and quantization of one step", casq.casq_figure_7),
    "casq_figure_11": ("CASQ, Figure 11: ALQ's levels with CASQ's cells", casq.casq_figure_11),
    "casq_figure_12": ("CASQ, Figure 12: share of the elements that is clustered", casq.casq_figure_12),
    "casq_figure_13": ("CASQ, Figure 13: number of bits", casq.casq_figure_13),
    "casq_figure_10": ("CASQ, Figure 10: allocation of buckets", casq.casq_figure_10),
    "casq_figure_14": ("CASQ, Figure 14: number of buckets", casq.casq_figure_14),
    "marsit_figure_1": ("Marsit, Figure 1 (b) and section 3.2.2: signs that agree with the exact mean's, and deviations", marsit.marsit_figure_1),
    "marsit_figure_3_rates": ("Marsit, Figure 3: K against accuracy, every seed", marsit.marsit_figure_3_rates),
    "marsit_figure_4": ("Marsit, Figure 4: accuracy against time and bytes", marsit.marsit_figure_4),
    "marsit_figure_5": ("Marsit, Figures 1 (a), 3 and 5: phases of a synchronization", marsit.marsit_figure_5),
    "marsit_sign_rings": ("Marsit, section 3.1: signs on rings whose sums grow", marsit.marsit_sign_rings),
    "marsit_table_1": ("Marsit, Table 1: cascading compression", marsit.marsit_table_1),
    "marsit_table_2": ("Marsit, Table 2: accuracy of one-bit systems", marsit.marsit_table_2),
    "marsit_table_2_alexnet": ("Marsit, Table 2: AlexNet", marsit.marsit_table_2_alexnet),
    "marsit_theorem_1": ("Marsit, Theorem 1: its step size", marsit.marsit_theorem_1),
    "marsit_figure_3": ("Marsit, Figure 3: K against accuracy and bits", marsit.marsit_figure_3),
    "s2_reducer_figure_3": ("S2 Reducer, Figure 3 (a): communication and perplexity of an LSTM", s2_reducer.s2_reducer_figure_3),
    "s2_reducer_figure_3_blocks": ("S2 Reducer, Figure 3 (d) and (e): time to an accuracy, block-wise", s2_reducer.s2_reducer_figure_3_blocks),
    "s2_reducer_figure_4": ("S2 Reducer, Figures 4 and 7: communication of sparse gradients", s2_reducer.s2_reducer_figure_4),
    "s2_reducer_figure_5": ("S2 Reducer, Figures 5 and 6: all-reduce against all-gather", s2_reducer.s2_reducer_figure_5),
    "s2_reducer_figure_8": ("S2 Reducer, Figure 8: lambda against accuracy", s2_reducer.s2_reducer_figure_8),
    "zen_figure_2": ("Zen, Figures 2 and 3, and section 2.4: overlap, densification and skew", zen.zen_figure_2),
    "zen_figure_8": ("Zen, Figure 8: schemes against the number of workers", zen.zen_figure_8),
    "zen_figure_11": ("Zen, Figure 11: steps of a training with a table", zen_throughput.zen_figure_11),
    "zen_figure_12": ("Zen, Figure 12: steps with the 5 % largest elements", zen_throughput.zen_figure_12),
    "zen_figure_13_rows": ("Zen, Figure 13: with rows, and with the codecs' time", zen.zen_figure_13_rows),
    "zen_figure_14": ("Zen, Figure 14: what Algorithm 1 takes, and the strawmen of section 3", zen.zen_figure_14),
    "zen_figure_13": ("Zen, Figure 13: communication speedups over all-reduce", zen.zen_figure_13),
    "zen_figure_15": ("Zen, Figure 15: formats, and what each part brings", zen.zen_figure_15),
}


def wrapped(page: str) -> str:
    """Its sentences in lines of a page's width; tables, titles and commands stay in one line each."""
    return "\n".join(line if line.startswith(("|", "#", "!", "    "))
                     else textwrap.fill(line, 110, break_long_words=False, break_on_hyphens=False)
                     for line in page.split("\n"))


def command(name: str) -> str:
    """From the repository's root."""
    hours = "bench/papers/hours/" + name
    return hours if os.path.exists(hours) else "bench/papers/" + name


def main() -> int:
    if len(sys.argv) < 4 or sys.argv[1] not in EXPERIMENTS:
        print(__doc__ + "\nExperiments: " + " ".join(EXPERIMENTS), file=sys.stderr)
        return 2
    name, folder, smaller = sys.argv[1:4]
    note, options = (sys.argv[4:6] + ["", ""])[:2]
    title, make = EXPERIMENTS[name]
    try:
        text, made = make(load(folder, sys.argv[6:]))
    except (OSError, ValueError, KeyError, IndexError, StopIteration) as error:
        print(f"report.py: {folder}: {error!r}", file=sys.stderr)
        return 1
    made.savefig(os.path.join(folder, "plot.png"), dpi=110)
    smaller = " ".join(smaller.split())
    head = f"# {title}\n\n    {' '.join([command(name)] + options.split())}\n\nSmaller than in the paper: {smaller}.\n\n"
    if note:
        head += f"{note}\n\n"
    text = head + text + "\n![](plot.png)\n"
    with open(os.path.join(folder, "table.md"), "w", encoding="utf-8") as file:
        file.write(wrapped(text))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the papers' tables and pictures say of seeds that diverged or collapsed, and of settings."""
import json
import os
import struct
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench", "papers", "reports"))

import runs  # noqa: E402


def run(label, seed, accuracy, lr=0.4, sent=1000.0, epochs=2):
    """accuracy: of the last epoch; None: diverged before the first one's end."""
    done = [] if accuracy is None else [
        {"epoch": at + 1, "steps": 5, "loss": 1.0 / (at + 1), "test_accuracy": accuracy}
        for at in range(epochs)]
    return {"label": label, "system": label.split(":")[0], "seed": seed, "test_accuracy": accuracy,
            "epochs": done, "lr": lr, "failure": "diverged: x" if accuracy is None else None,
            "wire_bytes_sent_max": sent, "workers": 4, "batch": 16, "model": "cnn", "data": "fashion-mnist",
            "parameters": 10, "lr_schedule": "cosine", "momentum": 0}


def system(*accuracies):
    return runs.System([run("marsit:full_every=50", seed, value)
                        for seed, value in enumerate(accuracies, start=1)])


def accuracies():
    assert system(0.85, 0.86, 0.87).accuracy_text() == "86.00 ± 1.00"
    assert system(0.85).accuracy_text() == "85.00"  # one value has no deviation
    assert system(0.85, 0.86, None).accuracy_text() == "85.00, 86.00 (1 of 3 diverged)"
    assert system(None, 0.86, None).accuracy_text() == "86.00 (2 of 3 diverged)"
    assert system(0.85, 0.1, 0.8).accuracy_text() == "85.00, 10.00, 80.00 (1 of 3 collapsed)"
    assert system(0.85, 0.1, None).accuracy_text() == "85.00, 10.00 (1 of 3 diverged, 1 of 3 collapsed)"
    assert system(0.73, 0.85, 0.84).whole()  # worse is not collapsed
    assert system(None, None).accuracy_text() == "diverged"
    assert system(0.85, 0.86, None).at_the_end("loss") == "0.5000, 0.5000 (1 of 3 diverged)"


def differences():
    dense = system(0.8, 0.9, 0.85)
    assert system(0.81, 0.93, 0.85).difference_text(dense) == "+1.33 ± 1.53"
    assert system(0.81, 0.93, None).difference_text(dense) == "-"
    assert system(0.81).difference_text(system(0.8)) == "+1.00"
    # Of the last epoch's loss, 1 / 2 in all of these runs.
    assert system(0.8, 0.9).difference_of("loss", system(0.8, 0.9)) == "+0.0000 ± 0.0000"
    assert system(0.8, None).difference_of("loss", dense) == "-"


def bytes_of_whole_trainings():
    one = runs.System([run("half", 1, 0.8, sent=100.0), run("half", 2, None, sent=10.0)])
    assert one.bytes == 100
    assert runs.System([run("half", 2, None, sent=10.0)]).bytes == 10


def settings():
    text = runs.describe([run("dense", 1, 0.8), run("dense", 2, 0.8), run("ssdm", 1, 0.3, lr=0.001)])
    assert "learning rate 0.4 (ssdm: 0.001), cosine schedule, no momentum, seeds 1, 2." in text, text
    text = runs.describe([run("dense", 1, 0.8, lr=lr, epochs=1) for lr in (0.03, 0.01)])
    assert "learning rates 0.03, 0.01" in text and "1 epoch of 5 steps" in text and "seed 1." in text, text


def the_index_counts_its_lines():
    """What docs/papers_index.md says of its own table."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "papers_index.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in text[text.index("\n## Sketched-SGD"):].splitlines() if line.startswith("| ")]
    rows = [row for row in rows if len(row) == 6 and row[0] != "in the paper" and row[0].strip("-")]
    decided = {"reproduced", "reversed", "not reproduced"}
    ran = decided | {"noise"}
    others = {"not run", "not possible", "nothing to run"}
    for row in rows:
        assert row[2] in ran | others and (row[2] in ran) == (row[3] != ""), row
    found = [(row[2], row[3]) for row in rows if row[2] in ran]
    assert {basis for _, basis in found} == {"3 seeds", "3 runs", "computed", "one run"}
    sure = [outcome for outcome, basis in found if basis != "one run"]
    counts = [f"{sure.count(word)} {word}" for word in ("reproduced", "reversed", "not reproduced")]
    number = sum(outcome in decided for outcome in sure)
    alone = len(found) - len(sure)
    wanted = (f"{len(found)} claims were run, and {number} of them, {100 * number / len(found):.0f} %, "
              f"are decided: {', '.join(counts)}. "
              f"{sure.count('noise')} are noise, and {alone} {'rests' if alone == 1 else 'rest'} on one run.")
    assert wanted in " ".join(text.split()), wanted
    for section in text.split("\n## ")[1:]:
        paper = section.partition("\n")[0]
        own = [(row[2], row[3]) for row in rows if "| " + " | ".join(row) in section and row[2] in ran]
        if own:
            of = [sum(one == (word, basis) for one in own for basis in ("3 seeds", "3 runs", "computed"))
                  for word in ("reproduced", "reversed", "not reproduced", "noise")]
            line = "| " + " | ".join([paper, *map(str, of), str(len(own) - sum(of))]) + " |"
            assert line in text.splitlines(), line


def results_of_other_experiments():
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("own", "train"), ("other", "train")):
            os.makedirs(os.path.join(folder, name))
            with open(os.path.join(folder, name, part + ".json"), "w", encoding="utf-8") as file:
                json.dump([name], file)
        own = os.path.join(folder, "own")
        assert runs.load(own) == {"train": ["own"]}
        assert runs.load(own, ["other"]) == {"train": ["own"], "other/train": ["other"]}
        try:
            runs.load(os.path.join(folder, "none"))
            raise AssertionError("a folder without results was read")
        except ValueError as error:
            assert "none" in str(error)


def phases():
    import marsit
    specs = ("dense", "marsit:full_every=100000")
    # Of two seeds.
    parts = {name: [{"spec": spec, "modelled_seconds": at} for spec, at in zip(2 * specs, seconds)]
             for name, seconds in (("communication_3", (1.0, 0.1, 1.0, 0.2)),
                                   ("both_3", (1.5, 0.15, 1.6, 0.3)))}
    found = marsit.phases(parts, "3")
    assert found["dense"] == [(1000, 0), (1000, 0)], found  # its sums are the engine's
    one_bit = [[round(each) for each in of_seed] for of_seed in found["marsit:full_every=100000"]]
    assert one_bit == [[100, 50], [200, 100]], found
    # 99 one-bit steps and a full one.
    mixed = [[round(each, 1) for each in of_seed] for of_seed in found["marsit:full_every=100"]]
    assert mixed == [[109.0, 49.5], [208.0, 99.0]], found


def the_loss_that_amq_ends_at():
    import casq
    trained = {label: [run(label, seed, 0.8) for seed in (1, 2)] for label, _ in casq.FIGURE_8}
    trained[casq.AMQ_3] = [run(casq.AMQ_3, 1, 0.8), run(casq.AMQ_3, 2, None)]  # ends at 0.5, and diverges
    text = casq.reach_amqs_loss(trained)
    assert "here 0.500 with 3 bits" in text and "So many of 1 seeds" in text and "`dense` 1," in text, text
    trained["dense"][0]["epochs"][-1]["loss"] = 0.6
    assert "`dense` 0," in casq.reach_amqs_loss(trained)
    trained[casq.AMQ_3] = [run(casq.AMQ_3, 1, None)]
    assert "AMQ diverged with each seed" in casq.reach_amqs_loss(trained)


def momentum_of_its_own():
    text = runs.with_momentum({
        "momentum_0.02": [run("dense", 1, 0.8), run("casq", 1, 0.6)],
        "double_momentum_0.02": [run("dense", 1, 0.7), run("casq:double_momentum=0.9", 1, 0.75)]})
    # Beside the dense of its own part.
    for row in ("| `casq` | 60.00 | -20.00 |", "| `casq:double_momentum=0.9` | 75.00 | +5.00 |"):
        assert row in text, text


def seeds_of_a_part():
    with tempfile.TemporaryDirectory() as folder:
        for seed in (2, 1):
            with open(os.path.join(folder, f"LSTM@{seed}.json"), "w", encoding="utf-8") as file:
                json.dump([{"spec": "dense", "x": 0}, {"spec": "zen", "x": seed}], file)
        parts = runs.load(folder)
    assert list(parts) == ["LSTM"], parts
    assert runs.by_spec(parts["LSTM"], lambda result: result["x"]) == {"zen": [1, 2]}, parts


def orders():
    assert "same order with each of 2 seeds" in runs.order_text({"a": {"x": [1, 2], "y": [2, 3]}})
    # Within a hundredth they are equal, with both seeds.
    assert "same order" in runs.order_text({"a": {"x": [1, 2], "y": [1.005, 1.99]}})
    apart = runs.order_text({"a": {"x": [1, 2], "y": [2, 3], "z": [3, 1]}, "b": {"x": [1, 2], "y": [2, 3]}})
    assert apart == "Of 2 seeds not all have the same order of `x` and `z` (a), `y` and `z` (a).\n", apart
    assert runs.order_text({"a": {"x": [1], "y": [2]}}) == "One seed.\n"


def tensor(name, kind, rows, width, indices, values):
    head = struct.pack("<I", len(name)) + name.encode()
    head += struct.pack("<IQQQ", kind, rows, width, len(values) // width)
    return head + struct.pack(f"<{len(indices)}I", *indices) + struct.pack(f"<{len(values)}f", *values)


def recorded(folder, rank, steps):
    data = b"TWGRADS1" + struct.pack("<II", rank, len(steps))
    for number, tensors in enumerate(steps):
        data += struct.pack("<QI", number, len(tensors)) + b"".join(tensors) + b"\0" * 8
    with open(os.path.join(folder, f"gradients-rank-{rank}.twg"), "wb") as file:
        file.write(data)


def sparse_gradients():
    import gradients
    with tempfile.TemporaryDirectory() as folder:
        dense = tensor("weight", 0, 4, 1, [], [4.0, -1.0, 0.0, 2.0])
        # Rows 0 and 7 of one rank, one of them twice; rows 7 and 3 of the other.
        for rank, listed in enumerate(([7, 0, 7], [7, 3])):
            recorded(folder, rank, [[dense, tensor("table", 1, 8, 2, listed, [1.0] * (2 * len(listed)))]])
        found = gradients.sparsity(folder, 0)
        assert found["places"] == 8 and found["workers"] == 2 and found["density"] == 0.25, found
        assert found["overlaps"] == [0.5] and found["gammas"] == {"2": [1.5, 1.5, 1.5]}, found
        assert found["partitions"] == [0.5, 0, 0, 0, 0, 0, 0, 0.5], found
        # Row 7 was used most, so it comes first; of the others the lower one.
        assert found["partitions_by_frequency"] == [0.5, 0.5, 0, 0, 0, 0, 0, 0], found
        # The largest half of the dense elements is the same on both ranks.
        half = gradients.sparsity(folder, 0.5)
        assert half["overlaps"] == [1] and half["gammas"]["2"] == [1, 1, 1] and half["places"] == 4, half
        shares = gradients.distribution(folder, 1)[0]
        assert shares["elements"] == 4 + 6
        # One zero; 1 of 4 is 0.25; 2 of 4 is 0.5; 4 and all of the table are the largest.
        assert shares["shares"][0] == 0.1 and shares["shares"][gradients.EDGES.index(1.0)] == 0.7, shares
        assert abs(sum(shares["shares_of_squares"]) - 1) < 1e-12
        # Two tables: each is cut by itself, and what is sorted is a table's own rows.
        tables = [tensor(name, 1, 128, 1, [0, 1, listed], [1.0] * 3)
                  for name, listed in (("a", 2), ("b", 127))]
        recorded(folder, 0, [tables])
        recorded(folder, 1, [tables])
        two = gradients.sparsity(folder, 0)
        sixths = [round(6 * share) for share in two["partitions"]]
        assert two["places"] == 256 and sixths == [5, 0, 0, 0, 0, 0, 0, 1], two
        assert two["partitions_by_frequency"] == [1, 0, 0, 0, 0, 0, 0, 0], two
        # With 8 partitions 3 and 2 of three rows lie in one, with 128 each alone.
        assert abs(two["skewness_ratios"]["8"] - 8 * (1 + 2 / 3) / 2) < 1e-9, two
        assert abs(two["skewness_ratios"]["128"] - 128 / 3) < 1e-9, two


def pictures():
    try:
        import drawing
    except ImportError:
        print("matplotlib is missing: pictures are not tested")
        return
    import casq
    assert drawing.limits(59.0, 42.5) == [[42.5], [41.0]] and drawing.limits(10.0, 42.5) == [[10.0], [42.5]]
    assert casq.quantizer_in_full("alq:bits=3:every=1:zero=off:norm=max") == "alq:3 zero=off norm=max"
    phases()
    the_loss_that_amq_ends_at()
    systems = [system(0.8, 0.81), system(0.8, None), system(None, None), system(0.8, 0.1)]
    made, (lines, bars) = drawing.figure(2)
    drawing.plot_epochs(lines, systems, "test_accuracy", "test accuracy", lambda one: "x", 1.0)
    titles = [title for title in lines.get_legend_handles_labels()[1]]
    assert titles == ["x", "x (1 of 2 diverged)", "x (diverged)", "x (1 of 2 collapsed)"], titles
    drawing.bars(bars, ["a", "b", "c", "d"], systems)
    texts = [text.get_text() for text in bars.texts]
    assert texts == ["80.5", "1 of 2\ndiverged", "diverged", "1 of 2\ncollapsed"], texts
    # A system that failed for a seed has an open bar.
    assert [bar.get_hatch() for bar in bars.patches] == [None, "//", "//"]
    with tempfile.TemporaryDirectory() as folder:
        made.savefig(os.path.join(folder, "plot.png"))


accuracies()
differences()
bytes_of_whole_trainings()
settings()
the_index_counts_its_lines()
results_of_other_experiments()
momentum_of_its_own()
seeds_of_a_part()
orders()
sparse_gradients()
pictures()

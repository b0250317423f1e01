"""bench/loss at sizes that mean nothing: loss_test.py THINWIRE."""
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
RESULTS = os.path.join(ROOT, "results")
TIMES = os.path.join(RESULTS, "time_to_loss", "time_to_loss.md")
LATER = os.path.join(RESULTS, "time_to_loss", "longer", "time_to_loss.md")
LOSS = os.path.join(HERE, "..", "bench", "loss")
sys.path += [LOSS, os.path.join(HERE, "..", "apps", "plot")]

import numpy  # noqa: E402

import loss_report  # noqa: E402
import noise  # noqa: E402
import sign_share  # noqa: E402
from recipes import RECIPES  # noqa: E402


def made(seed, label, loss, sent, failure=None, steps=5):
    epochs = [{"steps": steps, "test_loss": loss + 1 - at, "test_accuracy": 0.5,
               "wire_bytes_so_far": sent * (at + 1)} for at in range(2)]
    return {"label": label, "seed": seed, "epochs": epochs, "failure": failure,
            "perplexity": None if failure else 1.0, "model": "transformer", "parameters": 10, "data": "text",
            "workers": 4, "batch": 8, "optimizer": "adamw", "lr": 0.002, "momentum": 0, "clip": 1,
            "lr_schedule": "cosine"}


def tables_say_what_seeds_show():
    runs = [made(seed, "dense", 4.0 + 0.01 * seed, 1000) for seed in (1, 2, 3)]
    runs += [made(seed, "worse", 4.1 + 0.01 * seed, 100) for seed in (1, 2, 3)]
    runs += [made(seed, "like", 4.0 + 0.01 * seed + (0.002 if seed == 2 else -0.001), 50)
             for seed in (1, 2, 3)]
    runs += [made(1, "gone", 9.0, 10), made(2, "gone", 9.0, 10, failure="diverged: x")]
    text = loss_report.table(runs)
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| `")}
    assert "| 4.020 ± 0.010 |  | 0.0 | 1.0 |" in lines["`dense`"], lines
    assert "| +0.100 ± 0.000 | 0.0 | 10.0 |" in lines["`worse`"], lines
    assert "(noise) | 0.0 | 20.0 |" in lines["`like`"], lines
    assert "(1 of 2 diverged) (2 seeds)" in lines["`gone`"], lines
    assert "seeds)" not in lines["`dense`"] + lines["`like`"], lines
    assert "10 steps" in text and "clipped at 1" in text and "seeds 1, 2, 3" in text, text
    try:
        loss_report.table(runs[3:])
        raise AssertionError("a table without dense")
    except ValueError as error:
        assert "dense" in str(error)


def a_seed_that_went_astray_is_no_spread():
    assert loss_report.difference([0.001, 0.02, -0.01], 3) == "+0.004 ± 0.015 (noise)"
    assert loss_report.difference([57.7, 1.05, 0.46], 3) == "+57.700, +1.050, +0.460"
    runs = [made(seed, "dense", 4.0, 100) for seed in (1, 2, 3)]
    runs += [made(seed, "wild", loss, 50) for seed, loss in ((3, 5.0), (1, 60.0), (2, 4.5))]
    assert "| `wild` | 60.000, 4.500, 5.000 | +56.000, +0.500, +1.000 |" in loss_report.table(runs)


def pictures_name_what_nothing_beats():
    runs = [made(1, "dense", 4.0, 1000), made(1, "auto:link=1Gbit:50us", 4.2, 500),
            made(1, "best", 4.05, 100), made(1, "few bytes", 4.5, 10), made(1, "far", 9.0, 300),
            made(1, "gone", 9.0, 5, failure="diverged")]
    few = loss_report.recipes_in(runs)
    assert len(loss_report.named_in_picture(few, few[0], "test_loss")) == 5
    runs += [made(1, f"beaten {at}", 4.6 + at, 200 + at) for at in range(9)]
    recipes = loss_report.recipes_in(runs)
    expected = ["dense", "auto:link=1Gbit:50us", "best", "few bytes"]
    assert [one.label for one in loss_report.named_in_picture(recipes, recipes[0], "test_loss")] == expected
    # One seed beats none of three, and what the pages recommend has a name all the same.
    thrice = [{**run, "seed": seed} for seed in (1, 2, 3) for run in runs]
    more = loss_report.recipes_in(thrice + [made(1, "lucky", 3.0, 20), made(1, "klt", 4.7, 400)])
    assert [one.label for one in loss_report.named_in_picture(more, more[0], "test_loss")] == [
        *expected[:2], "klt", *expected[2:]]
    drawn = loss_report.picture(runs)
    by_bytes, by_steps = drawn.axes
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == expected
    assert len(by_steps.lines) == 4 and len(by_bytes.containers) == 14
    low, high = by_bytes.get_ylim()
    ends = [one.lines[0].get_ydata()[0] for one in by_bytes.containers]
    assert low < min(ends) and max(ends) == high == 4.0 + loss_report.RANGE["test_loss"], (low, high, ends)


def every_setting_has_recipes_with_dense():
    import run as command

    assert set(command.SETTINGS) == set(RECIPES)
    for name, recipes in RECIPES.items():
        assert recipes[0] == "dense" and len(set(recipes)) == len(recipes), name


def stored_runs_are_of_known_recipes():
    for name in RECIPES:
        path = os.path.join(RESULTS, "loss", name + ".json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as lines:
                runs = [json.loads(line) for line in lines]
            unknown = {run["label"] for run in runs} - set(RECIPES[name])
            assert not unknown, f"{name}: {unknown}"
            # What a label says is what ran: its options are in the spec that the run has written.
            for run in runs:
                ran = set(re.split("[+:,]", run["spec"]))
                told = re.split("[+:,]", run["label"].split(" ")[0])
                absent = {part for part in told if "=" in part} - ran
                assert not absent, f"{name}: {run['label']}: {absent} not in {run['spec']}"


def pages_say_what_results_do():
    """Rows of the pages' tables are those of the results, and README's figures as well."""
    results = set()
    for path in glob.glob(os.path.join(RESULTS, "loss", "*.md")) + [TIMES, LATER]:
        with open(path, encoding="utf-8") as lines:
            results.update(" ".join(line.split()) for line in lines if line.startswith("| `"))
    rows = []
    for name in ("loss.md", "why_systems_lose.md", "time_to_loss.md"):
        with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as lines:
            rows += [" ".join(line.split()) for line in lines if line.startswith("| `")
                     and (line.count("|") == 9 or (line.count("|") == 6 and "±" in line))]
    assert len(rows) > 90, len(rows)
    for row in rows:
        assert row in results or any(other.startswith(row[:-1]) for other in results), row

    shown = glob.glob(os.path.join(ROOT, "docs", "images", "loss-*.png"))
    assert len(shown) == 2, shown
    for path in shown:
        with open(path, "rb") as copy, open(os.path.join(
                RESULTS, "loss", os.path.basename(path).removeprefix("loss-")), "rb") as drawn:
            assert copy.read() == drawn.read(), f"{path} is not the one in results/loss"

    with open(TIMES, encoding="utf-8") as page:
        tables = dict(part.split("\n", 1) for part in page.read().split("## ")[1:])
    cells = {rate: {line.split("|")[1].strip(" `"): [cell.strip() for cell in line.split("|")[2:-1]]
                    for line in text.splitlines() if line.startswith("| `")} for rate, text in tables.items()}
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as page:
        readme = page.read()
    for rate, name in (("100Mbit", "100 Mbit/s"), ("1Gbit", "1 Gbit/s"), ("10Gbit", "10 Gbit/s")):
        of = cells[rate]
        line = next(line for line in readme.splitlines() if line.startswith(f"| {name} |"))
        said = [cell.strip().removesuffix(" ms") for cell in line.split("|")[2:-1]]
        faster = [of[way][-1] for way in ("power_sgd:rank=32:bits=8", "auto")]
        steps = [of.get(way, [""])[0]  # a way that was not run has an empty cell
                 for way in ("plain", "power_sgd_hook", "power_sgd:rank=32:bits=8")]
        assert said[:3] == steps, line
        for shown, figure in zip(said[3:], faster):
            # A mean and its deviation, where there are several seeds. The page may round them.
            shown, figure = shown.split(" ± "), figure.split(" ± ")
            assert len(shown) == len(figure), line
            for one, other in zip(shown, figure):
                assert abs(float(one) - float(other)) <= 0.5 * 10 ** -len(one.partition(".")[2]), line


def runs_once(thinwire):
    with tempfile.TemporaryDirectory() as folder:
        command = ["/usr/bin/python3", os.path.join(LOSS, "run.py"), "cnn-fashion", "--thinwire", thinwire,
                   "--results", folder, "--epochs", "1", "--limit", "128", "--seeds", "1,2", "--recipe",
                   "dense", "--recipe", "casq --local-steps 2"]
        for first in (True, False):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert ("casq --local-steps 2, seed 2" in done.stderr) == first, done.stderr
            assert sorted(os.listdir(folder)) == ["cnn-fashion.json", "cnn-fashion.md", "cnn-fashion.png"]
            with open(os.path.join(folder, "cnn-fashion.json"), encoding="utf-8") as file:
                runs = [json.loads(line) for line in file]
            assert sorted((run["label"], run["local_steps"])
                          for run in runs) == [("casq --local-steps 2", 2)] * 2 + [("dense", 0)] * 2
        refused = subprocess.run(command + ["--seeds", "x"], capture_output=True, text=True, check=False)
        assert refused.returncode == 2 and "--seeds x" in refused.stderr, refused.stderr


def data_are_asked_for_and_unpacked():
    import run as command

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["/usr/bin/python3", os.path.join(LOSS, "run.py"), "resnet20-cifar10",
                               "transformer-wikitext2", "--results", folder],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not os.listdir(folder), done.stderr
        assert "\n    bench/loss/run.py resnet20-cifar10 --cifar10 DIR\nwith the folder" in done.stderr
        assert "\n    bench/loss/run.py transformer-wikitext2 --wikitext FILE\nwith a text" in done.stderr

        given, scratch = os.path.join(folder, "given"), os.path.join(folder, "scratch")
        os.makedirs(given)
        os.makedirs(scratch)
        assert command.cifar10_in(given, scratch) == given  # where `thinwire train` says what is missing
        with open(os.path.join(given, "unpack.py"), "w", encoding="utf-8") as script:
            script.write("import os, sys\nos.makedirs(sys.argv[1])\n"
                         "open(os.path.join(sys.argv[1], 'test_batch.bin'), 'w').close()\n")
        for _ in range(2):  # it would not make the folder a second time
            place = command.cifar10_in(given, scratch)
            assert os.listdir(place) == ["test_batch.bin"] and place.startswith(scratch), place
        assert command.cifar10_in(place, scratch) == place
        with open(os.path.join(given, "unpack.py"), "w", encoding="utf-8") as script:
            script.write("raise SystemExit(3)\n")
        try:
            command.cifar10_in(given, os.path.join(folder, "other"))
            raise AssertionError("a script that failed was not noticed")
        except RuntimeError as error:
            assert "ended with status 3" in str(error), error


def signs_carry_what_is_computed_by_hand():
    ranks = [{"a": numpy.array([1.0, -1.0]), "b": numpy.array([4.0, 4.0])},
             {"a": numpy.array([1.0, 1.0]), "b": numpy.array([4.0, -2.0])}]
    wanted = [6.25 / 8.5, 1, 2.25 / 4.5, (0.5 + 12.5) / 18, (0.5 + 8) / 18]
    assert numpy.allclose(sign_share.shares_of_step(ranks), wanted), sign_share.shares_of_step(ranks)


def recorded_updates_are_read(thinwire):
    with tempfile.TemporaryDirectory() as folder:
        script = ["/usr/bin/python3", os.path.join(LOSS, "sign_share.py"), folder]
        empty = subprocess.run(script, capture_output=True, text=True, check=False)
        assert (empty.returncode == 1
                and "write them with thinwire train --record" in empty.stderr), empty.stderr
        subprocess.run([thinwire, "train", "--model", "cnn", "--workers", "2", "--batch", "4", "--limit",
                        "64", "--epochs", "1", "--local-steps", "2",
                        "--record", "2", "--record-every", "2", "--record-to", folder],
                       capture_output=True, check=True)
        done = subprocess.run(script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        rows = [[float(cell) for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
        assert [row[0] for row in rows] == [0, 2], done.stdout
        assert all(0 < share < 1 for row in rows for share in row[1:]), done.stdout


def results_are_printed_and_idle_options_and_losses_told(thinwire):
    with tempfile.TemporaryDirectory() as folder:
        momentum = ["--momentum", "0.9"]
        for spec, more, told in (("whole:names=foo*+casq", [], "whole:names=foo* fits no parameter of this"),
                                 ("warm_up:steps=8+casq", [], "steps=8: this training synchronizes 8 times"),
                                 ("warm_up:steps=7+casq", [], None),
                                 ("warm_up:steps=4+warm_up:steps=3:with=half+casq", [], None),
                                 ("warm_up:steps=4+warm_up:steps=5:with=half+casq", [], "warm_up:steps=5: "),
                                 ("warm_up:steps=4+casq", ["--local-steps", "2"], "synchronizes 4 times"),
                                 ("clip+one_bit_adam:freeze=9", ["--optimizer", "adamw"], "before signs"),
                                 ("casq", momentum, "casq with momentum: "), ("casq", [], None),
                                 ("casq", [*momentum, "--local-steps", "2"], None)):
            done = subprocess.run([os.path.abspath(thinwire), "train", "--model", "cnn", "--workers", "2",
                                   "--batch", "4", "--limit", "64", "--epochs", "1", "--sync", spec,
                                   "--json", "-", *more],
                                  capture_output=True, text=True, check=True, cwd=folder)
            (run,) = json.loads(done.stdout)
            assert run["system"].endswith(("casq", "one_bit_adam")), run
            assert not os.listdir(folder), os.listdir(folder)
            lines = [line for line in done.stderr.splitlines()
                     if "fits no" in line or "nats above" in line or "ends before" in line]
            assert len(lines) == (told is not None) and all(told in line for line in lines), done.stderr


def told_losses_are_those_of_the_results(thinwire):
    """What is told of a spec before a training with Adam or momentum is what the stored runs say."""
    of = {}
    for setting, adam in (("transformer-kjv", True), ("transformer-kjv-momentum", False)):
        with open(os.path.join(RESULTS, "loss", setting + ".json"), encoding="utf-8") as file:
            runs = [json.loads(line) for line in file]
        dense = {run["seed"]: run["epochs"][-1]["test_loss"] for run in runs if run["label"] == "dense"}
        for label in {run["label"] for run in runs}:
            # Of other stages and options there is no word.
            parts = {re.split("[: ]", part)[0] for part in label.split("+")}
            spec, _, options = label.partition(" ")
            if parts - {"clip"} <= {"warm_up", "top_k", "zen", "casq", "sketched_sgd", "ef_signsgd",
                                    "marsit", "power_sgd", "acp_sgd", "ecsq", "klt", "decay",
                                    "one_bit_adam", "zero_one_adam"} \
                    and options == ("--clip 0" if parts & {"clip", "one_bit_adam", "zero_one_adam"} else "") \
                    and "full_above" not in label and label != "zero_one_adam --clip 0":  # a seed went astray
                of[spec, adam] = statistics.fmean(run["epochs"][-1]["test_loss"] - dense[run["seed"]]
                                                   for run in runs if run["label"] == label)
    script = ("import json, sys; from thinwire.extension import _C; "
              "print(json.dumps([_C.known_loss(*one) for one in json.load(sys.stdin)]))")
    folder = os.path.join(os.path.dirname(os.path.abspath(thinwire)), "python")
    extension = "_C" + sysconfig.get_config_var("EXT_SUFFIX")
    if not os.path.exists(os.path.join(folder, "thinwire", extension)):
        print("skipped: told losses: this build has no extension for this Python")
        return
    done = subprocess.run(["/usr/bin/python3", "-c", script], input=json.dumps(list(of)), text=True,
                          capture_output=True, check=True, env={**os.environ, "PYTHONPATH": folder})
    for (label, adam), told in zip(of, json.loads(done.stdout)):
        number = re.search(r"ended about ([0-9.]+) nats", told)
        lost = of[label, adam]
        more = "decay" in label and number is not None and lost > float(number[1])
        assert lost < 0.05 if number is None else more or abs(float(number[1]) - lost) < 0.06, \
            (label, lost, told)
    assert len(of) > 20, of.keys()


def the_last_measurement_counts(thinwire):
    off = "bucket of {}: the mean that arrives is off by {} times the batches' noise, allowed are 1000.00\n"
    assert noise.measured(off.format("a and 2 more", "9.00") + off.format("a and 2 more", "0.50") +
                          off.format("b", "0.75")) == 0.75
    assert noise.measured("") is None and noise.measured(None) is None
    script = ["/usr/bin/python3", os.path.join(LOSS, "noise.py"), "cnn-fashion", "--thinwire", thinwire]
    done = subprocess.run(script + ["--steps", "4,12", "--recipe", "dense", "--recipe", "casq"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    dense, casq = [[float(cell) for cell in line.strip("|").split("|")[1:]]
                   for line in done.stdout.splitlines()[2:]]
    assert dense == [0, 0] and min(casq) > 0.5, done.stdout
    for steps, told in (("3", "at least 4"), ("x", "--steps x")):
        done = subprocess.run(script + ["--steps", steps, "--recipe", "dense"],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 2 and told in done.stderr, done.stderr


tables_say_what_seeds_show()
a_seed_that_went_astray_is_no_spread()
pictures_name_what_nothing_beats()
signs_carry_what_is_computed_by_hand()
recorded_updates_are_read(sys.argv[1])
the_last_measurement_counts(sys.argv[1])
results_are_printed_and_idle_options_and_losses_told(sys.argv[1])
told_losses_are_those_of_the_results(sys.argv[1])
every_setting_has_recipes_with_dense()
stored_runs_are_of_known_recipes()
pages_say_what_results_do()
data_are_asked_for_and_unpacked()
runs_once(sys.argv[1])

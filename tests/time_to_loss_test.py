"""bench/time_to_loss at sizes that mean nothing, without a network: time_to_loss_test.py."""
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "bench", "time_to_loss")
sys.path += [FOLDER, os.path.join(HERE, "..", "apps", "plot")]

import time_report  # noqa: E402

SMALL = ["--steps", "12", "--evaluations", "3", "--layers", "1", "--width", "16", "--heads", "2",
         "--vocabulary", "30", "--context", "8", "--batch", "4", "--held-out", "16", "--lr", "0.01"]


def made(way, losses, step_seconds, sent, seed=1):
    """A run of 10 steps between evaluations."""
    points = [{"seconds": 10 * at * step_seconds, "step": 10 * at, "training_loss": loss,
               "evaluation_loss": loss,
               "interface_bytes": 10 * at * sent or None, "wire_bytes": None}
              for at, loss in enumerate(losses)]
    return {"way": way, "steps": 10 * (len(losses) - 1), "seed": seed, "layers": 1, "width": 2, "heads": 1,
            "vocabulary": 3, "context": 4, "batch": 5, "lr": 0.1, "weight_decay": 0, "clip": 1, "workers": 2,
            "threads": 1, "parameters": 99, "power_sgd_rank": 4, "evaluations": 2, "held_out": 16, "text": "",
            "local_seconds": 0.25 * step_seconds if way == "plain" else None, "points": points,
            "torch": "2.0", "fused_optimizer": True}


def tables_say_when_the_loss_was_reached():
    plain = made("plain", [8, 6, 4], 2.0, 125_000_000)
    # At the loss of 4 halfway between its second and its third evaluation, after 15 steps of 0.5 s.
    early = made("early", [8, 5, 3], 0.5, 12_500_000)
    late = made("late", [8, 6, 4.5], 0.5, 12_500_000)
    lines = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
             for line in time_report.table([plain, early, late], "1Gbit").splitlines()
             if line.startswith("| `")}
    assert lines["`plain`"] == ["2,000", "125.00", "1,000.0", "4.000", "40.0", "1.00", "1.00"], lines
    assert lines["`early`"] == ["500", "12.50", "100.0", "3.000 (-1.000)", "7.5", "4.00", "5.33"], lines
    assert lines["`late`"] == ["500", "12.50", "100.0", "4.500 (+0.500)", "not reached", "4.00", "-"], lines
    # Plain has 4.5 after 17.5 steps of 2 s, the late one after all of its 20.
    (row,) = [line for line in time_report.table([plain, late], "1Gbit", 0.5).splitlines()
              if line.startswith("| `late`")]
    assert row.endswith("| 10.0 | 4.00 | 3.50 |"), row
    assert "communication is 75 % of it" in time_report.share_text([plain])
    assert time_report.seconds_to(made("rises", [4, 5, 3], 1.0, 1), 4) == 0
    # Each seed has its own loss to reach: 4 and 6 after 20 steps of 2 s.
    slow = made("plain", [8, 7, 6], 2.0, 125_000_000, seed=2)
    second = made("early", [8, 6, 5], 1.0, 12_500_000, seed=2)
    (row,) = [line for line in time_report.table([plain, slow, early, second], "1Gbit").splitlines()
              if line.startswith("| `early`")]
    assert row.endswith("| 750 ± 354 | 12.50 | 100.0 | 4.000 (-1.000 ± 0.000) | 8.8 ± 1.8 "
                        "| 3.00 ± 1.41 | 4.67 ± 0.94 |"), row
    second = made("late", [8, 7, 6.5], 1.0, 12_500_000, seed=2)
    with_late = [plain, slow, dict(early, way="late"), second]
    (row,) = [line for line in time_report.table(with_late, "1Gbit").splitlines()
              if line.startswith("| `late`")]
    assert row.endswith("| 7.5, not reached | 3.00 ± 1.41 | 5.33, - |"), row
    for runs, named in (([early], "plain"),
                        ([plain, second], "of seed 2"),
                        ([plain, dict(early, lr=0.2)], "early was run with lr 0.2, and now it is 0.1")):
        try:
            time_report.table(runs, "1Gbit")
            raise AssertionError(runs)
        except ValueError as error:
            assert named in str(error), error


def runs_once():
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        with open(text, "w", encoding="utf-8") as file:
            file.write(" ".join(f"word{(i * i + i // 7) % 29}" for i in range(4000)))
        results = os.path.join(folder, "results")
        command = ["/usr/bin/python3", os.path.join(FOLDER, "run.py"), "loopback", "--results", results,
                   "--text", text, *SMALL]
        # The second call adds one way, the third has nothing to run.
        for ways, ran in (("plain,fp16_hook,power_sgd_hook,casq:bits=4", 4), ("plain,half", 1),
                          ("plain,half", 0)):
            done = subprocess.run([*command, "--seeds", "1", "--ways", ways], capture_output=True,
                                  text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert sum(line.startswith("loopback: ") for line in done.stderr.splitlines()) == ran, done.stderr
        assert sorted(os.listdir(results)) == ["loopback.json", "time_to_loss.md", "time_to_loss.png"]
        with open(os.path.join(results, "loopback.json"), encoding="utf-8") as file:
            runs = {run["way"]: run for run in map(json.loads, file)}
        assert list(runs) == ["plain", "fp16_hook", "power_sgd_hook", "casq:bits=4", "half"]
        for way, run in runs.items():
            assert [point["step"] for point in run["points"]] == [0, 4, 8, 12], way
            losses = [point["evaluation_loss"] for point in run["points"]]
            assert losses[-1] < losses[0], (way, losses)
            # The same weights and words for all.
            assert losses[0] == runs["plain"]["points"][0]["evaluation_loss"], way
        assert (runs["casq:bits=4"]["points"][-1]["wire_bytes"] < 0.6
                * runs["half"]["points"][-1]["wire_bytes"])
        other = subprocess.run([*command, "--ways", "dense", "--lr", "0.02"], capture_output=True,
                               text=True, check=False)
        assert other.returncode == 1 and "lr 0.01, and now it is 0.02" in other.stderr, other.stderr
    for wrong, named in ((["2Gbit"], "2Gbit"), (["loopback", "--seeds", "1,x"], "--seeds 1,x"),
                         (["loopback", "--workers", "1"], "--workers 1")):
        refused = subprocess.run([command[0], command[1], *wrong], capture_output=True,
                                 text=True, check=False)
        assert refused.returncode == 2 and named in refused.stderr, refused.stderr


def exact_norms_are_measured():
    """bench/loss/exact_norm.py takes its model and its words from here."""
    script = os.path.join(FOLDER, "..", "loss", "exact_norm.py")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write(" ".join(f"word{(i * i + i // 7) % 29}" for i in range(9000)))
        text.flush()
        # Limits so small that all steps are clipped.
        done = subprocess.run(["/usr/bin/python3", "-m", "thinwire.launch", "-n", "2", script,
                               "--spec", "dense", "--spec", "casq", "--steps", "6", "--seeds", "1,2",
                               "--text", text.name, "--clip", "0.01"],
                              capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in done.stdout.splitlines()[2:]]
    dense, casq = rows
    assert dense[:2] == ["1.00", "1.00"] and dense[4].lstrip("-") == "0.000 ± 0.000", rows
    assert float(casq[1]) < 0.99, rows


tables_say_when_the_loss_was_reached()
runs_once()
exact_norms_are_measured()

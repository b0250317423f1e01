"""bench/auto at sizes that mean nothing, without a network: auto_grid_test.py."""

import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "bench", "auto")
sys.path.append(FOLDER)

import torch  # noqa: E402

import grid_report  # noqa: E402
import link_change  # noqa: E402
from loss_scaler import GROWTH_INTERVAL, Scaler  # noqa: E402

CHOSE = [10, "dense. Undisturbed, a step takes 30.0 ms with dense, 31.0 ms with half:format=bf16:feedback=on"]
LOWERS = [12, "guard: bucket of a: the mean that arrives is off by 0.85 times the batches' noise"]
TRIES_AGAIN = [24, "the median of 7 steps is 66.9 ms and was 45.9 ms: the candidates are tried again"]


def made(plain, again, auto, half, half_error=4.0):
    """A cell of two candidates; seconds of blocks."""
    ways = [
        ("plain", plain, 4.0),
        ("plain:again", again, 4.0),
        ("half:format=bf16:feedback=on", half, half_error),
        ("auto", auto, 4.004),
    ]
    return {
        "rate": "1Gbit",
        "workers": 2,
        "model": "transformer",
        "unit": "nats",
        "allowed": 0.01,
        "ways": [
            {
                "way": way,
                "block_seconds": blocks,
                "error": error,
                "interface_bytes": None,
                "schemes": ["half:format=bf16:feedback=on", "push_pull"],
                "changes": [CHOSE, LOWERS, TRIES_AGAIN],
            }
            for way, blocks, error in ways
        ],
    }


def the_table_judges_a_cell():
    calm = [1.0, 1.0, 1.0, 1.0]
    # One block of four is disturbed: medians do not see it.
    good = grid_report.judge(made(calm, calm, [0.5, 0.5, 3.0, 0.5], [0.5, 0.5, 0.5, 0.5]))
    assert (
        good["best"] == "half:format=bf16:feedback=on"
        and good["of_plain"][0] == 0.5 and good["of_best"][0] == 1.0
    ), good
    assert good["within_best"] and good["within_plain"] and good["keeps"]
    slow = grid_report.judge(made(calm, calm, [1.02] * 4, [0.5] * 4))
    assert not slow["within_plain"] and not slow["within_best"], slow
    # Where two equal ways differ by as much, it is noise.
    noisy = grid_report.judge(made(calm, [0.9, 1.1, 0.9, 1.1], [1.02] * 4, [1.1] * 4))
    assert noisy["within_plain"] and noisy["best"] == "plain", noisy
    # What loses the loss is no candidate for the best.
    lossy = grid_report.judge(made(calm, calm, [1.0] * 4, [0.5] * 4, half_error=4.011))
    assert lossy["best"] == "plain" and lossy["within_best"], lossy
    page = grid_report.page([made(calm, calm, [1.02] * 4, [0.5] * 4), made(calm, calm, [0.5] * 4, [0.5] * 4)])
    assert "of plain DDP and the noise: 1 of 2 cells" in page and "or 0.2 points: 2 of 2 cells" in page, page
    assert "of plain DDP and the noise: 1 of 2 cells;\n  without the noise: 1 of 2." in page, page
    assert "Not run: 10Mbit, 2 ranks, cnn;" in page and "1Gbit, 2 ranks, transformer" not in page, page
    assert "differs by: 0.000 nats at most" in page, page
    row, _ = [line for line in page.splitlines() if line.startswith("| 1Gbit")]
    assert (
        "| 1,000 | - | - | - | 500 | - | 1,020 | `dense` | `push_pull` |" in row
        and "| 4.000 nats | +0.000 | +0.004 |" in row
    ), row


def the_table_tells_cells_apart():
    calm = made([1.0] * 4, [1.0] * 4, [1.0] * 4, [0.5] * 4)
    other = {**calm, "accumulate": 4, "scaler": True, "commit": "abc1234"}
    assert grid_report.key(calm) == ("1Gbit", 2, "transformer", 1, False) != grid_report.key(other)
    page = grid_report.page([calm, other, other])
    assert "| 1Gbit | 2 | transformer, 4 batches a step, loss scale | 1,000 |" in page, page
    assert "- Cells by build: 2 of commit abc1234, 1 of no recorded commit." in page, page
    loaded = [3, "half:feedback=on, as in the state that was loaded. A step took 9.0 ms then"]
    cases = ([], "none"), ([CHOSE, loaded], "`half:feedback=on`"), ([LOWERS, TRIES_AGAIN], "none")
    for changes, expected in cases:
        assert grid_report.choice_of({"changes": changes}) == expected


def a_changing_link_is_told_without_buckets():
    run = {"model": "cnn", "workers": 2, "stretches": ["1Gbit"], "steps_of_a_stretch": 30}
    run["steps"] = [{"stretch": 0, "seconds": 0.1, "scheme": "dense"}] * 30
    told = link_change.lines_of({**run, "changes": [CHOSE, LOWERS, TRIES_AGAIN], "same_on_all_ranks": True})
    changes = [line.split(":")[0] for line in told if line.startswith("- ")]
    assert changes == ["- 10 steps later", "- 24 steps later"], told


def a_loss_scale_skips_what_overflows():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer, scaler = torch.optim.SGD([parameter], lr=1.0), Scaler()
    for step in range(GROWTH_INTERVAL + 1):
        before, scale = parameter.detach().clone(), scaler.get_scale()
        optimizer.zero_grad()
        factor = float("inf") if step == 0 else 1.0
        scaler.scale((parameter * torch.tensor([1.0, 2.0, 0.5])).sum() * factor).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        moved = before - parameter.detach()
        assert moved.tolist() == ([0, 0, 0] if step == 0 else [1, 2, 0.5]), (step, moved)
        expected = scale / 2 if step == 0 else scale * 2 if step == GROWTH_INTERVAL else scale
        assert scaler.get_scale() == expected, step


def runs_once():
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        with open(text, "w", encoding="utf-8") as file:
            file.write(" ".join(f"word{(i * i + i // 7) % 29}" for i in range(9000)))
        results = os.path.join(folder, "results")
        command = [
            "/usr/bin/python3",
            os.path.join(FOLDER, "run.py"),
            "--rates",
            "loopback",
            "--workers",
            "2",
            "--results",
            results,
        ]
        small = ["--text", text, "--blocks", "2", "--block", "2"]
        # The transformer for torch's hooks, and rows for auto, whose trial and duels are to end.
        transformer = ["--models", "transformer", "--first", "2", "--ways"]
        transformer += ["plain,plain:again,fp16_hook,dense,auto"]
        rows = ["--models", "rows", "--first", "130", "--ways", "plain,plain:again,dense,auto"]
        for cell in (transformer, rows):
            for ran in (1, 0):
                done = subprocess.run([*command, *cell, *small], capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
                assert (
                    sum(line.startswith("loopback, 2 ranks: ") for line in done.stderr.splitlines()) == ran
                ), done.stderr
        # The 16th step overflows.
        scaled = ["--models", "transformer", "--first", "14", "--ways", "plain,plain:again,dense,auto"]
        scaled += ["--accumulate", "2", "--scaler"]
        done = subprocess.run([*command, *scaled, *small], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert sorted(os.listdir(results)) == ["auto.md", "cells.json"]
        with open(os.path.join(results, "cells.json"), encoding="utf-8") as file:
            cells = [json.loads(line) for line in file]
        assert [cell["model"] for cell in cells] == ["transformer", "rows", "transformer"]
        assert [(cell["accumulate"], cell["scaler"]) for cell in cells] == [(1, False)] * 2 + [(2, True)]
        assert all(cell["commit"] and "auto:" in cell["ways"][-1]["spec"] for cell in cells), cells
        for cell in cells:
            ways = {way["way"]: way for way in cell["ways"]}
            assert ("fp16_hook" in ways) == (cell["model"] == "transformer" and not cell["scaler"])
            assert all(len(way["block_seconds"]) == 2 for way in cell["ways"])
            # The same weights and examples for all, so what is exact ends alike.
            assert ways["plain"]["error"] != ways["plain:again"]["error"], "the same order of examples"
            assert abs(ways["dense"]["error"] - ways["plain"]["error"]) < 1e-3, cell
            if cell["model"] == "rows":  # auto has ended its trial, and says what it chose
                assert any("a step takes" in reason for _, reason in ways["auto"]["changes"]), ways["auto"]
                assert grid_report.choice_of(ways["auto"]) != "none", ways["auto"]
    for wrong, named in (
        (["--rates", "2Gbit"], "2Gbit"),
        (["--models", "mlp"], "mlp"),
        (["--workers", "1"], "--workers 1"),
        (["--workers", "two"], "--workers two"),
        (["--accumulate", "0"], "--accumulate 0"),
    ):
        refused = subprocess.run(
            [command[0], command[1], *wrong], capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2 and named in refused.stderr, refused.stderr


the_table_judges_a_cell()
the_table_tells_cells_apart()
a_changing_link_is_told_without_buckets()
a_loss_scale_skips_what_overflows()
runs_once()

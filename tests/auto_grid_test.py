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

import grid_report  # noqa: E402


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
                "schemes": ["half"],
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
        "| 1,000 | - | - | - | 500 | - | 1,020 | `half` |" in row
        and "| 4.000 nats | +0.000 | +0.004 |" in row
    ), row


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
        # The transformer for torch's hooks, and rows for auto, whose trial takes a while.
        transformer = ["--models", "transformer", "--first", "2", "--ways"]
        transformer += ["plain,plain:again,fp16_hook,dense,auto"]
        for cell in (transformer, ["--models", "rows", "--first", "34"]):
            for ran in (1, 0):
                done = subprocess.run([*command, *cell, *small], capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
                assert (
                    sum(line.startswith("loopback, 2 ranks: ") for line in done.stderr.splitlines()) == ran
                ), done.stderr
        assert sorted(os.listdir(results)) == ["auto.md", "cells.json"]
        with open(os.path.join(results, "cells.json"), encoding="utf-8") as file:
            cells = [json.loads(line) for line in file]
        assert [cell["model"] for cell in cells] == ["transformer", "rows"]
        for cell in cells:
            ways = {way["way"]: way for way in cell["ways"]}
            assert ("fp16_hook" in ways) == (cell["model"] == "transformer")
            assert all(len(way["block_seconds"]) == 2 for way in cell["ways"])
            # The same weights and examples for all, so what is exact ends alike.
            assert ways["plain"]["error"] != ways["plain:again"]["error"], "the same order of examples"
            assert abs(ways["dense"]["error"] - ways["plain"]["error"]) < 1e-3, cell
        # auto has ended its trial, and says what it chose.
        assert any("a step takes" in reason for _, reason in ways["auto"]["changes"]), ways["auto"]
    for wrong, named in (
        (["--rates", "2Gbit"], "2Gbit"),
        (["--models", "mlp"], "mlp"),
        (["--workers", "1"], "--workers 1"),
        (["--workers", "two"], "--workers two"),
    ):
        refused = subprocess.run(
            [command[0], command[1], *wrong], capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2 and named in refused.stderr, refused.stderr


the_table_judges_a_cell()
runs_once()

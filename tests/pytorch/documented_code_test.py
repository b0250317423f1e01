"""The tutorial's cells are those that ran, and run here on fewer steps;
and every spec that a page hands to register is one.

Needs no notebook: what cells do beyond Python is to write a file.
"""
import glob
import json
import os
import re
import sys
import tempfile

import matplotlib

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "website"))
import run_tutorial  # noqa: E402

import thinwire  # noqa: E402,F401
from thinwire import _C  # noqa: E402

STEPS = 10
SIZES, SMALLER = "WINDOW, WIDTH, BATCH = 64, 128, 12", "WINDOW, WIDTH, BATCH = 16, 48, 2"


def the_cells_are_those_that_ran(notebook):
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert notebook["metadata"]["ran"] == run_tutorial.hash_of(notebook), (
        "cells were changed: scripts/site tutorial runs them and stores what they show"
    )
    outputs = [(cell, output) for cell in code for output in cell["outputs"]]
    assert all(output["output_type"] in ("stream", "display_data") and output.get("name") != "stderr"
               for _, output in outputs), outputs
    drawn = [cell for cell, output in outputs if "image/png" in output.get("data", {})]
    assert len(drawn) == 3 and all(cell["metadata"]["alt"] for cell in drawn)


def the_cells_run(notebook):
    matplotlib.use("agg")
    names = {"__name__": "__main__"}
    shown = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        if source.startswith("%%writefile "):
            first, _, text = source.partition("\n")
            assert SIZES in text
            text = text.replace(SIZES, SMALLER)
            with open(first.split()[1], "w", encoding="utf-8") as file:
                file.write(text)
            continue
        # A notebook's own command for pictures, and fewer steps; that these are as many is seen below.
        source = re.sub(r"^STEPS = \d+$", f"STEPS = {STEPS}", source.replace("%matplotlib inline\n", ""),
                        flags=re.MULTILINE)
        exec(compile(source, cell["id"], "exec"), names)
        if "plt" in names:
            shown += names["plt"].get_fignums()
            names["plt"].close("all")
    runs = {**names["runs"], **names["bad"]}
    assert all(len(run["losses"]) == STEPS
               for run in runs.values()), {spec: len(run["losses"]) for spec, run in runs.items()}
    sent = {spec: run["sent"][-1] for spec, run in runs.items()}
    raw = runs["dense"]["report"]["last_step"]["raw_bytes"]
    assert raw <= sent["dense"] < raw + 1000, (raw, sent)
    assert (sent["dense"] > 4 * sent["casq:bits=4"] > 4 * sent["power_sgd:rank=4"] > 4
            * sent["power_sgd:rank=1:feedback=off"]), sent
    assert runs["dense"]["losses"] != runs["casq:bits=4"]["losses"]
    assert (names["resumed"]["first"] == names["middle"] == STEPS // 2
            and names["difference"] == 0), names["difference"]
    assert len(shown) == 3, shown


def every_spec_is_one():
    found = {}
    for path in [os.path.join(ROOT, "README.md"), *glob.glob(os.path.join(ROOT, "docs", "*.md"))]:
        with open(path, encoding="utf-8") as file:
            found.update({spec: path for spec in re.findall(r'thinwire\.(?:register\(\w+, '
                                                            r'|comm_hook\()"([^"]+)"', file.read())})
    assert len(found) > 20
    for spec, path in found.items():
        try:
            # Reads the spec.
            _C.freezes_variance(spec if spec.startswith("rows=") else f"rows=zen,dense={spec}")
        except ValueError as error:
            raise AssertionError(f"{path}: {spec}: {error}") from error


with open(run_tutorial.NOTEBOOK, encoding="utf-8") as file:
    tutorial = json.load(file)
every_spec_is_one()
the_cells_are_those_that_ran(tutorial)
here = os.getcwd()
with tempfile.TemporaryDirectory() as folder:
    tempfile.tempdir = folder
    the_cells_run(tutorial)
    os.chdir(here)

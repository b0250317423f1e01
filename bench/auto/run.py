#!/usr/bin/python3
"""`auto` beside plain DDP, torch's hooks and its own candidates: links x models x numbers of ranks.

    bench/auto/run.py [--rates A,B,...] [--models A,B,...] [--workers 2,4] [--results DIR] [--redraw]
                      [options of cell.py]

Rates are of every link of an emulated network (testbed/up), which needs root: 10Mbit, 100Mbit, 1Gbit, 10Gbit;
`loopback` is the machine without a limit. Models: cnn, transformer, rows, wide. The default is all of them,
which takes hours. Cells that the results hold already are not run again, so a call that was ended goes on
where it was.

With --accumulate N or --scaler (see cell.py) a cell is one of its own, beside that without.

Results: DIR/cells.json, a line to a cell; DIR/auto.md, a row to a cell.
"""

import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path += [HERE, os.path.join(ROOT, "bench"), os.path.join(ROOT, "apps", "plot")]

import grid_report  # noqa: E402
from network import Network, environment_of  # noqa: E402
from trainings import exit_status, result_of, store, stored  # noqa: E402

# A step of plain DDP takes seconds at 10 Mbit/s: fewer of them.
BLOCKS = {"10Mbit": (4, 5), "100Mbit": (8, 10)}
MOST_BLOCKS = (20, 10)


def parse(arguments: list):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default=",".join(grid_report.RATES))
    parser.add_argument("--models", default=",".join(grid_report.MODELS))
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--results", default=os.path.join(ROOT, "results", "auto"))
    parser.add_argument(
        "--python", default="/usr/bin/python3", help="has torch and thinwire (default %(default)s)"
    )
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step (default %(default)s)")
    parser.add_argument("--scaler", action="store_true", help="scale losses, with some steps that overflow")
    parser.add_argument("--redraw", action="store_true", help="run nothing: the table anew from the results")
    given, more = parser.parse_known_args(arguments)
    for name, known in (("rates", grid_report.RATES), ("models", grid_report.MODELS)):
        setattr(given, name, getattr(given, name).split(","))
        for one in getattr(given, name):
            if one not in known:
                parser.error(f"--{name} {one}: give {', '.join(known)}")
    try:
        given.workers = [int(one) for one in given.workers.split(",")]
    except ValueError:
        parser.error(f"--workers {given.workers}: give numbers, such as 2,4")
    if given.accumulate < 1:
        parser.error(f"--accumulate {given.accumulate}: at least 1, which is no accumulation")
    more += ["--accumulate", str(given.accumulate), *["--scaler"] * given.scaler]
    if min(given.workers) < 2:
        parser.error(f"--workers {min(given.workers)}: at least 2, a single one sends nothing")
    return given, more


def run_cell(given, more: list, network: Network, model: str) -> dict:
    blocks, block = BLOCKS.get(network.rate, MOST_BLOCKS)
    command = [*network.command(given.python), os.path.join(HERE, "cell.py"), "--model", model]
    command += ["--blocks", str(blocks), "--block", str(block), *more]
    what = f"{network.rate}, {network.workers} ranks: {model}"
    return {"rate": network.rate, **result_of(command, network.environment, what)}


def run_missing(given, more: list, path: str) -> None:
    environment = environment_of(given.python)
    for rate in given.rates:
        for workers in given.workers:
            known = [grid_report.key(cell) for cell in stored(path)]
            missing = [
                model
                for model in given.models
                if (rate, workers, model, given.accumulate, given.scaler) not in known
            ]
            if not missing:
                continue
            with Network("auto-grid", rate, workers, environment) as network:
                for model in missing:
                    print(f"{rate}, {workers} ranks: {model}", file=sys.stderr, flush=True)
                    store(path, run_cell(given, more, network, model))


def work() -> None:
    given, more = parse(sys.argv[1:])
    path = os.path.join(given.results, "cells.json")
    os.makedirs(given.results, exist_ok=True)
    if not given.redraw:
        run_missing(given, more, path)
    cells = sorted(
        stored(path),
        key=lambda cell: (
            grid_report.RATES.index(cell["rate"]),
            cell["workers"],
            grid_report.MODELS.index(cell["model"]),
            *grid_report.key(cell)[3:],
        ),
    )
    with open(os.path.join(given.results, "auto.md"), "w", encoding="utf-8") as file:
        file.write(grid_report.page(cells))


if __name__ == "__main__":
    sys.exit(exit_status(work))

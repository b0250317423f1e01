#!/usr/bin/python3
"""How far the mean that a system delivers is from the exact one, as the stage guard measures it.

    bench/loss/noise.py SETTING --recipe SPEC [--recipe SPEC ...] [--steps 20,60,100,300] [--seed 1]
                        [--thinwire PATH] [--wikitext FILE] [--cifar10 DIR]

For each spec and each number of steps it trains SETTING (of run.py) for so many steps, with the learning rate
going to 0 by their end, and prints the last measurement: of all buckets the largest. Its unit is the noise:
what the mean gradient would change by with other examples. run.py says what loss the same spec ends with.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path += [HERE]

import run  # noqa: E402
from trainings import exit_status, read_json  # noqa: E402

# More than any error, so that the guard only measures, and does so in every eighth step.
GUARD = "guard:noise=1000000:every=8+"


def measured(explanation: str):
    """The largest of the buckets' last measurements; None where nothing was measured."""
    last = dict(re.findall(r"bucket (.*): the mean that arrives is off by ([0-9.]+) times", explanation or ""))
    return max(map(float, last.values()), default=None)


def noise_of(given: argparse.Namespace, options: list, spec: str, steps: int):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        command = [given.thinwire, "train", *options, "--epochs", "1", "--epoch-steps", str(steps), "--sync", GUARD + spec,
                   "--seed", str(given.seed), "--json", path]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
        return measured(read_json(path)[0]["explanation"])


def work() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=list(run.SETTINGS))
    parser.add_argument("--recipe", action="append", dest="recipes", metavar="SPEC", required=True)
    parser.add_argument("--steps", default="20,60,100,300")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--thinwire", default=os.path.join(run.ROOT, "build", "release", "thinwire"))
    parser.add_argument("--wikitext", help=run.WIKITEXT)
    parser.add_argument("--cifar10", help=run.CIFAR10)
    given = parser.parse_args()
    given.epochs = given.limit = None
    try:
        lengths = [int(steps) for steps in given.steps.split(",")]
    except ValueError:
        parser.error(f"--steps {given.steps}: give whole numbers separated by commas")
    if min(lengths) < 4:
        parser.error(f"--steps {given.steps}: at least 4, the guard's first measurement is in the fourth step")
    with tempfile.TemporaryDirectory() as given.scratch:
        options = run.options_of(given, given.setting)
        if options is None:
            parser.error(f"{given.setting} {run.how_to_give(given.setting)}")
        print("| spec | " + " | ".join(f"{steps} steps" for steps in lengths) + " |")
        print("| --- |" + " --- |" * len(lengths))
        for spec in given.recipes:
            cells = [noise_of(given, options, spec, steps) for steps in lengths]
            print(f"| `{spec}` | " + " | ".join("-" if cell is None else f"{cell:.2f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(exit_status(work))

#!/usr/bin/python3
"""Loss against wall-clock on slow networks, beside plain DDP and torch's own hooks.

    bench/time_to_loss/run.py [RATE ...] [--recipe SPEC ...] [--ways A,B,...] [--seeds 1,2,3]
                              [--workers N] [--steps N] [--results DIR] [--python PATH]
                              [--margin NATS] [--redraw] [options of settings.py]

RATE is of every link of an emulated network (testbed/up): 100Mbit, 1Gbit, 10Gbit; all three if none is given.
`loopback` is the machine without a limit, and needs no root. Every way trains the same model from the same
weights for the same number of steps with the same learning rates. A seed decides weights and words' order.
Runs that the results hold already are not made again, so a call that was ended goes on where it was.

Results: DIR/RATE.json, a line to a run; DIR/time_to_loss.md, a table for each rate; DIR/time_to_loss.png,
loss against seconds. PATH (default /usr/bin/python3) has torch and thinwire;
where thinwire is not installed, build/release/python is taken.
"""
import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path += [HERE, os.path.join(ROOT, "bench"), os.path.join(ROOT, "apps", "plot")]

import settings  # noqa: E402
import time_report  # noqa: E402
from network import Network, environment_of  # noqa: E402
from trainings import exit_status, result_of, store, stored  # noqa: E402

WAYS = "plain,fp16_hook,power_sgd_hook,half"
RATES = ("100Mbit", "1Gbit", "10Gbit")
# Plain DDP of 25 million parameters takes 8 s for a step at 100 Mbit/s:
# fewer steps there, so that five ways take half an hour.
STEPS_AND_EVALUATIONS = {"100Mbit": (90, 15)}
OTHERWISE = (120, 8)


def parse(arguments: list):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rates", nargs="*", metavar="RATE", help=f"of {', '.join(RATES)}, or loopback; without one: these three")
    parser.add_argument("--recipe", action="append", default=[], dest="recipes", metavar="SPEC", help="one more way: a spec of Thinwire")
    parser.add_argument("--ways", default=WAYS, help="to compare (default %(default)s)")
    parser.add_argument("--seeds", default="1", help="separated by commas (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, help="default 90 at 100Mbit, 120 otherwise")
    parser.add_argument("--results", default=os.path.join(ROOT, "results", "time_to_loss"))
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--margin", type=float, default=0.01, metavar="NATS",
                        help="count a loss as reached that is so much above plain's last one, for plain too (default %(default)s)")
    parser.add_argument("--redraw", action="store_true", help="run nothing: tables and the picture anew from the results")
    settings.add_options(parser)
    parser.set_defaults(evaluations=None)
    given = parser.parse_args(arguments)
    for rate in given.rates:
        if rate not in RATES and rate != "loopback":
            parser.error(f"rate '{rate}': give {', '.join(RATES)} or loopback")
    if given.workers < 2:
        parser.error(f"--workers {given.workers}: at least 2, a single one sends nothing")
    try:
        given.seeds = [int(seed) for seed in given.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {given.seeds}: give whole numbers separated by commas")
    given.rates = given.rates or list(RATES)
    given.ways = [way for way in given.ways.split(",") if way] + given.recipes
    return given


def train(given, network: Network, way: str, seed: int, steps: int) -> dict:
    command = [*network.command(given.python), os.path.join(HERE, "train.py"), "--way", way, "--steps", str(steps), "--seed", str(seed),
               *settings.arguments_of(given)]
    return result_of(command, network.environment, f"{network.rate}: {way}, seed {seed}")


def run_rate(given, rate: str, environment: dict) -> None:
    path = os.path.join(given.results, rate + ".json")
    steps, evaluations = STEPS_AND_EVALUATIONS.get(rate, OTHERWISE)
    steps = given.steps or steps
    given = argparse.Namespace(**{**vars(given), "evaluations": given.evaluations or evaluations})
    settings.require_same(stored(path), {**settings.shared_of(given), "steps": steps, "workers": given.workers}, path)
    there = [(run["way"], run["seed"]) for run in stored(path)]
    missing = [(way, seed) for seed in given.seeds for way in given.ways if (way, seed) not in there]
    if not missing:
        return
    with Network("time-to-loss", rate, given.workers, environment) as network:
        for way, seed in missing:
            print(f"{rate}: {way}, seed {seed}", file=sys.stderr, flush=True)
            store(path, {"rate": rate, **train(given, network, way, seed, steps)})


def work() -> None:
    given = parse(sys.argv[1:])
    os.makedirs(given.results, exist_ok=True)
    if not given.redraw:
        environment = environment_of(given.python)
        for rate in given.rates:
            run_rate(given, rate, environment)
    runs = {rate: stored(os.path.join(given.results, rate + ".json")) for rate in (*RATES, "loopback")}
    time_report.write({rate: of_rate for rate, of_rate in runs.items() if of_rate}, os.path.join(given.results, "time_to_loss"),
                      given.margin)


if __name__ == "__main__":
    sys.exit(exit_status(work))

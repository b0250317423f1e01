#!/usr/bin/python3
"""Whether `auto` follows a link that changes, and knows a slow rank from a slow link.

    bench/auto/link_change.py [STRETCH ...] [--model NAME] [--workers N] [--steps N] [--results DIR]

A STRETCH is a rate of all links, or `slow`: rank 1 alone computes longer by half of a step, and links stay as
they are. The default is 1Gbit 100Mbit 1Gbit slow. Training goes on through all of them, --steps steps each.
Needs root, for the emulated network (testbed/up, testbed/limit). Models are those of models.py.

Prints for each stretch when `auto` tried its candidates again, what it chose, and what a step took before and
after. With --results, DIR/link_change.json has every step, and DIR/link_change.md what is printed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import textwrap
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path += [HERE, os.path.join(ROOT, "bench")]

from network import Network, environment_of, limits_of  # noqa: E402
from trainings import exit_status, result_of, write_json  # noqa: E402

STRETCHES = ["1Gbit", "100Mbit", "1Gbit", "slow"]


def limit(rate: str) -> None:
    command = [os.path.join(ROOT, "testbed", "limit"), *limits_of(rate)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def train(options) -> None:
    """What each rank runs."""
    import torch
    import torch.distributed as dist

    import cell
    import models

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = cell.Training(models.make(options.model, "", ""), "auto", 1)
    steps = []
    for at, stretch in enumerate(options.stretches):
        dist.barrier()
        if dist.get_rank() == 0 and stretch != "slow" and at > 0:
            limit(stretch)
        dist.barrier()
        usual = statistics.median(one["seconds"] for one in steps[-20:]) if steps else 0.0
        for _ in range(options.steps):
            begin = time.perf_counter()
            if stretch == "slow" and dist.get_rank() == 1:
                time.sleep(usual / 2)
            training.step()
            seconds = time.perf_counter() - begin
            schemes = {bucket["scheme"] or "" for bucket in training.handle.report()["buckets"]}
            steps.append({"stretch": at, "seconds": seconds, "scheme": ", ".join(sorted(schemes))})
    changes = training.handle.changes()
    of_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, changes)
    if dist.get_rank() == 0:
        same = all(one == changes for one in of_ranks)
        write_json(options.json, {"steps": steps, "changes": changes, "same_on_all_ranks": same})
    training.handle.close()
    dist.barrier()


def milliseconds(steps: list) -> str:
    return f"{1e3 * statistics.median(one['seconds'] for one in steps):,.0f} ms"


def lines_of(run: dict) -> list:
    """A paragraph for each stretch."""
    made = [
        f"{run['model']}, {run['workers']} ranks, {run['steps_of_a_stretch']} steps of each stretch; "
        "decisions are "
        + ("the same on all ranks." if run["same_on_all_ranks"] else "NOT the same on all ranks.")
    ]
    length = run["steps_of_a_stretch"]
    for at, stretch in enumerate(run["stretches"]):
        steps = run["steps"][at * length : (at + 1) * length]
        what = "rank 1 slower, links as before" if stretch == "slow" else stretch
        made.append("")
        made.append(
            f"From step {at * length} on {what}: a step takes {milliseconds(steps[:5])} at first and "
            f"{milliseconds(steps[-20:])} at last, with `{steps[-1]['scheme']}`."
        )
        for step, reason in run["changes"]:
            if at * length <= step < (at + 1) * length and not reason.startswith("guard: "):
                made.append(f"- {step - at * length} steps later: {reason}.")
    return made


def parse(arguments: list):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stretches", nargs="*", metavar="STRETCH")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120, help="of each stretch (default %(default)s)")
    parser.add_argument("--results", default="")
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--json", default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.stretches = given.stretches or STRETCHES
    if given.stretches[0] == "slow":
        parser.error("the first stretch is slow: begin with a rate")
    if given.workers < 2:
        parser.error(f"--workers {given.workers}: at least 2, a single one sends nothing")
    return given


def work() -> None:
    given = parse(sys.argv[1:])
    if given.json:
        train(given)
        return
    with Network("auto-change", given.stretches[0], given.workers, environment_of(given.python)) as network:
        command = [*network.command(given.python), os.path.abspath(__file__), "--model", given.model]
        command += ["--steps", str(given.steps), *given.stretches]
        run = result_of(command, network.environment, "training")
    run.update(
        model=given.model, workers=given.workers, stretches=given.stretches, steps_of_a_stretch=given.steps
    )
    text = "\n".join(
        textwrap.fill(line, 110, subsequent_indent="  " * line.startswith("- ")) for line in lines_of(run)
    )
    text += "\n"
    print(text, end="")
    if given.results:
        os.makedirs(given.results, exist_ok=True)
        write_json(os.path.join(given.results, "link_change.json"), run, separators=(",", ":"))
        with open(os.path.join(given.results, "link_change.md"), "w", encoding="utf-8") as file:
            file.write("# auto on a link that changes\n\n" + text)


if __name__ == "__main__":
    sys.exit(exit_status(work))

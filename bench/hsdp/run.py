#!/usr/bin/env python3
"""A step of torch's hybrid sharding (HSDP), and of thinwire.fully_shard in its place, on an emulated network.

    bench/hsdp/run.py [SPEC ...] [--rate RATE] [--hosts N] [--ranks-per-host N] [--steps N] [--python PATH]
    bench/hsdp/run.py --ddp [SPEC ...] [...]

The model is sharded among the ranks of a host and replicated over hosts. With --ddp every rank has all of it:
plain DDP, and each SPEC once among all ranks and once with ranks_per_host. Links are between hosts. Each SPEC
and the plain way have a model of their own with the same weights. They take a step in turn with the same
examples, so whatever else the machine does meets all of them. Needs root for the network, and PATH (default:
this Python) with a torch that has FSDPModule.set_all_reduce_hook; with --ddp one whose torchrun works, which
that of Debian 12 does not.

Prints a row for each: the median step of the slowest rank, and the bytes that a host's interface sent in a
step.
"""

import argparse
import os
import re
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.append(os.path.dirname(HERE))

from network import Network, environment_of  # noqa: E402
from trainings import exit_status, result_of  # noqa: E402

SPECS = ["dense", "half", "casq:bits=4", "power_sgd:rank=32:bits=8"]


def print_table(run: dict, options) -> None:
    plain = statistics.median(run["ways"][0]["seconds"])
    print(
        f"{run['parameters']:,} parameters in {options.layers} layers, {options.hosts} hosts of "
        f"{options.ranks_per_host} ranks, {options.rate} between hosts, {options.steps} steps of each "
        f"in turn, torch {run['torch']}, all ranks on one machine\n"
    )
    head = ["way", "step, ms", "of plain", "MB a host sends in a step", "these at the rate, ms"]
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    bits = float(options.rate[:-4]) * {"G": 1e9, "M": 1e6, "K": 1e3}[options.rate[-4]]
    for way in run["ways"]:
        seconds, sent = statistics.median(way["seconds"]), way["interface_bytes"]
        print(
            f"| `{way['way']}` | {1e3 * seconds:,.0f} | {seconds / plain:.2f} | {sent / 1e6:,.2f} "
            f"| {8e3 * sent / bits:,.0f} |"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="*", metavar="SPEC", default=SPECS)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    if not re.fullmatch(r"[0-9.]+[GMK]bit", options.rate):
        parser.error(f"--rate {options.rate}: give a rate such as 1Gbit")
    return options


def work() -> None:
    options = parse()
    with Network("hsdp", options.rate, options.hosts, environment_of(options.python)) as network:
        sizes = ("ranks_per_host", "steps", "layers", "width", "batch")
        words = [word for one in sizes for word in ("--" + one.replace("_", "-"), str(getattr(options, one)))]
        words += ["--ddp"] if options.ddp else []
        # The testbed starts one program on each host, and torchrun there its ranks.
        torchrun = (
            f'exec "$0" -m torch.distributed.run --nnodes {options.hosts} --node_rank $RANK '
            f"--nproc_per_node {options.ranks_per_host} --master_addr $MASTER_ADDR "
            '--master_port $MASTER_PORT "$@"'
        )
        command = [*network.command("sh"), "-c", torchrun, options.python, os.path.join(HERE, "rank.py")]
        run = result_of([*command, *words, *options.specs], network.environment, "training")
    print_table(run, options)


if __name__ == "__main__":
    sys.exit(exit_status(work))

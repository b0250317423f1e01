#!/usr/bin/env python3
"""A step of torch's hybrid sharding (HSDP), and of thinwire.fully_shard in its place, on an emulated network.

    bench/hsdp.py [SPEC ...] [--rate RATE] [--hosts N] [--ranks-per-host N] [--steps N] [--python PATH]

The model is sharded among the ranks of a host and replicated over hosts. Links are between hosts. Each SPEC
and plain HSDP have a model of their own with the same weights. They take a step in turn with the same
examples, so whatever else the machine does meets all of them. Needs root for the network, and PATH (default:
this Python) with a torch that has FSDPModule.set_all_reduce_hook.

Prints a row for each: the median step of the slowest rank, bytes that a host's interface sent in a step, and
how far the parameters are from plain's after the last step.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.append(HERE)

from network import Network, environment_of  # noqa: E402

SPECS = ["dense", "half", "casq:bits=4", "power_sgd:rank=32:bits=8"]
WARM_UP = 3


def train(options) -> None:
    """What each rank runs."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import thinwire
    from ways import sent_bytes

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shape = (world // options.ranks_per_host, options.ranks_per_host)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))

    class Way:
        def __init__(self, name):
            torch.manual_seed(1)
            width = options.width
            layers = [layer for _ in range(options.layers) for layer in (nn.Linear(width, width), nn.ReLU())]
            self.name, self.model, self.handle = name, nn.Sequential(*layers), None
            if name == "plain":
                for layer in self.model[::2]:
                    fully_shard(layer, mesh=mesh)
                fully_shard(self.model, mesh=mesh)
            else:
                self.handle = thinwire.fully_shard(self.model, mesh, name, modules=list(self.model[::2]))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
            self.seconds, self.bytes = [], []

        def step(self, inputs, counts) -> None:
            dist.barrier()
            before = sent_bytes()
            begin = time.perf_counter()
            self.optimizer.zero_grad()
            self.model(inputs).square().mean().backward()
            self.optimizer.step()
            seconds = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
            after = sent_bytes()
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            if counts:
                self.seconds.append(seconds.item())
                self.bytes += [] if before is None else [after - before]

        def shards(self):
            return torch.cat([one.to_local().detach().flatten() for one in self.model.parameters()])

    ways = [Way(name) for name in ["plain", *options.specs]]
    generator = torch.Generator().manual_seed(rank)
    for step in range(WARM_UP + options.steps):
        inputs = torch.randn(options.batch, options.width, generator=generator)
        for way in ways:
            way.step(inputs, step >= WARM_UP)
    made = []
    for way in ways:
        off = torch.stack([(way.shards() - ways[0].shards()).square().sum(), ways[0].shards().square().sum()])
        dist.all_reduce(off)
        made.append(
            {
                "way": way.name,
                "seconds": way.seconds,
                "off": (off[0] / off[1]).sqrt().item(),
                "interface_bytes": statistics.median(way.bytes) if way.bytes else None,
            }
        )
        if way.handle is not None:
            way.handle.close()
    if rank == 0:
        parameters = options.layers * (options.width * options.width + options.width)
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"parameters": parameters, "torch": torch.__version__, "ways": made}, file)
    dist.barrier()
    dist.destroy_process_group()


def print_table(run: dict, options) -> None:
    plain = statistics.median(run["ways"][0]["seconds"])
    print(
        f"{run['parameters']:,} parameters in {options.layers} layers, {options.hosts} hosts of "
        f"{options.ranks_per_host} ranks, {options.rate} between hosts, {options.steps} steps of each "
        f"in turn, torch {run['torch']}, all ranks on one machine\n"
    )
    head = [
        "way",
        "step, ms",
        "of plain HSDP",
        "MB a host sends in a step",
        "these at the rate, ms",
        "parameters off by",
    ]
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    bits = float(options.rate[:-4]) * {"G": 1e9, "M": 1e6, "K": 1e3}[options.rate[-4]]
    for way in run["ways"]:
        seconds, sent = statistics.median(way["seconds"]), way["interface_bytes"]
        print(
            f"| `{way['way']}` | {1e3 * seconds:,.0f} | {seconds / plain:.2f} | {sent / 1e6:,.2f} "
            f"| {8e3 * sent / bits:,.0f} | {way['off']:.1e} |"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="*", metavar="SPEC", default=SPECS)
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.json:
        train(options)
        return 0
    try:
        environment = environment_of(options.python)
        with (
            tempfile.TemporaryDirectory() as folder,
            Network("hsdp", options.rate, options.hosts, environment) as network,
        ):
            path = os.path.join(folder, "run.json")
            sizes = ("hosts", "ranks_per_host", "steps", "layers", "width", "batch")
            words = [
                word for one in sizes for word in ("--" + one.replace("_", "-"), str(getattr(options, one)))
            ]
            # The testbed starts one program on each host, and torchrun there its ranks.
            torchrun = (
                f'exec "$0" -m torch.distributed.run --nnodes {options.hosts} --node-rank $RANK '
                f"--nproc-per-node {options.ranks_per_host} --master-addr $MASTER_ADDR "
                '--master-port $MASTER_PORT "$@"'
            )
            command = network.command("sh")
            command += [
                "-c",
                torchrun,
                options.python,
                os.path.abspath(__file__),
                "--json",
                path,
                *words,
                *options.specs,
            ]
            done = subprocess.run(command, env=network.environment, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"training ended with status {done.returncode}")
            with open(path, encoding="utf-8") as file:
                print_table(json.load(file), options)
    except (OSError, RuntimeError) as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

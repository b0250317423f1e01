"""What run.py starts once per rank: plain HSDP, or DDP, and specs of Thinwire, a step of each in turn.

rank.py --json FILE [--ddp] --ranks-per-host N --steps N --layers N --width N --batch N [SPEC ...]
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

sys.dont_write_bytecode = True
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from trainings import write_json  # noqa: E402
from ways import sent_bytes  # noqa: E402

WARM_UP = 3
BY_HOSTS = ", ranks of a host as one"


class Way:
    """A model of its own, and the times of its steps."""

    def __init__(self, name, options):
        torch.manual_seed(1)
        parts = [part for _ in range(options.layers) for part in (nn.Linear(options.width, options.width), nn.ReLU())]
        self.name, self.model, self.handle = name, nn.Sequential(*parts), None
        if options.ddp:
            self._replicate(name, options.ranks_per_host)
        else:
            self._shard(name, options.ranks_per_host)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.seconds, self.bytes = [], []

    def _replicate(self, name, ranks_per_host) -> None:
        self.model = DistributedDataParallel(self.model)
        if name != "plain":
            by_hosts = name.endswith(BY_HOSTS)
            self.handle = thinwire.register(self.model, name.removesuffix(BY_HOSTS),
                                            ranks_per_host=ranks_per_host if by_hosts else 1)

    def _shard(self, name, ranks_per_host) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # newer than DDP
        from torch.distributed.fsdp import fully_shard

        shape = (dist.get_world_size() // ranks_per_host, ranks_per_host)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        if name == "plain":
            for layer in self.model[::2]:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        else:
            self.handle = thinwire.fully_shard(self.model, mesh, name, modules=list(self.model[::2]))

    def step(self, inputs, counts) -> None:
        dist.barrier()
        before = sent_bytes()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(inputs).square().mean().backward()
        self.optimizer.step()
        seconds = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        if counts:
            self.seconds.append(seconds.item())
            self.bytes += [] if before is None else [sent_bytes() - before]

    def result(self) -> dict:
        if self.handle is not None:
            self.handle.close()
        sent = statistics.median(self.bytes) if self.bytes else None
        return {"way": self.name, "seconds": self.seconds, "interface_bytes": sent}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="*", metavar="SPEC")
    parser.add_argument("--json", required=True)
    parser.add_argument("--ddp", action="store_true")
    for name in ("--ranks-per-host", "--steps", "--layers", "--width", "--batch"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    names = [name for spec in options.specs for name in ((spec, spec + BY_HOSTS) if options.ddp else (spec,))]
    ways = [Way(name, options) for name in ["plain", *names]]
    generator = torch.Generator().manual_seed(rank)
    for step in range(WARM_UP + options.steps):
        inputs = torch.randn(options.batch, options.width, generator=generator)
        for way in ways:
            way.step(inputs, step >= WARM_UP)
    results = [way.result() for way in ways]
    if rank == 0:
        parameters = options.layers * (options.width * options.width + options.width)
        write_json(options.json, {"parameters": parameters, "torch": torch.__version__, "ways": results})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

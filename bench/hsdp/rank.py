"""What run.py starts once per rank: plain HSDP and specs of Thinwire, a step of each in turn.

rank.py --json FILE --ranks-per-host N --steps N --layers N --width N --batch N [SPEC ...]
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire

sys.dont_write_bytecode = True
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from trainings import write_json  # noqa: E402
from ways import sent_bytes  # noqa: E402

WARM_UP = 3


class Way:
    """A model of its own, and the times of its steps."""

    def __init__(self, name, mesh, layers, width):
        torch.manual_seed(1)
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        self.name, self.model, self.handle = name, nn.Sequential(*parts), None
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
    for name in ("--ranks-per-host", "--steps", "--layers", "--width", "--batch"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shape = (world // options.ranks_per_host, options.ranks_per_host)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    ways = [Way(name, mesh, options.layers, options.width) for name in ["plain", *options.specs]]
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

"""Training that goes on after a rank has died: torchrun starts it again, and it resumes from its checkpoint.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc_per_node 4 --max_restarts 3 examples/elastic.py

The variable has torch 2.15 open a rendezvous store for each restart. Without it restarted ranks read
addresses of ranks that have ended. torch 1.13 does not need it.

On one host or two, whichever are there, with a folder that both see (the same line on each):

    torchrun --nnodes 1:2 --nproc_per_node 4 --max_restarts 3 \\
        --rdzv_backend c10d --rdzv_endpoint HOST:29400 examples/elastic.py --checkpoints /shared/checkpoints

As many ranks as before end with the same parameters as a run that nobody disturbed. With another number of
ranks the sum of the residuals is kept. The points are made up.
"""
import argparse
import math
import os
import pathlib
import shutil
import sys

import torch
import torch.distributed as dist
from torch import nn

import thinwire

BATCH = 48  # of all ranks together, so that another number of ranks trains alike
KEPT = 2
WEIGHTS_ONLY = torch.__version__ >= "2"  # torch 1.13 takes no floats then, and AdamW has some


def read(path: pathlib.Path):
    return torch.load(path, weights_only=WEIGHTS_ONLY)


def write(value, path: pathlib.Path) -> None:
    """The whole file is there, or none of it, whenever the process or the machine stops."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def complete(folder: pathlib.Path):
    """The checkpoints that can be loaded, oldest first. Each has the file of the model,
    which is written last."""
    return sorted(path.parent for path in folder.glob("step_*/model.pt"))


def save(folder: pathlib.Path, step: int, model, optimizer, handle) -> None:
    """Collective. What all ranks have in common is written by rank 0, and residuals by each rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    place = folder / f"step_{step:08d}"
    place.mkdir(parents=True, exist_ok=True)
    write(handle.state_dict(), place / f"thinwire_{rank}_of_{world}.pt")
    dist.barrier()  # every rank's file is there
    if rank == 0:
        common = {"step": step, "world": world, "model": model.module.state_dict(),
                  "optimizer": optimizer.state_dict()}
        write(common, place / "model.pt")
        for old in complete(folder)[:-KEPT]:
            (old / "model.pt").unlink()  # first: what is half deleted is not complete
            shutil.rmtree(old)


def resume(folder: pathlib.Path, model, optimizer, handle) -> int:
    """Collective. Loads the newest checkpoint and gives the number of steps that it has;
    0 where there is none."""
    rank, world = dist.get_rank(), dist.get_world_size()
    newest = torch.tensor(int(complete(folder)[-1].name[len("step_"):])
                          if rank == 0 and complete(folder) else -1)
    dist.broadcast(newest, 0)
    if newest < 0:
        return 0
    place = folder / f"step_{newest.item():08d}"
    common = read(place / "model.pt")
    model.module.load_state_dict(common["model"])
    optimizer.load_state_dict(common["optimizer"])
    saved = common["world"]

    def state_of(one):
        return read(place / f"thinwire_{one}_of_{saved}.pt")

    handle.load_state_dict(state_of(rank) if saved == world else [state_of(one) for one in range(saved)])
    if rank == 0:
        print(f"resumed from step {common['step']} of {saved} ranks, with {world}", flush=True)
    return common["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--spec", default="power_sgd:rank=32:bits=8", help="the system (default %(default)s)")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50,
                        help="steps between two checkpoints, at least 2 (default %(default)s)")
    parser.add_argument("--checkpoints", type=pathlib.Path, default="elastic_checkpoints",
                        help="a folder that all hosts see")
    options = parser.parse_args()
    torch.manual_seed(1)
    points = torch.randn(2400, 64)
    labels = (points @ torch.randn(64, 10)).argmax(1)
    torch.set_num_threads(1)
    thinwire.cluster_environment()  # under Slurm: what torchrun would have set
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    handle = thinwire.register(model, options.spec, optimizer=optimizer)
    first = resume(options.checkpoints, model, optimizer, handle)
    loss = torch.tensor(math.nan)
    for step in range(first, options.steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.001 * (1 + math.cos(math.pi * step / options.steps))
        # Drawn from the step alone, so that a resumed run draws the same.
        drawn = torch.randint(len(points), (BATCH,),
                              generator=torch.Generator().manual_seed(step))[rank::world]
        loss = nn.functional.cross_entropy(model(points[drawn]), labels[drawn])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            save(options.checkpoints, step + 1, model, optimizer, handle)
    if rank == 0:
        print(f"loss {loss.item():.4f} in the last batch")
    handle.close()
    dist.barrier()  # a rank that ends early is no rank that died
    sys.stdout.flush()
    os._exit(0)  # torch 2.15 may abort while Python ends, and torchrun would start all ranks again


if __name__ == "__main__":
    main()

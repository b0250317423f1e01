"""A model sharded by torch's fully_shard and synchronized by Thinwire, on made-up points.

4 ranks stand for 2 hosts of 2. It is sharded within hosts and synchronized between them; or, with
`--all-ranks`, sharded among all. It saves after the first epoch, and `--resume` goes on from there.

    torchrun --nproc_per_node 4 examples/fully_sharded.py
    torchrun --nproc_per_node 4 examples/fully_sharded.py --resume
    torchrun --nproc_per_node 4 examples/fully_sharded.py --all-ranks --spec casq:bits=4
"""
import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

import thinwire

parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
parser.add_argument("--spec", default="power_sgd:rank=4:bits=8", help="the system (default %(default)s)")
parser.add_argument("--ranks-per-host", type=int, default=2)
parser.add_argument("--all-ranks", action="store_true")
parser.add_argument("--all-gather", default="exact",
                    help="with --all-ranks, how parameters travel: exact or 8bit")
parser.add_argument("--folder", default="fully_sharded_checkpoint")
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)  # replicas begin with the same parameters
points = torch.randn(2000, 64)
labels = (points @ torch.randn(64, 10)).argmax(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

if options.all_ranks:
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",))
else:
    hosts = ranks // options.ranks_per_host
    mesh = init_device_mesh("cpu", (hosts, options.ranks_per_host), mesh_dim_names=("replicate", "shard"))
handle = thinwire.fully_shard(model, mesh, options.spec, modules=[model[0], model[2]],  # the line
                              all_gather=options.all_gather)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)


def parts():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "thinwire": handle}


if options.resume:
    saved = parts()
    dcp.load(saved, checkpoint_id=options.folder)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])

for epoch in range(1 if options.resume else 0, 3):
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(epoch))[rank::ranks]
    total = torch.zeros(())
    for batch in order.split(20):
        loss = nn.functional.cross_entropy(model(points[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.detach() / len(order.split(20))
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch + 1}: loss {total / ranks:.4f}", flush=True)
    if epoch == 0:
        dcp.save(parts(), checkpoint_id=options.folder)
if rank == 0:
    report, others = handle.report(), "ranks" if options.all_ranks else "hosts"
    last = report["last_step"]
    print(f"in a step this rank sends {last['wire_bytes_sent']:,} bytes to other {others}, "
          f"for {last['raw_bytes']:,} of gradients", flush=True)
    if options.all_gather == "8bit":
        gathers = report["all_gather"]
        print(f"it has sent {gathers['sent_bytes']:,} bytes of parameters for {gathers['raw_bytes']:,}",
              flush=True)
handle.close()
dist.destroy_process_group()

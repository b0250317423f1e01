"""Lightning's Fabric with Thinwire, on made-up points.

    torchrun --nproc_per_node 2 examples/with_fabric.py
    torchrun --nproc_per_node 2 examples/with_fabric.py --resume
"""
import argparse
import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import thinwire.lightning

parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
parser.add_argument("--spec", default="auto", help="the system (default %(default)s)")
parser.add_argument("--checkpoint", default="fabric.ckpt")
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

torch.manual_seed(1)
points = torch.randn(2000, 64)
labels = (points @ torch.randn(64, 10)).argmax(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

fabric = Fabric(accelerator="cpu", strategy="ddp",
                devices=int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))))
fabric.launch()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.002))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(points, labels), batch_size=20))
run = thinwire.lightning.register(fabric, model, options.spec, optimizer=optimizer)  # the line
state = {"model": model, "optimizer": optimizer, "thinwire": run}
if options.resume:
    fabric.load(options.checkpoint, state)

for epoch in range(1 if options.resume else 0, 3):
    for batch, truth in loader:
        loss = nn.functional.cross_entropy(model(batch), truth)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    fabric.print(f"epoch {epoch + 1}: loss {loss.item():.4f} in the last batch")
    if epoch == 0:
        fabric.save(options.checkpoint, state)
run.close()

"""Accelerate with Thinwire, on made-up points: saves after the first epoch,
and `--resume` goes on from there.

    torchrun --nproc_per_node 2 examples/with_accelerate.py
    torchrun --nproc_per_node 2 examples/with_accelerate.py --resume
"""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import thinwire.accelerate

parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
parser.add_argument("--spec", default="auto", help="the system (default %(default)s)")
parser.add_argument("--folder", default="accelerate_checkpoint")
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

torch.manual_seed(1)
points = torch.randn(2000, 64)
labels = (points @ torch.randn(64, 10)).argmax(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

accelerator = Accelerator(
    cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),  # a resumed run sees the same order
)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters(), lr=0.002),
    DataLoader(TensorDataset(points, labels), batch_size=20, shuffle=True)
)
run = thinwire.accelerate.register(accelerator, model, options.spec)  # the line
if options.resume:
    accelerator.load_state(options.folder)

for epoch in range(1 if options.resume else 0, 3):
    loader.set_epoch(epoch)
    total = 0.0
    for batch, truth in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch), truth)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item()
    accelerator.print(f"epoch {epoch + 1}: loss {total / len(loader):.4f}")
    if epoch == 0:
        accelerator.save_state(options.folder)
if run.handle is not None and accelerator.is_main_process:
    print(f"sent 1/{run.scalars()['thinwire/compression']:.1f} of the gradient's bytes in the last step")
accelerator.end_training()

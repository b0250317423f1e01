"""Lightning's Trainer with Thinwire, on made-up points:
`--resume CHECKPOINT` goes on from one of its checkpoints.

    torchrun --nproc_per_node 2 examples/with_lightning.py
    torchrun --nproc_per_node 2 examples/with_lightning.py --resume lightning_checkpoints/epoch=0.ckpt
"""
import argparse
import os

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from thinwire.lightning import ThinwireCallback


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                                    nn.Linear(256, 10))

    def training_step(self, batch, _number):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.002)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--spec", default="auto", help="the system (default %(default)s)")
    parser.add_argument("--folder", default="lightning_checkpoints")
    parser.add_argument("--resume", help="a checkpoint")
    options = parser.parse_args()
    torch.manual_seed(1)
    points = torch.randn(2000, 64)
    labels = (points @ torch.randn(64, 10)).argmax(1)
    trainer = Trainer(
        accelerator="cpu", strategy="ddp",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))),
        max_epochs=3, gradient_clip_val=1.0, log_every_n_steps=10, enable_progress_bar=False,
        logger=CSVLogger(options.folder),
        callbacks=[
            ThinwireCallback(options.spec),  # the line
            ModelCheckpoint(dirpath=options.folder, filename="{epoch}", save_top_k=-1),
        ],
    )
    trainer.fit(Classifier(), DataLoader(TensorDataset(points, labels), batch_size=20, shuffle=True),
                ckpt_path=options.resume)
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['loss']:.4f} in the last batch")


if __name__ == "__main__":
    main()

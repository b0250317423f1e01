"""A network on images under DistributedDataParallel, without and with Thinwire.

    torchrun --nproc_per_node 4 examples/ddp_images.py
    python3 -m thinwire.launch -n 4 examples/ddp_images.py   where torchrun does not work (Debian 12's own)
    srun -n 4 python3 examples/ddp_images.py                 under Slurm (docs/clusters.md)

The images are those of Debian's package dataset-fashion-mnist, or the four files of the data set in --data;
or CIFAR-10's binary version in --cifar10, with random crops and flips. `--model resnet20 --cifar10 DIR
--device cuda --epochs 30 --batch 32 --lr 0.1` is what the papers train. What people train adds `--momentum
0.9 --weight-decay 1e-4 --warm-up 100 --schedule cosine`, or `--optimizer adamw --clip 1`.
"""
import argparse
import gzip
import os
import struct

import torch
import torch.distributed as dist
from comparison import Training, add_options, add_training_options, compare, device_of
from torch import nn
from torch.nn import functional

import thinwire


def read_idx(path: str) -> torch.Tensor:
    """The bytes of an IDX file, [n, ...]."""
    with gzip.open(path) as file:
        data = file.read()
    dimensions = data[3]
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    return torch.frombuffer(bytearray(data[4 + 4 * dimensions:]), dtype=torch.uint8).reshape(shape)


def read_set(folder: str, part: str):
    images = read_idx(os.path.join(folder, f"{part}-images-idx3-ubyte.gz"))
    labels = read_idx(os.path.join(folder, f"{part}-labels-idx1-ubyte.gz"))
    return (images.float().unsqueeze(1) / 255 - 0.286) / 0.353, labels.long()


def read_cifar10(folder: str, names):
    """CIFAR-10's binary files: a byte of label and 3 x 32 x 32 bytes of image each."""
    records = []
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            records.append(torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).reshape(-1, 3073))
    data = torch.cat(records)
    return (data[:, 1:].float().reshape(-1, 3, 32, 32) / 255 - 0.473) / 0.251, data[:, 0].long()


def crop_and_flip(images: torch.Tensor) -> torch.Tensor:
    """Each image moved by up to 4 pixels and mirrored or not, at random."""
    padded = functional.pad(images, (4, 4, 4, 4))
    down, right = (torch.randint(0, 9, (len(images), 1, 1)) + torch.arange(32).reshape(shape)
                   for shape in ((1, 32, 1), (1, 1, 32)))
    mirrored = torch.rand(len(images), 1, 1) < 0.5
    right = torch.where(mirrored, right.flip(2), right)
    moved = padded[torch.arange(len(images)).reshape(-1, 1, 1), :, down, right]
    return moved.permute(0, 3, 1, 2).contiguous()


def make_cnn(channels: int, side: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 500), nn.ReLU(), nn.Linear(500, 10),
    )


class Residual(nn.Module):
    """Two convolutions beside a shortcut (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                          nn.BatchNorm2d(outputs))

    def forward(self, images):
        return functional.relu(self.body(images) + self.shortcut(images))


def make_resnet20(channels: int, _side: int) -> nn.Module:
    widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
    blocks = [Residual(before, after, 1 if before == after else 2)
              for before, after in zip(widths, widths[1:])]
    return nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16),
                         nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description="Images under DDP, without and with Thinwire")
    add_options(parser, epochs=2, compare="plain,dense,marsit:full_every=100,casq")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist",
                        help="folder of the four files (default %(default)s)")
    parser.add_argument("--cifar10", default="",
                        help="folder of CIFAR-10's binary version, to take it instead")
    parser.add_argument("--model", choices=("cnn", "resnet20"), default="cnn")
    parser.add_argument("--batch", type=int, default=32, help="examples per rank and step")
    add_training_options(parser, sgd_lr=0.05)
    options = parser.parse_args()
    training = Training(parser, options)
    torch.set_num_threads(1)
    thinwire.cluster_environment()  # under Slurm: what torchrun would have set
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = device_of(options)
    if options.cifar10:
        images, labels = read_cifar10(options.cifar10, [f"data_batch_{i}.bin" for i in range(1, 6)])
        test_images, test_labels = read_cifar10(options.cifar10, ["test_batch.bin"])
    else:
        images, labels = read_set(options.data, "train")
        test_images, test_labels = read_set(options.data, "t10k")
    make_model = {"cnn": make_cnn, "resnet20": make_resnet20}[options.model]
    if options.limit:
        images, labels = images[: options.limit], labels[: options.limit]

    def batches(epoch):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(options.seed + epoch))
        steps = len(images) // (options.batch * world)
        own = order[: steps * options.batch * world].reshape(steps, world, options.batch)[:, rank]
        change = crop_and_flip if options.cifar10 else lambda some: some
        return [(change(images[chosen]), labels[chosen]) for chosen in own]

    def accuracy(module):
        module.eval()
        with torch.no_grad():
            right = sum((module(part.to(device)).argmax(1).cpu() == truth).sum()
                        for part, truth in zip(test_images.split(500), test_labels.split(500)))
        return right.item() / len(test_labels)

    compare(
        options.compare.split(","), options.rows, options.seed,
        lambda: make_model(images.shape[1], images.shape[2]), batches, options.epochs, training,
        lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        accuracy, "test accuracy", device,
    )


if __name__ == "__main__":
    main()

"""A small network on Fashion-MNIST under DistributedDataParallel, without and with Thinwire.

    torchrun --nproc_per_node 4 examples/ddp_images.py
    python3 -m thinwire.launch -n 4 examples/ddp_images.py        where torchrun does not work (Debian 12's own)

The images are those of Debian's package dataset-fashion-mnist, or the four files of the data set in --data.
"""
import argparse
import gzip
import os
import struct

import torch
import torch.distributed as dist
from comparison import add_options, compare
from torch import nn
from torch.nn import functional


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


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 500), nn.ReLU(), nn.Linear(500, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST under DDP, without and with Thinwire")
    add_options(parser, epochs=2, compare="plain,dense,marsit:full_every=100,casq")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="folder of the four files (default %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="examples per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = read_set(options.data, "train")
    test_images, test_labels = read_set(options.data, "t10k")
    if options.limit:
        images, labels = images[: options.limit], labels[: options.limit]

    def batches(epoch):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(options.seed + epoch))
        steps = len(images) // (options.batch * world)
        own = order[: steps * options.batch * world].reshape(steps, world, options.batch)[:, rank]
        return [(images[chosen], labels[chosen]) for chosen in own]

    def accuracy(module):
        module.eval()
        with torch.no_grad():
            right = sum((module(part).argmax(1) == truth).sum() for part, truth in zip(test_images.split(500), test_labels.split(500)))
        return right.item() / len(test_labels)

    compare(
        options.compare.split(","), options.rows, options.seed, make_model, batches, options.epochs,
        lambda module: [torch.optim.SGD(module.parameters(), lr=options.lr)],
        lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        accuracy, "test accuracy",
    )


if __name__ == "__main__":
    main()

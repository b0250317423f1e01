"""What the grid trains: four kinds of models, each as it is usually trained, on data of Debian's packages.

| name | model | optimizer |
| --- | --- | --- |
| cnn | two convolutions and two layers, images of dataset-fashion-mnist | SGD, momentum 0.9 |
| wide | three layers of width 1,000, the same images | AdamW |
| transformer | four layers of width 128, words of bible-kjv | AdamW, the norm clipped at 1 |
| rows | an embedding with sparse gradients and an LSTM, the same words | SGD |
"""

import argparse
import os
import sys

import torch
from torch import nn
from torch.nn import functional

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(HERE, "..", "time_to_loss"), os.path.join(HERE, "..", "..", "examples")]

import train  # noqa: E402
from ddp_images import make_cnn, read_set  # noqa: E402
from ddp_text import Language  # noqa: E402

IMAGES = "/usr/share/datasets/fashion-mnist"
VOCABULARY = 4000
WINDOW = 32


class Images:
    """What is measured at the end is the error rate in points; 0.2 points are allowed."""

    allowed = 0.2
    unit = "points"
    clip = 0.0
    batch = 32
    held_out = 10_000

    def __init__(self, folder: str):
        self.inputs, self.targets = read_set(folder or IMAGES, "train")
        inputs, targets = read_set(folder or IMAGES, "t10k")
        self.held = inputs[: self.held_out], targets[: self.held_out]

    @staticmethod
    def loss(model, inputs, targets):
        return functional.cross_entropy(model(inputs), targets)

    @staticmethod
    def error(model, inputs, targets):
        return 100 * (model(inputs).argmax(1) != targets).float().mean().item()


class Cnn(Images):
    @staticmethod
    def build():
        return make_cnn(1, 28)

    @staticmethod
    def optimizer(model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Wide(Images):
    @staticmethod
    def build():
        layers = [part for inputs in (784, 1000, 1000) for part in (nn.Linear(inputs, 1000), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(1000, 10))

    @staticmethod
    def optimizer(model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3)


class Words:
    """What is measured at the end is the loss of held-out words; 0.01 nats are allowed."""

    allowed = 0.01
    unit = "nats"
    batch = 8
    held_out = 512

    def __init__(self, path: str):
        numbers = train.numbered(path, VOCABULARY)
        count = (len(numbers) - 1) // WINDOW
        inputs, targets = (numbers[at : at + count * WINDOW].reshape(count, WINDOW) for at in (0, 1))
        held_out = min(self.held_out, count // 10)
        self.inputs, self.targets = inputs[:-held_out], targets[:-held_out]
        self.held = inputs[-held_out:], targets[-held_out:]

    @classmethod
    def error(cls, model, inputs, targets):
        return cls.loss(model, inputs, targets).item()


class Transformer(Words):
    clip = 1.0

    @staticmethod
    def build():
        return train.Losses(
            argparse.Namespace(vocabulary=VOCABULARY, width=128, context=WINDOW, heads=4, layers=4)
        )

    @staticmethod
    def optimizer(model):
        return torch.optim.AdamW(model.parameters(), lr=2e-3)

    @staticmethod
    def loss(model, inputs, targets):
        return model(inputs, targets)


class Rows(Words):
    clip = 0.0

    @staticmethod
    def build():
        return Language(VOCABULARY)

    @staticmethod
    def optimizer(model):
        return torch.optim.SGD(model.parameters(), lr=2.0)

    @staticmethod
    def loss(model, inputs, targets):
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


MODELS = {"cnn": Cnn, "transformer": Transformer, "rows": Rows, "wide": Wide}


def make(name: str, images: str, text: str):
    """images, text: where they lie, if not in Debian's packages."""
    kind = MODELS[name]
    return kind(images if issubclass(kind, Images) else text)

"""Models, loops and comparisons that the scenarios share."""
import atexit
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire

DEADLINE = 30.0
# What register is told unless a scenario says it.
COMPRESS_ON = "cpu" if sys.argv[1:] == ["cuda_staged"] else "device"
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)


class Net(nn.Module):
    """Several parameters of different sizes, so that small bucket limits make several buckets."""

    def __init__(self, width=48):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                    nn.Linear(width, 5))

    def forward(self, x):
        return self.layers(x)


class Images(nn.Module):
    """Convolutions with batch normalisation, whose buffers DDP broadcasts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
        )

    def forward(self, images):
        return self.layers(images)


class Branches(nn.Module):
    """Uses one of two branches, as the caller says."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(20, 12), nn.Linear(20, 12), nn.Linear(12, 5)

    def forward(self, x, left):
        return self.head(self.left(x) if left else self.right(x))


class Words(nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.table, self.head = nn.Embedding(300, 8, sparse=sparse), nn.Linear(8, 4)

    def forward(self, words):
        return self.head(self.table(words).mean(1))


class Mixed(nn.Module):
    """An embedding whose gradients are rows, between layers."""

    def __init__(self):
        super().__init__()
        self.first, self.table = nn.Linear(20, 48), nn.Embedding(64, 48, sparse=True)
        self.last = nn.Sequential(nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 5))

    def forward(self, x):
        return self.last(self.first(x) + self.table((x[:, 0].abs() * 20).long() % 64))


class Given(nn.Module):
    """Parameters whose gradients are exactly what forward() is given."""

    def __init__(self, sizes=(700, 33, 1200, 5), dtypes=(torch.float32,)):
        super().__init__()
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.zeros(size, dtype=dtypes[i % len(dtypes)])) for i, size in enumerate(sizes)]
        )

    def forward(self, gradients):
        return sum((weight * gradient.to(weight.dtype)).double().sum()
                   for weight, gradient in zip(self.weights, gradients))



def wrap(make, **options):
    torch.manual_seed(7)
    # About 4 kB per bucket, from the first one on.
    options.setdefault("bucket_cap_mb", 0.004)
    old = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096
    try:
        return DDP(make(), **options)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = old


def register(model, spec="dense", **options):
    options.setdefault("compress_on", COMPRESS_ON)
    return thinwire.register(model, spec, deadline_seconds=DEADLINE, **options)


def batch(step, rank=None, examples=6):
    generator = torch.Generator().manual_seed(1000 * step + (RANK if rank is None else rank))
    return torch.randn(examples, 20, generator=generator)


def step_of(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def train(model, steps, first=0, optimizer=None):
    optimizer = optimizer or sgd(model)
    for step in range(first, first + steps):
        step_of(model, optimizer, model(batch(step)).square().mean())
    return optimizer


def values_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def require_same(one, other, what, tolerance=0.0):
    for a, b in zip(one, other):
        a, b = a.double(), b.double()
        gap = (a - b).abs().max().item() if a.numel() else 0.0
        limit = tolerance * max(1.0, b.abs().max().item() if b.numel() else 0.0)
        assert gap <= limit, f"{what}: differs by {gap}, {limit} is allowed"


def require_agreement(model, what):
    for parameter in model.parameters():
        mine = parameter.detach().double().contiguous()
        lowest, highest = mine.clone(), mine.clone()
        dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        assert torch.equal(lowest, highest), f"{what}: ranks have different parameters"


def total(tensor):
    result = tensor.double().clone()
    dist.all_reduce(result)
    return result


def require_error(kind, words, action):
    try:
        action()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the message lacks {missing}: {error}"
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def end():
    """Ends the process as Python does, without taking the interpreter apart. There torch 2.15's Gloo threads
    may abort the process, without Thinwire as well: one of them waits for Python's lock,
    to release a tensor of the last collective."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def given(step, sizes, scale=1.0):
    generator = torch.Generator().manual_seed(31 * step + RANK)
    return [scale * torch.randn(size, generator=generator) for size in sizes]


def residuals_of(handle):
    """Of all parameters in order of names, this rank's residuals."""
    values = handle.state_dict()["values"]
    return {name.split("/", 1)[1]: value for name, value in values.items() if name.startswith("residual/")}


def require_agreement_of_gradients(model):
    for parameter in model.parameters():
        gradient = parameter.grad.double()
        summed = total(gradient) / WORLD
        require_same([gradient], [summed], "mean gradients of ranks", 1e-12)


class Scaler:
    """What is read from a GradScaler."""

    def __init__(self):
        self.scale = 1024.0

    def get_scale(self):
        return self.scale

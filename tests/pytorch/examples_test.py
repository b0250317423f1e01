"""How the DDP examples step parameters, without ranks: examples_test.py."""
import argparse
import contextlib
import io
import os
import sys

import torch
from torch import nn

sys.dont_write_bytecode = True
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples"))

from comparison import Training, add_training_options, compare, parts_of  # noqa: E402


def training(*arguments):
    parser = argparse.ArgumentParser()
    add_training_options(parser, sgd_lr=0.5)
    return Training(parser, parser.parse_args(arguments))


class Mixed(nn.Module):
    """A table with sparse gradients and a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(20, 4, sparse=True)
        self.layer = nn.Linear(4, 3)

    def forward(self, words):
        return self.layer(self.table(words)).square().sum()


def rates_rise_and_fall():
    for arguments, expected in (
        ([], [0.5] * 6),
        (["--warm-up", "2"], [0.5 / 3, 1.0 / 3, 0.5, 0.5, 0.5, 0.5]),
        (["--lr", "1", "--warm-up", "2", "--schedule", "cosine"],
         [1 / 3, 2 / 3, 1.0, 0.853553, 0.5, 0.146447]),
        (["--optimizer", "adamw"], [0.001] * 6),
    ):
        how = training(*arguments)
        optimizers = how.optimizers(Mixed())
        for step, rate in enumerate(expected):
            how.set_rate(optimizers, step, 6)
            for optimizer in optimizers:
                assert abs(optimizer.param_groups[0]["lr"] - rate) < 1e-6, (arguments, step, optimizer)


def clipping_counts_every_gradient():
    words = torch.tensor([3, 5, 3, 7])
    free, clipped = Mixed(), Mixed()
    for model in (free, clipped):
        model(words).backward()
    squares = sum(p.grad.to_dense().square().sum() for p in free.parameters())
    assert squares > 1
    training("--clip", "0.25").clip(clipped)
    factor = 0.25 / squares.sqrt()
    for before, after in zip(free.parameters(), clipped.parameters()):
        assert torch.allclose(after.grad.to_dense(), factor * before.grad.to_dense(), rtol=1e-4), factor
    training("--clip", "1e6").clip(free)
    assert torch.allclose(squares, sum(p.grad.to_dense().square().sum() for p in free.parameters()))


def each_optimizer_learns():
    words = torch.tensor([3, 5, 3, 7])
    for arguments in (["--lr", "0.01", "--momentum", "0.9", "--weight-decay", "1e-4"],
                      ["--optimizer", "adamw", "--lr", "0.01"]):
        how, model = training(*arguments, "--clip", "1"), Mixed()
        optimizers = how.optimizers(model)
        untouched = model.table.weight[0].clone()
        losses = []
        for step in range(60):
            how.set_rate(optimizers, step, 60)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = model(words)
            loss.backward()
            how.clip(model)
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0], (arguments, losses[0], losses[-1])
        assert torch.equal(model.table.weight[0], untouched)


class Alone(nn.Module):
    """As DistributedDataParallel with one rank; counts backward passes that stay on the rank."""

    def __init__(self, module):
        super().__init__()
        self.module, self.local = module, 0

    def forward(self, words):
        return self.module(words)

    @contextlib.contextmanager
    def no_sync(self):
        self.local += 1
        yield


def accumulated_batches_make_one_step():
    words = [torch.tensor([3, 5]), torch.tensor([3, 7]), torch.tensor([1, 1])]
    how = training("--lr", "0.01", "--accumulate", "3", "--clip", "0.1")
    parts, whole = Alone(Mixed()), Alone(Mixed())
    loss = how.take_step(parts, how.optimizers(parts.module), [lambda one=one: parts(one) for one in words])
    expected = how.take_step(whole, how.optimizers(whole.module),
                             [lambda: sum(whole(one) for one in words) / 3])
    assert abs(loss - expected) < 1e-6 * expected and (parts.local, whole.local) == (2, 0), (loss, expected)
    for one, other, first in zip(parts.parameters(), whole.parameters(), Mixed().parameters()):
        assert torch.allclose(one, other) and not torch.equal(one, first)
    assert parts_of([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4]]
    assert parts_of([1, 2], 3) == [[1, 2]] and parts_of([1, 2], 1) == [[1], [2]]


def wrong_options_are_named():
    for arguments, named in ((["--clip", "-1"], "--clip -1"),
                             (["--optimizer", "adamw", "--momentum", "0.9"], "--momentum"),
                             (["--accumulate", "0"], "--accumulate 0"),
                             (["--warm-up", "-3"], "--warm-up -3"),
                             (["--weight-decay", "nan"], "--weight-decay nan")):
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                training(*arguments)
            raise AssertionError(arguments)
        except SystemExit as refused:
            assert refused.code == 2 and named in said.getvalue(), said.getvalue()


def a_mean_is_not_clipped_twice():
    """Before anything is trained. A mean that bears it, and plain DDP, are not refused."""
    def refusal(system, *arguments):
        never = None
        try:
            compare(["plain", system], "zen", 1, never, never, 1, training(*arguments), never, never, "loss",
                    torch.device("cpu"))
        except (ValueError, RuntimeError) as said:  # without a process group it comes no further than that
            return str(said) if "clips gradients" in str(said) else ""

    for system, clips in (("clip+casq:bits=4", "clip"), ("momentum+casq:bits=4", "momentum"),
                          ("one_bit_adam", "one_bit_adam"),
                          ("clip:norm=2+warm_up:steps=5+one_bit_adam", "one_bit_adam")):
        told = refusal(system, "--optimizer", "adamw", "--clip", "0.5")
        assert f"at 0.5, and what {clips} delivers" in told and repr(system) in told, (system, told)
        assert refusal(system, "--optimizer", "adamw") == "", system
    for system in ("dense", "casq:bits=4", "auto", "warm_up:steps=5+power_sgd:rank=4"):
        assert refusal(system, "--optimizer", "adamw", "--clip", "0.5") == "", system


rates_rise_and_fall()
clipping_counts_every_gradient()
each_optimizer_learns()
accumulated_batches_make_one_step()
wrong_options_are_named()
a_mean_is_not_clipped_twice()

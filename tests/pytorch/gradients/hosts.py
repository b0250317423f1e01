"""Scenarios of ``ranks_per_host``: two ranks act as one worker, here as on two hosts of two ranks."""
import copy
import os
from unittest import mock

import torch
from torch import nn

from common import (
    RANK, WORLD, Branches, Given, Mixed, Net, Scaler, batch, register, require_agreement, require_error,
    require_same, sgd, step_of, total, train, values_of, wrap,
)

PER_HOST = 2
SYSTEMS = ["casq:bits=4", "power_sgd:rank=2:bits=8", "top_k:ratio=0.1+zen", "blocks:bits=4:block=128",
           "marsit", "sketched_sgd:ratio=0.1", "half", "guard+casq", "auto",
           "warm_up:steps=2:with=blocks/bits=4/block=128+one_bit_adam:freeze=1"]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)


def dense_by_hosts_is_plain_ddp():
    """Up to the order in which floats are added. Beside a table of sparse rows, torch 1.13's own hook is no
    measure, so there ``dense`` among all ranks is."""
    for make in (Net, Mixed):
        plain, ours = wrap(make), wrap(make)
        handles = [register(ours, "dense", ranks_per_host=PER_HOST)]
        if make is Mixed:
            handles.append(register(plain, "dense"))
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (plain, ours)]
        for step in range(5):
            for model, optimizer in zip((plain, ours), optimizers):
                step_of(model, optimizer, model(batch(step)).square().mean())
        require_same(values_of(ours), values_of(plain), "parameters", 1e-6)
        require_agreement(ours, "dense")
        for handle in handles:
            handle.close()


def every_system_trains_by_hosts():
    """AdamW, clipping, accumulation, and branches that some steps leave unused: all ranks stay the same, and
    the loss falls."""
    for spec in SYSTEMS:
        model = wrap(Branches, find_unused_parameters=True)
        optimizer = adamw(model)
        handle = register(model, spec, optimizer=optimizer, ranks_per_host=PER_HOST)
        losses = []
        for step in range(12):
            left = step % 3 != 2
            with model.no_sync():
                model(batch(step), left).square().mean().backward()
            loss = model(batch(step + 100), left).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        require_agreement(model, spec)
        assert losses[-1] < losses[0], (spec, losses)
        assert handle.explain()
        handle.close()


def hosts_send_what_one_rank_each_would():
    """Of each bucket a rank sends its part: two hosts of two ranks send each other what two ranks would,
    half each."""
    counted = {}
    for per_host in (1, PER_HOST):
        model = wrap(lambda: Given((40_000, 64)))
        handle = register(model, "blocks:bits=8:block=128", ranks_per_host=per_host)
        for step in range(3):
            model([torch.randn(40_000), torch.randn(64)]).backward()
        costs = handle.report()["last_step"]
        # Ranks share the work, though not each parameter.
        counted[per_host] = total(torch.tensor(costs["formula_bytes"])).item()
        assert (costs["host_bytes_sent"] > 0) == (per_host > 1), costs
        assert total(torch.tensor(costs["raw_bytes"])) == WORLD * 4 * 40_064 / per_host, costs
        handle.close()
    # Through owners: up and down three quarters of the whole, or half of a half.
    assert 2.8 < counted[1] / counted[PER_HOST] < 3.2, counted


def nothing_is_lost_by_hosts():
    """DDP groups parameters anew after the first step, and another system follows: what has not been
    delivered comes with the steps of zeros after it, sent whole."""
    sizes = (700, 33, 40_000, 1200, 5)
    model = wrap(lambda: Given(sizes))
    handle = register(model, "top_k:ratio=0.05+zen", ranks_per_host=PER_HOST)
    wanted = [torch.zeros(size, dtype=torch.double) for size in sizes]
    delivered = [torch.zeros_like(one) for one in wanted]
    for step in range(8):
        generator = torch.Generator().manual_seed(10 * step + RANK)
        own = [torch.randn(size, generator=generator) * (step < 6) for size in sizes]
        if step == 6:
            handle.set("dense")
        model.zero_grad()
        model(own).backward()
        for i, weight in enumerate(model.module.weights):
            wanted[i] += total(own[i]) / WORLD
            delivered[i] += weight.grad.double()
    require_same(delivered, wanted, "all that was delivered", 1e-5)
    handle.close()


class Tall(nn.Module):
    """A matrix of which each place has a half, and a table of rows."""

    def __init__(self):
        super().__init__()
        self.table, self.tall = nn.Embedding(64, 24, sparse=True), nn.Linear(24, 800)
        self.head = nn.Linear(800, 5)

    def forward(self, x):
        return self.head(torch.tanh(self.tall(self.table((x[:, 0].abs() * 20).long() % 64))))


def resumes_by_hosts():
    """Bit for bit, by each rank's own state; what is no state of these parts is refused, at once."""
    model = wrap(Tall)
    handle = register(model, "casq:bits=2", rows="half:feedback=on", ranks_per_host=PER_HOST)
    before = handle.state_dict()
    handle.load_state_dict(before)  # of no step
    optimizer = train(model, 4)
    state = handle.state_dict()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    momentum = copy.deepcopy(optimizer.state_dict())
    require_error(ValueError, ["ranks_per_host=2", "no sum"], lambda: handle.state_dict(consolidate=True))
    train(model, 3, 4, optimizer)
    straight = values_of(model)
    handle.close()

    other = wrap(Tall)
    other.load_state_dict(weights)
    resumed = register(other, "casq:bits=2", rows="half:feedback=on", ranks_per_host=PER_HOST)
    resumed.load_state_dict(state)
    optimizer = sgd(other)
    optimizer.load_state_dict(momentum)
    train(other, 3, 4, optimizer)
    require_same(values_of(other), straight, "a resumed run")
    resumed.set("top_k:ratio=0.1+zen", "zen")  # what casq has not delivered goes on
    train(other, 2, 7, optimizer)
    require_agreement(other, "another system")
    resumed.close()

    alone = wrap(Tall)
    handle = register(alone, "casq:bits=2")
    require_error(RuntimeError, ["ranks_per_host=2", "ranks_per_host=1"],
                  lambda: handle.load_state_dict(state))
    train(alone, 1)
    require_error(RuntimeError, ["ranks_per_host=2", "ranks_per_host=1"],
                  lambda: handle.load_state_dict(state))
    train(alone, 1, 1)
    handle.close()


def a_bad_value_by_hosts_is_undone():
    """Where one rank has NaN, all ranks have it everywhere in the bucket, and the step after goes on as if
    nothing had been."""
    results = []
    for spoilt in (False, True):
        model = wrap(Net)
        handle = register(model, "top_k:ratio=0.2+zen", ranks_per_host=PER_HOST)
        optimizer = sgd(model)
        for step in range(4):
            if spoilt and step == 2:
                loss = model(batch(9)).square().mean()
                (loss * (float("nan") if RANK == 3 else 1.0)).backward()
                assert all(torch.isnan(value.grad).all() for value in model.parameters())
                optimizer.zero_grad()
            step_of(model, optimizer, model(batch(step)).square().mean())
        results.append(values_of(model))
        handle.close()
    require_same(results[1], results[0], "after a step that was left out")


def half_precision_by_hosts():
    """Buckets in float16 and float64 beside float32."""
    sizes = (700, 33, 1200, 5)
    for spec in ("dense", "casq:bits=4"):
        model = wrap(lambda: Given(sizes, (torch.float16, torch.float32, torch.float64)))
        handle = register(model, spec, ranks_per_host=PER_HOST)
        for step in range(3):
            own = [torch.full((size,), float(RANK + step)) for size in sizes]
            model.zero_grad()
            model(own).backward()
        for weight in model.module.weights:
            mean = (WORLD - 1) / 2 + 2
            assert (weight.grad.double() - mean).abs().max() < 0.2, (spec, weight.dtype, weight.grad)
        require_agreement(model, spec)
        handle.close()


def residuals_follow_a_loss_scale_by_hosts():
    """Powers of two: the same to the bit as without a scale, which changes in the midst."""
    sizes = (700, 40_000)
    results = []
    for scales in ([1.0] * 6, [1024.0, 1024.0, 512.0, 512.0, 4096.0, 4096.0]):
        model = wrap(lambda: Given(sizes))
        scaler = Scaler()
        handle = register(model, "top_k:ratio=0.05+zen", grad_scaler=scaler, ranks_per_host=PER_HOST)
        means = []
        for step, scale in enumerate(scales):
            scaler.scale = scale
            generator = torch.Generator().manual_seed(10 * step + RANK)
            model.zero_grad()
            model([torch.randn(size, generator=generator) * scale for size in sizes]).backward()
            means += [weight.grad / scale for weight in model.module.weights]
        results.append(means)
        handle.close()
    require_same(results[1], results[0], "under a loss scale")


def every_place_decides():
    """Squares lie at one place each: also a rank without anything in the first buckets tries candidates."""
    model = wrap(lambda: nn.Sequential(*[nn.Linear(192, 192, bias=False) for _ in range(6)]))
    handle = register(model, "auto", ranks_per_host=PER_HOST)
    optimizer = sgd(model, 0.01)
    for step in range(20):
        step_of(model, optimizer, model(torch.randn(4, 192)).square().mean())
    mine = sum(bucket["elements"] for bucket in handle.report()["buckets"])
    said = handle.explain()  # on a busy machine a trial may take longer
    assert mine == 0 or "Undisturbed, a step takes" in said or "are being tried" in said, (mine, said)
    assert total(torch.tensor(float(mine))) == 2 * 6 * 192 * 192
    handle.close()


def a_rank_that_differs_is_named_by_all():
    """By its number among all ranks, soon."""
    model = wrap(Net)
    handle = register(model, "casq", ranks_per_host=PER_HOST)
    train(model, 2)
    if RANK == 3:
        handle.set("half")
    require_error(RuntimeError, ["rank 3"], lambda: train(model, 2, 2))
    handle.close()


def hosts_that_cannot_be_are_refused():
    model = wrap(Net)
    require_error(ValueError, ["ranks_per_host=3", "divide the 4 ranks"],
                  lambda: _with_local("", lambda: register(model, "dense", ranks_per_host=3)))
    require_error(ValueError, ["ranks_per_host=4", "started 2 ranks on this host"],
                  lambda: _with_local("2", lambda: register(model, "dense", ranks_per_host=4)))
    require_error(ValueError, ["ranks_per_host=0"], lambda: register(model, "dense", ranks_per_host=0))
    require_error(ValueError, ["clip", "part of its host's mean"],
                  lambda: register(model, "clip:norm=1+casq", ranks_per_host=PER_HOST))
    handle = register(model, "dense", ranks_per_host=PER_HOST)
    require_error(ValueError, ["clip"], lambda: handle.set("clip:norm=1+casq"))
    train(model, 2)
    handle.close()


def _with_local(ranks, action):
    with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": ranks}):
        return action()


def one_host_alone_is_told():
    handle = register(model := wrap(Net), "casq", ranks_per_host=WORLD)
    train(model, 2)
    assert "nothing was compressed: with ranks_per_host=" in handle.explain(), handle.explain()
    assert handle.report()["total"]["wire_bytes_sent"] == 0
    handle.close()


HOSTS = [one_host_alone_is_told, dense_by_hosts_is_plain_ddp,
         every_system_trains_by_hosts, hosts_send_what_one_rank_each_would,
         nothing_is_lost_by_hosts, resumes_by_hosts, a_bad_value_by_hosts_is_undone, half_precision_by_hosts,
         residuals_follow_a_loss_scale_by_hosts, every_place_decides, a_rank_that_differs_is_named_by_all,
         hosts_that_cannot_be_are_refused]

"""Scenarios of the stage `clip`: each worker's own gradient is clipped, over all buckets and lanes."""
from unittest import mock

import torch

import thinwire
from common import (
    RANK, WORLD, Given, Scaler, register, require_agreement, require_error, require_same, total, wrap,
)

# About 4 kB per bucket: so the lanes have several buckets each.
SIZES = (700, 33, 1200, 5, 900, 800, 1000)


def given(step, scale=1.0, rank=None):
    generator = torch.Generator().manual_seed(100 * step + (RANK if rank is None else rank))
    return [torch.randn(size, generator=generator) * (i + 1) * scale for i, size in enumerate(SIZES)]


def norm_of(gradients):
    return torch.cat([one.flatten().double() for one in gradients]).norm()


def clipping_goes_by_the_whole_gradient():
    """The same gradients in every step: then shares are known, and each bucket is clipped as
    clip_grad_norm_ would have clipped the worker's own gradient."""
    model = wrap(lambda: Given(SIZES))
    handle = register(model, "clip:norm=2.5+dense")
    own = given(0)
    assert norm_of(own) > 2.5
    wanted = [total(one * (2.5 / norm_of(own))) / WORLD for one in own]
    for _ in range(4):
        model.zero_grad()
        model(own).backward()
    assert len(handle.report()["buckets"]) > 2, "one bucket would show nothing"
    require_same([weight.grad for weight in model.module.weights], wanted, "clipped gradients", 2e-5)
    # A step that all ranks leave out, and one that is not finite, teach nothing.
    spoilt = given(1, 1000)
    if RANK == 0:
        spoilt[2][7] = float("nan")
    model.zero_grad()
    model(spoilt).backward()
    model.zero_grad()
    model(own).backward()
    require_same([weight.grad for weight in model.module.weights], wanted, "gradients afterwards", 2e-5)
    handle.close()


def norms_stay_within_the_limit():
    """Of gradients that change, the estimate is near: by 5 %, where shares change by less."""
    model = wrap(lambda: Given(SIZES))
    handle = register(model, "clip:norm=1+dense")
    for step in range(8):
        model.zero_grad()
        model(given(step, rank=0, scale=1 + step % 3)).backward()
    norm = norm_of([weight.grad for weight in model.module.weights])
    assert abs(norm - 1) < 0.05, norm
    handle.close()


def clipping_under_a_loss_scale():
    """Powers of two: the same to the bit as without a scale. The scale changes in the midst."""
    results = []
    for scales in ([1.0] * 6, [1024.0, 1024.0, 1024.0, 512.0, 512.0, 4096.0]):
        model = wrap(lambda: Given(SIZES))
        scaler = Scaler()
        handle = register(model, "clip:norm=2+top_k:ratio=0.1+zen", grad_scaler=scaler)
        means = []
        for step, scale in enumerate(scales):
            scaler.scale = scale
            model.zero_grad()
            model(given(step, scale)).backward()
            means += [weight.grad / scale for weight in model.module.weights]
        results.append(means)
        handle.close()
    for plain, scaled in zip(*results):
        assert torch.equal(plain, scaled)


def clipping_is_remembered():
    """A resumed run is the same bit for bit; and so is one whose system behind the stage changes."""
    model = wrap(lambda: Given(SIZES))
    handle = register(model, "clip:norm=2+casq")
    for step in range(4):
        model(given(step)).backward()
    state = handle.state_dict()
    other = wrap(lambda: Given(SIZES))
    resumed = register(other, "clip:norm=2+casq")
    resumed.load_state_dict(state)
    for step in range(4, 6):
        for one in (model, other):
            one.zero_grad()
            one(given(step)).backward()
        for straight, after in zip(model.module.weights, other.module.weights):
            assert torch.equal(straight.grad, after.grad), step
    for one in (handle, resumed):
        one.set("clip:norm=2+dense")
    own = given(5)
    for one in (model, other):
        one.zero_grad()
        one(own).backward()
    require_agreement(model, "clip")
    for straight, after in zip(model.module.weights, other.module.weights):
        assert torch.equal(straight.grad, after.grad)
    for one in (handle, resumed):
        one.close()


def the_norm_of_a_shard_is_refused():
    """As of a model that is sharded within hosts."""
    model = wrap(lambda: Given(SIZES))
    with mock.patch.object(thinwire.Handle, "_has_whole_gradients", False):
        require_error(ValueError, ["clip", "this rank's shard"], lambda: register(model, "clip+casq"))
        handle = register(model, "casq")
        require_error(ValueError, ["clip", "this rank's shard"], lambda: handle.set("whole+clip+casq"))
    handle.close()


CLIPPING = [clipping_goes_by_the_whole_gradient, norms_stay_within_the_limit, clipping_under_a_loss_scale,
            clipping_is_remembered, the_norm_of_a_shard_is_refused]

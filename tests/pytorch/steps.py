"""Scenarios of a step as a unit: what takes no part in it loses nothing,
and one that does not count leaves no trace."""
import gc

import torch
from torch import nn

import thinwire
from common import (
    RANK, WORLD, register, require_agreement, require_error, require_same, residuals_of, total, wrap,
)

SPECS = [
    "casq", "marsit:full_every=3", "marsit:full_every=0:eta_s=0.1", "top_k:ratio=0.05+zen",
    "sketched_sgd:ratio=0.1:dense_below=0", "ef_signsgd", "power_sgd:rank=1",
    "mc:momentum=0.5+top_k:ratio=0.05+agsparse", "blocks:bits=4", "acp_sgd:rank=1:bits=8",
]
# And those whose residual is not what has not arrived.
ALL_SPECS = [*SPECS, "momentum+casq", "demo:chunk=8:top=4", "decay:factor=0.9+top_k:ratio=0.05+zen",
             "clip:norm=1+casq"]


class Parts(nn.Module):
    """Parameters of which forward() uses those that it is given a gradient for."""

    def __init__(self, sizes=(1500, 1400, 1300, 40)):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(size // 20, 20)) for size in sizes])

    def forward(self, gradients):
        return sum((self.weights[i] * gradient).sum() for i, gradient in gradients.items())


def gradients_of(model, step, used):
    generator = torch.Generator().manual_seed(100 * step + RANK)
    drawn = [torch.randn(weight.shape, generator=generator) for weight in model.module.weights]
    return {i: drawn[i] for i in used}


def backward(model, gradients, to_none=True):
    model.zero_grad(set_to_none=to_none)
    model(gradients).backward()


def tensors_of(state):
    return {name: value for name, value in state["values"].items() if isinstance(value, torch.Tensor)}


def state_of(handle):
    return tensors_of(handle.state_dict())


def require_agreement_of_gradients(model, what):
    for weight in model.module.weights:
        require_same([WORLD * weight.grad], [total(weight.grad)], what)


def require_same_state(before, after, what):
    assert before.keys() == after.keys(), f"{what}: {before.keys() ^ after.keys()}"
    for name, value in before.items():
        assert torch.equal(value, after[name]), f"{what}: {name} has moved"


def unused_on_all_ranks():
    """Parameter 1 is unused on all ranks for three steps, parameter 2 on one rank:
    what went in came out or is in a residual."""
    for spec in SPECS:
        for to_none, view in ((True, False), (False, False), (True, True)):
            model = wrap(Parts, find_unused_parameters=True, gradient_as_bucket_view=view)
            handle = register(model, spec)
            sums = [torch.zeros(weight.shape, dtype=torch.float64) for weight in model.module.weights]
            for step in range(8):
                pause = 2 <= step < 5
                used = [i for i in range(4) if not (pause and i == 1)
                        and not (i == 2 and RANK == step % WORLD)]
                gradients = gradients_of(model, step, used)
                before = state_of(handle)
                backward(model, gradients, to_none)
                what = f"{spec}, step {step}, set_to_none={to_none}, gradient_as_bucket_view={view}"
                if pause:
                    gradient = model.module.weights[1].grad
                    assert gradient is None if to_none else gradient.abs().sum() == 0, what
                    for name, value in state_of(handle).items():
                        if name in ("residual/weights.1", "velocity/weights.1"):
                            assert torch.equal(value, before[name]), f"{what}: {name} has moved"
                for i, weight in enumerate(model.module.weights):
                    sums[i] += total(gradients.get(i, torch.zeros(weight.shape)))
                    if weight.grad is not None:
                        sums[i] -= WORLD * weight.grad.double()
                if spec.startswith("mc"):
                    continue  # delivers more than comes in
                for i, summed in enumerate(sums):
                    require_same([summed],
                                 [total(residuals_of(handle)[f"weights.{i}"]).reshape(summed.shape)],
                                 f"{what}, parameter {i}", 1e-3)


def keeps_own_gradients():
    """Whether this torch leaves each rank its own gradient of a parameter that no rank used in the
    synchronized part of a step. Newer ones deliver the mean of what accumulated."""
    model = wrap(Parts, find_unused_parameters=True)
    own = torch.full_like(model.module.weights[1], RANK + 1.0)
    with model.no_sync():
        model({0: torch.ones_like(model.module.weights[0]), 1: own}).backward()
    model({0: torch.ones_like(model.module.weights[0])}).backward()
    return torch.equal(model.module.weights[1].grad, own)


def used_without_synchronization():
    """In the last part of an accumulated step only one rank uses parameter 1, and in step 3 none does. Where
    DDP itself then leaves each rank its own gradient, nothing is delivered.
    Otherwise what went in came out or is in a residual."""
    keeps = keeps_own_gradients()
    model = wrap(Parts, find_unused_parameters=True)
    handle = register(model, "casq")
    sums = torch.zeros(model.module.weights[1].shape, dtype=torch.float64)
    for step in range(6):
        model.zero_grad()
        last = [0, 2, 3] if RANK == 0 or step == 3 else [0, 1, 2, 3]
        first, second = gradients_of(model, 2 * step, [0, 1]), gradients_of(model, 2 * step + 1, last)
        before = residuals_of(handle).get("weights.1")
        with model.no_sync():
            model(first).backward()
        model(second).backward()
        after = residuals_of(handle)["weights.1"]
        if step == 3 and keeps:
            assert torch.equal(model.module.weights[1].grad, first[1]) and torch.equal(before, after)
            continue
        require_same([WORLD * model.module.weights[1].grad], [total(model.module.weights[1].grad)],
                     f"ranks agree in step {step}")
        sums += (total(first[1] + second.get(1, torch.zeros_like(first[1])))
                 - WORLD * model.module.weights[1].grad.double())
        require_same([sums], [total(after).reshape(sums.shape)], f"step {step}", 1e-4)


def unused_with_a_static_graph():
    model = wrap(Parts, static_graph=True)
    handle = register(model, "ef_signsgd")
    sums = [torch.zeros(weight.shape, dtype=torch.float64) for weight in model.module.weights]
    for step in range(4):
        gradients = gradients_of(model, step, [0, 2, 3])
        backward(model, gradients)
        for i, weight in enumerate(model.module.weights):
            if i in gradients:
                sums[i] += total(gradients[i])
            if weight.grad is not None:
                sums[i] -= WORLD * weight.grad.double()
            require_same([sums[i]], [total(residuals_of(handle)[f"weights.{i}"]).reshape(sums[i].shape)],
                         f"step {step}, parameter {i}", 1e-4)


def frozen_after_wrapping():
    """Plain DDP goes on without it, and so does the hook."""
    for spec in ("dense", "casq", "power_sgd:rank=1"):
        model = wrap(Parts, find_unused_parameters=True)
        model.module.weights[1].requires_grad_(False)
        handle = register(model, spec)
        for step in range(3):
            backward(model, gradients_of(model, step, [0, 1, 2, 3]))
        assert model.module.weights[1].grad is None
        state = handle.state_dict()
        other = wrap(Parts, find_unused_parameters=True)
        other.module.weights[1].requires_grad_(False)
        resumed = register(other, spec)
        resumed.load_state_dict(state)
        for again in (model, other):
            backward(again, gradients_of(again, 3, [0, 2, 3]))
        require_same([w.grad for w in other.module.weights if w.grad is not None],
                     [w.grad for w in model.module.weights if w.grad is not None], spec)


def a_bad_bucket_undoes_the_step():
    """Without a GradScaler, too: whoever leaves out the step loses nothing. All gradients become NaN, also
    those of the other buckets, so that no optimizer of these alone takes what is delivered again."""
    for spec in ALL_SPECS:
        model = wrap(Parts)
        handle = register(model, spec)
        for step in range(4):
            backward(model, gradients_of(model, step, range(4)))
        before = state_of(handle)
        spoilt = gradients_of(model, 4, range(4))
        if RANK == 0:
            spoilt[2][0, 0] = float("nan")
        backward(model, spoilt)
        assert len(handle.report()["buckets"]) > 1, "there is no other bucket"
        assert not any(weight.grad.isfinite().any() for weight in model.module.weights), spec
        require_same_state(before, state_of(handle), spec)
        assert handle.step == 5


def submit(handle, index, bucket, model):
    """A bucket of parameters with these numbers, as the hook hands it over."""
    weights = [model.module.weights[i] for i in bucket]
    gradient = torch.randn(sum(weight.numel() for weight in weights),
                           generator=torch.Generator().manual_seed(10 * index + RANK))
    future = torch.futures.Future()
    last = index + 1 == len(handle.report()["buckets"])
    handle._engine.submit(index, last, last, gradient, weights, future)
    return future


def a_backward_that_is_given_up():
    """Its finished buckets are undone: their means have reached no optimizer."""
    for spec in ALL_SPECS:
        model = wrap(Parts)
        handle = register(model, spec)
        for step in range(4):
            backward(model, gradients_of(model, step, range(4)))
        buckets = [[int(name.split(".")[-1]) for name in bucket["parameters"]]
                   for bucket in handle.report()["buckets"]]
        assert len(buckets) > 2, buckets
        before = handle.state_dict()

        def fail(_):
            raise ValueError("in the middle of backward")

        hook = model.module.weights[buckets[-1][0]].register_hook(fail)
        require_error(ValueError, ["in the middle"],
                      lambda: backward(model, gradients_of(model, 4, range(4))))
        assert handle.step == 4, f"{spec}: {handle.step} steps have ended"
        given_up = handle.state_dict()
        assert handle.step == given_up["values"]["step"] == 4, (f"{spec}: "
                                                                "the step that was given up has counted")
        require_same_state(tensors_of(before), tensors_of(given_up), spec)
        # DDP itself goes on with another model alone. Where the engine goes on, the number is passed over: so
        # no rank takes messages of the one step for the other's.
        futures = [submit(handle, index, bucket, model) for index, bucket in enumerate(buckets)]
        handle._engine.end_backward([])
        require_same([WORLD * future.wait() for future in futures],
                     [total(future.wait()) for future in futures], spec)
        assert handle.state_dict()["values"]["step"] == handle.step == 6, handle.step
        # As pytorch.md says: the same parameters in another DistributedDataParallel, from the saved state on.
        handle.close()
        hook.remove()
        inner = model.module
        del model, handle, futures  # the hooks of a DistributedDataParallel last as long as it does
        gc.collect()
        again = wrap(lambda: inner)
        resumed = register(again, spec)
        resumed.load_state_dict(given_up)
        backward(again, gradients_of(again, 4, range(4)))
        require_agreement_of_gradients(again, spec)
        assert resumed.step == 5, resumed.step
        resumed.close()


def a_backward_that_one_rank_gives_up():
    """All ranks can save the end of the step before, and go on from there."""
    for spec in ("amq:every=2:bits=5:chunk=1024", *ALL_SPECS):
        model = wrap(Parts)
        # Others ask for a quarter of the deadline who is gone.
        handle = thinwire.register(model, spec, deadline_seconds=8.0)
        for step in range(4):
            backward(model, gradients_of(model, step, range(4)))
        before = handle.state_dict()
        buckets = [[int(name.split(".")[-1]) for name in bucket["parameters"]]
                   for bucket in handle.report()["buckets"]]

        def fail(_):
            raise ValueError("on this rank alone")

        if RANK == 1:
            model.module.weights[buckets[-1][0]].register_hook(fail)
            require_error(ValueError, ["this rank alone"],
                          lambda: backward(model, gradients_of(model, 4, range(4))))
            handle.close()
            state = handle.state_dict()
        else:
            require_error(RuntimeError, ["rank 1"], lambda: backward(model, gradients_of(model, 4, range(4))))
            state = handle.state_dict()
            handle.close()
        assert handle.step == state["values"]["step"] == 4, f"{spec}: the step that was given up has counted"
        require_same_state(tensors_of(before), tensors_of(state), spec)
        other = wrap(Parts)
        resumed = register(other, spec)
        resumed.load_state_dict(state)
        backward(other, gradients_of(other, 4, range(4)))
        require_agreement_of_gradients(other, spec)


def buckets_that_are_missing():
    """DDP(skip_all_reduce_unused_params=True) leaves out buckets that no rank used:
    first, middle and last ones."""
    try:
        wrap(Parts, find_unused_parameters=True, skip_all_reduce_unused_params=True)
    except TypeError:
        return "skipped: this torch has no skip_all_reduce_unused_params"
    for spec in ("dense", "casq", "top_k:ratio=0.05+zen"):
        for unused in range(4):
            model = wrap(Parts, find_unused_parameters=True, skip_all_reduce_unused_params=True)
            handle = register(model, spec)
            used = [i for i in range(4) if i != unused]
            sums = [torch.zeros(weight.shape, dtype=torch.float64) for weight in model.module.weights]
            for step in range(4):
                gradients = gradients_of(model, step, used)
                backward(model, gradients)
                assert handle.step == step + 1
                for i in used:
                    sums[i] += total(gradients[i]) - WORLD * model.module.weights[i].grad.double()
            left = residuals_of(handle)
            for i in used:
                if f"weights.{i}" in left or spec != "dense":
                    require_same([sums[i]], [total(left[f"weights.{i}"]).reshape(sums[i].shape)],
                                 f"{spec} without {unused}, parameter {i}", 1e-3)
    return None


STEPS = [
    unused_on_all_ranks, used_without_synchronization, unused_with_a_static_graph, frozen_after_wrapping,
    a_bad_bucket_undoes_the_step, a_backward_that_is_given_up, a_backward_that_one_rank_gives_up,
    buckets_that_are_missing,
]

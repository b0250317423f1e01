"""Scenarios of torch.compile: that what it compiles still goes through the hook,
and that what cannot is refused."""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from common import Net, batch, register, require_agreement, require_error, require_same, train, values_of

STEPS = 4


def compiled(what):
    return torch.compile(what, backend="aot_eager")


def wrapped():
    """A model of several buckets, between which torch divides what it compiles."""
    torch._dynamo.reset()  # or the next of several models may run as it is, after too many were compiled
    torch.manual_seed(7)
    return DDP(Net(600), bucket_cap_mb=1)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def whole_steps(model, optimizer):
    """Steps of one function from forward to the end of backward."""
    def loss_of(examples):
        loss = model(examples).square().mean()
        loss.backward()
        return loss

    step = compiled(loss_of)
    for number in range(STEPS):
        optimizer.zero_grad()
        step(batch(number))
        optimizer.step()


def require_compiled():
    """The model, and nothing of Thinwire, which would be compiled anew for each bucket."""
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    ours = [reason for reason in counters["graph_break"] if "thinwire" in reason]
    assert not ours, ours
    counters.clear()


def compiled_steps_go_through_the_hook():
    plain = wrapped()
    train(plain, STEPS, optimizer=adamw(plain))
    sent = {}
    for spec in ("dense", "casq:bits=4"):
        for way in ("around", "in place", "whole steps"):
            model = wrapped()
            handle = register(model, spec)
            if way == "in place":
                model.compile(backend="aot_eager")
            if way == "whole steps":
                whole_steps(model, adamw(model))
            else:
                train(compiled(model) if way == "around" else model, STEPS, optimizer=adamw(model))
            require_compiled()
            if spec == "dense":
                require_same(values_of(model), values_of(plain), f"compiled {way}", 1e-6)
            require_agreement(model, f"{spec}, compiled {way}")
            assert handle.step == STEPS, handle.step
            sent[spec, way] = handle.report()["total"]["wire_bytes_sent"]
    for (spec, way), wire_bytes in sent.items():
        assert wire_bytes > 0 and (spec == "dense" or 6 * wire_bytes < sent["dense", way]), sent


def registered_after_compiled_steps():
    plain, model = wrapped(), wrapped()
    whole, optimizer = compiled(model), adamw(model)
    train(whole, 2, optimizer=optimizer)
    handle = register(whole)
    train(whole, 2, first=2, optimizer=optimizer)
    require_compiled()
    train(plain, 4, optimizer=adamw(plain))
    require_same(values_of(model), values_of(plain), "registered after compiled steps", 1e-6)
    assert handle.step == 2, handle.step


def compiled_autograd():
    """DDP refuses it where its reducer has buckets, and register where it has none."""
    model = wrapped()
    handle = register(model)
    with torch._dynamo.config.patch(compiled_autograd=True):
        require_error(RuntimeError, ["Compiled autograd", "python_reducer"],
                      lambda: whole_steps(model, adamw(model)))
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
            require_error(ValueError, ["python_reducer", "compiled autograd"], lambda: register(wrapped()))
    assert handle.step == 0, handle.step


def a_backward_that_is_traced():
    """Under DDP it leaves parameters without a gradient. Where it no longer does,
    register need not refuse it."""
    plain = wrapped()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        whole_steps(plain, adamw(plain))
        assert all(parameter.grad is None
                   for parameter in plain.parameters()), "DDP now synchronizes these gradients"
        require_error(ValueError, ["trace_autograd_ops", "False"], lambda: register(wrapped()))


def local_steps_of_compiled_models():
    """The updates of a round go past what was compiled."""
    values = {}
    for way in ("not", "around", "in place", "the model inside"):
        model = wrapped()
        register(model, "dense")
        called = compiled(model) if way == "around" else model
        if way == "in place":
            model.compile(backend="aot_eager")
        if way == "the model inside":
            model.module.compile(backend="aot_eager")
        optimizer = adamw(model)
        local = thinwire.LocalSteps(called, optimizer, every=2)
        for number in range(STEPS):
            with local.no_sync():
                called(batch(number)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert local.step() == (number % 2 == 1)
        require_agreement(model, way)
        values[way] = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
        assert torch.allclose(values[way], values["not"], atol=1e-5), way


COMPILED = [compiled_steps_go_through_the_hook, registered_after_compiled_steps, compiled_autograd,
            a_backward_that_is_traced, local_steps_of_compiled_models]

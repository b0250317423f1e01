"""Scenarios of gradients on CUDA devices, which ranks share."""
import copy

import torch

import thinwire
from common import (COMPRESS_ON, RANK, WORLD, Net, Words, batch, register, require_same, sgd, step_of,
                    values_of, wrap)
from like_plain_ddp import require_compression_on
from lossy_systems import compare_with_the_cpu

CUDA = "cuda:0"


def wrap_on_device(make, **options):
    return wrap(lambda: make().to(CUDA), **options)


def train_on_device(model, steps, first=0, optimizer=None):
    optimizer = optimizer or sgd(model)
    for step in range(first, first + steps):
        step_of(model, optimizer, model(batch(step).to(CUDA)).square().mean())
    return optimizer


def device_dense_equals_plain_ddp():
    plain, ours = wrap_on_device(Net), wrap_on_device(Net)
    handle = register(ours)
    for model in (plain, ours):
        train_on_device(model, 20)
    # DDP over NCCL may sum in another order.
    require_same(values_of(ours), values_of(plain), "20 steps on a device", 0.0 if WORLD <= 2 else 1e-6)
    assert len(handle.report()["buckets"]) > 1
    require_compression_on(handle, CUDA if COMPRESS_ON == "device" and thinwire._C.cuda == "yes" else "cpu")


def device_equals_host():
    """The same gradients give the same means wherever they lie: values, types and residuals."""
    compare_with_the_cpu(CUDA)


def device_rows():
    host, device = wrap(Words), wrap_on_device(Words)
    for model, where in ((host, "cpu"), (device, CUDA)):
        register(model)
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + RANK)
            words = torch.randint(0, 300, (5, 6), generator=generator).to(where)
            model.zero_grad()
            model(words).square().sum().backward()
            if step < 3:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * (parameter.grad.to_dense() if parameter.grad.is_sparse
                                            else parameter.grad)
    gap = [a.detach().cpu() for a in device.parameters()]
    require_same(gap, values_of(host), "rows on a device", 1e-5)
    assert device.module.table.weight.grad.is_sparse and str(device.module.table.weight.grad.device) == CUDA


def device_states():
    """A run that was saved, resumed in a new process's buckets, and changed to another system,
    beside one that went on."""
    for spec in ("casq", "top_k:ratio=0.1+zen", "ef_signsgd"):
        model = wrap_on_device(Net)
        handle = register(model, spec)
        optimizer = train_on_device(model, 3)
        saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), handle.state_dict()))
        assert all(value.device.type == "cpu"
                   for value in saved[2]["values"].values() if torch.is_tensor(value))
        again = wrap_on_device(Net)
        resumed = register(again, spec)
        again.module.load_state_dict(saved[0])
        other = sgd(again)
        other.load_state_dict(saved[1])
        resumed.load_state_dict(saved[2])
        for one, ours, its in ((model, handle, optimizer), (again, resumed, other)):
            train_on_device(one, 2, first=3, optimizer=its)
            ours.set("marsit")
            train_on_device(one, 2, first=5, optimizer=its)
        require_same(values_of(again), values_of(model), f"{spec}, resumed on a device")


def device_skipped_steps():
    """With a GradScaler a residual survives a step that is left out, in memory of the device."""
    model = wrap_on_device(Net)
    scaler = torch.cuda.amp.GradScaler(init_scale=1.0)
    handle = register(model, "ef_signsgd", grad_scaler=scaler)
    optimizer = train_on_device(model, 3)
    before = handle.state_dict()["values"]
    optimizer.zero_grad()
    loss = model(batch(3).to(CUDA)).square().mean()
    (loss * (float("inf") if RANK == WORLD - 1 else 1.0)).backward()
    after = handle.state_dict()["values"]
    residuals = [name for name in before if name.startswith("residual/")]
    assert residuals and any(before[name].abs().max() > 0 for name in residuals)
    require_same([after[name] for name in residuals], [before[name] for name in residuals],
                 "residuals after a skipped step")


def device_other_streams():
    """Backward on a stream of the user's own, the optimizer on it too."""
    plain, ours = wrap_on_device(Net), wrap_on_device(Net)
    register(ours)
    stream = torch.cuda.Stream()
    for model in (plain, ours):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            train_on_device(model, 10)
        torch.cuda.synchronize()
    require_same(values_of(ours), values_of(plain), "another stream")


def device_graphs_are_refused():
    model = wrap_on_device(Net)
    register(model)
    train_on_device(model, 3)
    inputs = batch(0).to(CUDA)
    graph = torch.cuda.CUDAGraph()

    def capture():
        with torch.cuda.graph(graph):
            model(inputs).square().mean().backward()

    try:
        capture()
    except RuntimeError as error:
        # The refusal spoils the capture, of which CUDA complains as well, as the cause's context.
        chain, messages = error, []
        while chain is not None:
            messages.append(str(chain))
            chain = chain.__context__
        assert any("CUDA graph" in message for message in messages), messages
        return
    raise AssertionError("a captured backward went through")


def device_amp():
    model = wrap_on_device(Net)
    optimizer = sgd(model)
    scaler = torch.cuda.amp.GradScaler(init_scale=2.0 ** 40, growth_interval=2)
    register(model, "casq", grad_scaler=scaler)
    for step in range(30):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch(step).to(CUDA)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0 ** 40, "no step was skipped"
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


DEVICE = [
    device_dense_equals_plain_ddp, device_equals_host, device_rows, device_states, device_skipped_steps,
    device_other_streams, device_amp,
    device_graphs_are_refused,
]

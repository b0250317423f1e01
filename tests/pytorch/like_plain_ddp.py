"""Scenarios in which Thinwire does what DDP without it does."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from common import (
    RANK, WORLD, Branches, Given, Images, Net, Words, batch,
    register, require_agreement, require_same, sgd, step_of, train, values_of,
    wrap,
)


def dense_equals_plain_ddp():
    plain, ours = wrap(Images), wrap(Images)
    handle = register(ours)
    for model in (plain, ours):
        optimizer = sgd(model, 0.05)
        for step in range(100):
            generator = torch.Generator().manual_seed(1000 * step + RANK)
            labels = torch.randint(0, 10, (4,), generator=generator)
            images = torch.randn(4, 1, 28, 28, generator=generator) + labels.reshape(4, 1, 1, 1) / 5
            step_of(model, optimizer, nn.functional.cross_entropy(model(images), labels))
    require_same(values_of(ours), values_of(plain), "100 steps")
    report = handle.report()
    assert report["step"] == 100 and len(report["buckets"]) > 1, report
    elements = sum(parameter.numel() for parameter in ours.parameters())
    assert report["last_step"]["raw_bytes"] == 4 * elements
    assert WORLD == 1 or report["total"]["wire_bytes_sent"] >= 100 * 4 * elements * (WORLD - 1) / WORLD


def parameters_of_buckets(handle):
    return [bucket["parameters"] for bucket in handle.report()["buckets"]]


def buckets_are_rebuilt():
    model = wrap(Net)
    handle = register(model, "top_k:ratio=0.1+zen")
    train(model, 1)
    first = parameters_of_buckets(handle)
    train(model, 2, first=1)
    assert parameters_of_buckets(handle) != first, "DDP was expected to group parameters anew"
    assert sorted(sum(first, [])) == sorted(sum(parameters_of_buckets(handle), []))
    require_agreement(model, "rebuilt buckets")


def accumulation_without_synchronization():
    plain, ours = wrap(Net), wrap(Net)
    handle = register(ours)
    for model in (plain, ours):
        optimizer = sgd(model)
        for step in range(6):
            optimizer.zero_grad()
            with model.no_sync():
                model(batch(3 * step)).square().mean().backward()
                model(batch(3 * step + 1)).square().mean().backward()
            model(batch(3 * step + 2)).square().mean().backward()
            optimizer.step()
    assert handle.step == 6
    require_same(values_of(ours), values_of(plain), "accumulated gradients")


def unused_parameters():
    plain, ours = (wrap(Branches, find_unused_parameters=True) for _ in range(2))
    register(ours)
    for model in (plain, ours):
        optimizer = sgd(model)
        for step in range(8):
            # Ranks use different branches in some steps, none of them the right one in the last.
            left = (step + RANK) % 3 != 0 or step == 7
            step_of(model, optimizer, model(batch(step), left).square().mean())
    require_same(values_of(ours), values_of(plain), "unused parameters")


def static_graph():
    plain, ours = (wrap(Net, static_graph=True) for _ in range(2))
    register(ours)
    for model in (plain, ours):
        train(model, 6)
    require_same(values_of(ours), values_of(plain), "static graph")


def gradients_as_views():
    plain, ours = (wrap(Net, gradient_as_bucket_view=True) for _ in range(2))
    register(ours)
    for model in (plain, ours):
        train(model, 6)
    require_same(values_of(ours), values_of(plain), "gradients as views")


def uneven_inputs():
    for options in ({}, {"find_unused_parameters": True}):
        plain, ours, compressed = (wrap(Net, **options) for _ in range(3))
        register(ours)
        handle = register(compressed, "ef_signsgd")
        for model in (plain, ours, compressed):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            with model.join():
                for step in range(4 + 3 * RANK):
                    step_of(model, optimizer, model(batch(step)).square().mean())
        assert handle.step == 4 + 3 * (WORLD - 1)
        require_same(values_of(ours), values_of(plain), f"uneven inputs, {options}")
        require_agreement(compressed, f"uneven inputs, {options}")


def frozen_and_unfrozen():
    plain, ours = (wrap(Net, find_unused_parameters=True) for _ in range(2))
    register(ours)
    for model in (plain, ours):
        optimizer = sgd(model)
        for step in range(9):
            for parameter in model.module.layers[2].parameters():
                parameter.requires_grad_(not 3 <= step < 6)
            step_of(model, optimizer, model(batch(step)).square().mean())
    require_same(values_of(ours), values_of(plain), "frozen layer")


class Own(nn.Module):
    """Behind the net that all ranks have, a layer of another shape on each."""

    def __init__(self):
        super().__init__()
        self.net, self.own = Net(), nn.Linear(5, 3 + RANK)

    def forward(self, x):
        return self.own(self.net(x))


def ignored_parameters():
    """What DDP is told to ignore is each rank's own."""
    def make():
        model = Own()
        DDP._set_params_and_buffers_to_ignore_for_model(model, ["own.weight", "own.bias"])
        return model

    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        plain, ours = wrap(make, **options), wrap(make, **options)
        handle = register(ours, check_replicas_every=1)
        for model in (plain, ours):
            train(model, 4)
        require_same(values_of(ours), values_of(plain), f"ignored parameters, {options}")
        assert list(handle.state_dict()["parameters"]) == [name for name, _ in ours.module.named_parameters()
                                                           if "own" not in name]


def two_models():
    models = [wrap(Net), wrap(lambda: Net(17)), wrap(Net), wrap(lambda: Net(17))]
    register(models[2])
    register(models[3], "dense")
    optimizers = [sgd(model) for model in models]
    for step in range(5):
        losses = [model(batch(step)).square().mean() for model in models]
        for optimizer, loss in zip(optimizers, losses):
            optimizer.zero_grad()
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    require_same(values_of(models[2]), values_of(models[0]), "first of two models")
    require_same(values_of(models[3]), values_of(models[1]), "second of two models")


def double_precision_is_exact():
    plain, ours = wrap(lambda: Net().double()), wrap(lambda: Net().double())
    register(ours, "signsgd")
    for model in (plain, ours):
        optimizer = sgd(model)
        for step in range(4):
            step_of(model, optimizer, model(batch(step).double()).square().mean())
    require_same(values_of(ours), values_of(plain), "float64")


def halves_are_summed_in_their_type():
    sizes = (700, 33, 1200, 5)
    for dtype in (torch.float16, torch.bfloat16):
        if dtype == torch.bfloat16 and tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
            continue  # Gloo cannot sum it, nor DDP broadcast it
        plain, ours, floats, chosen = (wrap(lambda: Given(sizes, (dtype,))) for _ in range(4))
        handles = [register(ours), register(floats, "dense:sum=float32")]
        # dense at first; its first step may have a residual to add
        auto = register(chosen, "auto:settle=4:rounds=1")
        for step in range(4):
            generator = torch.Generator().manual_seed(100 * step + RANK)
            gradients = [torch.randn(size, generator=generator) for size in sizes]
            for model in (plain, ours, floats, chosen):
                model.zero_grad()
                model(gradients).backward()
            expected = [parameter.grad for parameter in plain.parameters()]
            require_same([parameter.grad for parameter in ours.parameters()], expected,
                         f"{dtype}, step {step}")
            require_same([parameter.grad for parameter in floats.parameters()], expected,
                         f"{dtype} by float32", 1e-2)
            if step > 0:
                require_same([parameter.grad for parameter in chosen.parameters()], expected,
                             f"{dtype} under auto, step {step}")
        steps = [handle.report()["last_step"] for handle in [*handles, auto]]
        assert [step["raw_bytes"] for step in steps] == [2 * sum(sizes)] * 3, steps
        assert 2 * steps[0]["formula_bytes"] == steps[1]["formula_bytes"] > 0, steps
        assert steps[2]["formula_bytes"] == steps[0]["formula_bytes"], steps
        coded = wrap(lambda: Given(sizes, (dtype,)))
        handle = register(coded, "ef_signsgd")
        coded(gradients).backward()
        assert handle.report()["last_step"]["raw_bytes"] == 2 * sum(sizes)


def checked_sums_are_sums():
    """Of every type, with checksums behind each message, and the same on all ranks."""
    sizes = (700, 33, 1200, 5)
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
        types.pop()  # DDP cannot broadcast it
    for dtype in types:
        plain, ours, checked = (wrap(lambda: Given(sizes, (dtype,))) for _ in range(3))
        handles = [register(ours), register(checked, checked_sums=True)]
        for step in range(3):
            generator = torch.Generator().manual_seed(100 * step + RANK)
            gradients = [torch.randn(size, generator=generator) for size in sizes]
            for model in (plain, ours, checked):
                model.zero_grad()
                model(gradients).backward()
            tolerance = 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6
            for parameter, expected in zip(checked.parameters(), plain.parameters()):
                mine = parameter.grad.double()
                require_same([mine], [expected.grad], f"checked sums of {dtype}, step {step}", tolerance)
                bits = mine.clone()
                dist.broadcast(bits, 0)
                assert torch.equal(bits, mine), f"checked sums of {dtype} differ between ranks"
        guards = [handle.report()["last_step"]["frame_header_bytes"] for handle in handles]
        assert guards[1] > guards[0], guards


def checked_sums_train_alike():
    """As people train: AdamW, the mean clipped, two microbatches a step, an unused branch in some steps."""
    for spec in ("dense", "power_sgd:rank=2:bits=8", "sketched_sgd:ratio=0.1", "warm_up:steps=3+casq:bits=4",
                 "top_k:ratio=0.1+s2_reducer:lambda=exact"):
        models, headers = [wrap(Branches, find_unused_parameters=True) for _ in range(2)], []
        for model, checked in zip(models, (False, True)):
            handle = register(model, spec, checked_sums=checked, check_replicas_every=2)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
            for step in range(8):
                left = (step + RANK) % 3 != 0
                optimizer.zero_grad()
                with model.no_sync():
                    model(batch(2 * step), left).square().mean().backward()
                model(batch(2 * step + 1), left).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            assert handle.step == 8
            headers.append(handle.report()["last_step"]["frame_header_bytes"])
            require_agreement(model, f"{spec}, checked_sums={checked}")
        require_same(values_of(models[1]), values_of(models[0]), f"{spec} with checked sums", 1e-3)
        # Frames of the others have checksums anyway.
        if spec.startswith(("dense", "sketched")) or "s2_reducer" in spec:
            assert headers[1] > headers[0], f"{spec}: {headers}"


def sparse_embedding():
    def run(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(6):
            words = torch.randint(0, 300, (5, 7), generator=torch.Generator().manual_seed(100 * step + RANK))
            words[0, :3] = 11  # a row that comes more than once, on every rank
            step_of(model, optimizer, model(words).square().mean())
        assert model.module.table.weight.grad.is_sparse
        return values_of(model)

    expected = run(wrap(Words))
    ours = wrap(Words)
    handle = register(ours)
    require_same(run(ours), expected, "rows by zen", 1e-6)
    rows = [bucket for bucket in handle.report()["buckets"] if bucket["parameters"] == ["table.weight"]]
    assert len(rows) == 1 and rows[0]["density_in"] < 0.2, rows
    adam = wrap(Words)
    register(adam, "casq", rows="agsparse")
    optimizer = torch.optim.SparseAdam(list(adam.module.table.parameters()))
    for step in range(3):
        optimizer.zero_grad()
        adam(torch.randint(0, 300, (5, 7),
                           generator=torch.Generator().manual_seed(step + RANK))).square().sum().backward()
        optimizer.step()
    require_agreement(adam, "SparseAdam")
    lossy = wrap(Words)
    register(lossy, "rows=half,dense=dense")
    run(lossy)
    require_agreement(lossy, "rows by half")


def require_compression_on(handle, device):
    report = handle.report()
    found = {bucket["compressed_on"] for bucket in report["buckets"]}
    assert found == {device}, found
    nccl = "nccl" if dist.get_backend() == "nccl" else None
    sums_by = None if device == "cpu" else {"emulated": "gloo", "yes": nccl}[thinwire._C.cuda]
    assert report["engines"] == {"frames": "gloo", "device_sums": sums_by}, report["engines"]


def compresses_where_it_is_told():
    # The tests' build with an emulated device takes all memory for the device's.
    for where, expected in (("device", "cuda:0" if thinwire._C.cuda == "emulated" else "cpu"),
                            ("cpu", "cpu")):
        model = wrap(Net)
        handle = register(model, "casq", compress_on=where)
        train(model, 2)
        require_compression_on(handle, expected)


PLAIN = [dense_equals_plain_ddp, compresses_where_it_is_told, buckets_are_rebuilt,
         accumulation_without_synchronization, unused_parameters, static_graph, gradients_as_views,
         uneven_inputs, frozen_and_unfrozen, ignored_parameters, two_models, double_precision_is_exact,
         halves_are_summed_in_their_type, checked_sums_are_sums, checked_sums_train_alike,
         sparse_embedding]

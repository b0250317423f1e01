"""Scenarios of what compression adds: agreement, nothing lost, what reports and loggers get."""
import math
from typing import Union, get_args, get_origin, get_type_hints

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire.interface import Report
from thinwire.state import State
from common import (
    RANK, WORLD, Given, Net, Scaler, given, register, require_agreement,
    require_agreement_of_gradients, require_error, require_same, residuals_of, total, train, wrap,
)
from gradients.choices import AUTO
from gradients.overflows import OVERFLOWS

SPECS = ["dense", "half", "marsit:full_every=3", "casq", "sketched_sgd:ratio=0.1", "power_sgd:rank=2",
         "ef_signsgd", "signsgd", "ssdm", "qsgd:bits=3", "terngrad", "nuqsgd:bits=3", "alq:bits=3",
         "amq:bits=3", "zen", "agsparse", "top_k:ratio=0.1+zen", "dgc:ratio=0.1+agsparse",
         "block_top_k:ratio=0.25:block=16+s2_reducer:lambda=exact", "global_top_k:ratio=0.1", "omnireduce",
         "sparcml", "sparse_ps", "auto", "auto:settle=0:steps=2", "blocks:bits=4", "ecsq", "ecsq:local=0",
         "klt:every=2",
         "power_sgd:rank=2:bits=8", "power_sgd:rank=2:step=0.3", "acp_sgd:rank=2:bits=8",
         "demo:chunk=8:top=4", "momentum+casq",
         "decay:factor=0.9+casq", "clip:norm=0.1+casq",
         "warm_up:steps=2:with=blocks/bits=4+top_k:ratio=0.1:ramp_steps=4+zen"]


def every_system_agrees():
    for spec in SPECS:
        model = wrap(Net)
        handle = register(model, spec)
        train(model, 4, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
        require_agreement(model, spec)
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters()), spec
        report = handle.report()
        sent, formula = report["last_step"]["wire_bytes_sent"], report["last_step"]["formula_bytes"]
        headers = report["last_step"]["frame_header_bytes"]
        assert sent == formula + headers, f"{spec}: {sent} bytes, formula {formula} and {headers} of headers"
        handle.close()


class Vector(nn.Module):
    """A bias that would be a matrix of 90 x 91, were it taken for one."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(90 * 91))
        self.weight = nn.Parameter(torch.zeros(64, 64))

    def forward(self, factors):
        return (self.bias * factors[0]).sum() + (self.weight * factors[1]).sum()


def vectors_are_known_to_systems():
    """power_sgd sends them as they are, and so does the stage whole."""
    own = torch.Generator().manual_seed(RANK)
    factors = [torch.randn(90 * 91, generator=own), torch.randn(64, 64, generator=own)]
    means = [total(one.clone()) / WORLD for one in factors]
    for spec in ("power_sgd:rank=4", "whole+power_sgd:rank=4", "whole+casq", "whole+ef_signsgd"):
        model = DDP(Vector())
        handle = register(model, spec)
        model(factors).backward()
        require_same([model.module.bias.grad], [means[0]], f"{spec}: the vector's mean", 1e-5)
        off = (model.module.weight.grad - means[1]).norm() / means[1].norm()
        assert WORLD == 1 or off > 0.05, f"{spec}: the matrix was to be compressed, and is off by {off}"
        handle.close()


def conserve(model, handle, sizes, steps, sums, first):
    """Adds what went in and what came out, per parameter and over ranks."""
    for step in range(first, first + steps):
        gradients = given(step, sizes)
        model.zero_grad()
        model(gradients).backward()
        for i, gradient in enumerate(gradients):
            sums[i] += total(gradient) - WORLD * model.module.weights[i].grad.double()


def nothing_is_lost():
    """Over bucket changes, another system, a checkpoint: what went in came out or is in a residual."""
    sizes = (700, 33, 1200, 5)
    model = wrap(Given)
    handle = register(model, "top_k:ratio=0.05+zen")
    sums = [torch.zeros(size, dtype=torch.float64) for size in sizes]

    def require_balance(what):
        left = residuals_of(handle)
        for i in range(len(sizes)):
            expected = total(left.get(f"weights.{i}", torch.zeros(sizes[i])))
            require_same([sums[i]], [expected], f"{what}, parameter {i}", 1e-4)

    conserve(model, handle, sizes, 4, sums, 0)
    assert any(value.abs().sum() > 0 for value in residuals_of(handle).values())
    require_balance("top_k over rebuilt buckets")
    handle.set("casq")
    conserve(model, handle, sizes, 3, sums, 4)
    require_balance("casq after top_k")
    handle.set("dense")
    assert handle.spec.endswith("dense=dense:sum=type:feedback=off")
    conserve(model, handle, sizes, 1, sums, 7)
    require_balance("dense delivers what casq left")
    assert not any(value.abs().sum() > 0 for value in residuals_of(handle).values())
    handle.set("ef_signsgd")
    conserve(model, handle, sizes, 3, sums, 8)
    require_balance("ef_signsgd")
    require_error(ValueError, ["nosuch"], lambda: handle.set("nosuch"))
    conserve(model, handle, sizes, 1, sums, 11)
    require_balance("after a refused system")


def compare_with_the_cpu(where):
    """The same gradients give the same means on the CPU and from `where`: to the bit where the CPU compresses
    both, else but for step sizes whose sums are rounded in another order."""
    for spec in ("marsit:full_every=3", "casq", "ef_signsgd", "top_k:ratio=0.1+zen",
                 "sketched_sgd:k=64:columns=512"):
        sizes = (700, 33, 1200, 5)
        host = wrap(lambda: Given(sizes, (torch.float32, torch.float16)))
        device = wrap(lambda: Given(sizes, (torch.float32, torch.float16)).to(where))
        register(host, spec, compress_on="cpu")
        handle = register(device, spec)
        for step in range(4):
            gradients = given(step, sizes)
            for model, place in ((host, "cpu"), (device, where)):
                model.zero_grad()
                model([gradient.to(place) for gradient in gradients]).backward()
            exact = {bucket["compressed_on"] for bucket in handle.report()["buckets"]} == {"cpu"}
            for one, other in zip(host.parameters(), device.parameters()):
                apart = (one.grad - other.grad.cpu()).abs().float()
                # In float16 a last bit; a threshold that moves takes single elements along.
                allowed = (0.0 if exact
                           else one.grad.abs().max().float() * (1e-3 if one.dtype == torch.float16 else 1e-5))
                count = int((apart > allowed).sum())
                assert count <= (0 if exact else len(apart)
                                 // 100), (f"{spec}, step {step}: {count} of {len(apart)} differ")


def compression_is_the_same_on_an_emulated_device():
    compare_with_the_cpu("cpu")
    return None if thinwire._C.cuda == "emulated" else "skipped: no emulated device, compared with itself:"


def mixed_types():
    dtypes = [torch.float16, torch.float32, torch.bfloat16, torch.float64]
    if torch.__version__.startswith("1."):
        dtypes.remove(torch.bfloat16)  # DDP itself cannot broadcast it over Gloo
    sizes = (300, 64, 500, 20)
    for spec in ("dense", "casq", "marsit"):
        model = wrap(lambda: Given(sizes, dtypes))
        register(model, spec)
        for step in range(3):
            gradients = given(step, sizes)
            model.zero_grad()
            model(gradients).backward()
            require_agreement_of_gradients(model)
            if spec == "dense":
                for weight, gradient in zip(model.module.weights, gradients):
                    mean = total(gradient.to(weight.dtype)) / WORLD
                    tolerance = {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(weight.dtype, 1e-6)
                    require_same([weight.grad], [mean], f"mean of {weight.dtype}", tolerance)


def tiny_model():
    for spec in ("dense", "casq", "marsit", "top_k:ratio=0.5+zen", "power_sgd", "sketched_sgd:ratio=0.5"):
        model = wrap(lambda: Given((1,)))
        register(model, spec)
        for step in range(3):
            model.zero_grad()
            model(given(step, (1,))).backward()
            assert torch.isfinite(model.module.weights[0].grad).all()
        require_agreement_of_gradients(model)


class Writer:
    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))


def is_of(hint, value):
    """Whether a value is what a TypedDict, or what it consists of, says."""
    inner = get_args(hint)
    if hasattr(hint, "__total__"):
        hints = get_type_hints(hint)
        return hints.keys() == value.keys() and all(is_of(one, value[name]) for name, one in hints.items())
    if get_origin(hint) is list:
        return all(is_of(inner[0], one) for one in value)
    if get_origin(hint) is dict:
        return all(is_of(inner[0], name) and is_of(inner[1], one) for name, one in value.items())
    if get_origin(hint) is Union:
        return any(is_of(one, value) for one in inner)
    return isinstance(value, (int, float) if hint is float else hint)


def reports_and_logs():
    model = wrap(Net)
    handle = register(model, "marsit:full_every=0", lanes=3)
    writer = Writer()
    handle.log_to(writer, every=2)
    train(model, 5)
    handle.log_to(None)
    report = handle.report()
    assert is_of(Report, report) and len(report["buckets"]) > 0, report
    assert not is_of(Report, {**report, "step": "5"}) and not is_of(Report, {**report, "more": 1})
    assert is_of(State, handle.state_dict()), handle.state_dict()
    assert report["rank"] == RANK and report["world_size"] == WORLD and report["step"] == 5
    assert "marsit:full_every=0" in report["spec"]
    names = sorted(name for bucket in report["buckets"] for name in bucket["parameters"])
    assert names == sorted(name for name, _ in model.module.named_parameters())
    assert [bucket["bucket"] for bucket in report["buckets"]] == list(range(len(report["buckets"])))
    assert report["total"]["raw_bytes"] == 5 * report["last_step"]["raw_bytes"]
    assert sorted({step for _, _, step in writer.scalars}) == [2, 4]
    assert any(tag == "thinwire/compression" and value > 1 for tag, value, _ in writer.scalars) or WORLD == 1


def scalars_tell_of_trouble():
    """What a writer gets of a step is what the report said when the step had ended."""
    sizes = (300_000, 300, 200_000, 300_000)
    model = wrap(lambda: Given(sizes), bucket_cap_mb=1)
    handle = register(model, "guard:every=8:noise=1000+blocks:bits=4", grad_scaler=Scaler())
    writer = Writer()
    handle.log_to(writer)
    reports = {}
    for step in range(30):
        gradients = given(step, sizes, 1024.0)
        if step == 5 and RANK == WORLD - 1:
            gradients[1][0] = float("inf")
        model.zero_grad()
        model(gradients).backward()
        report = handle.report()
        reports[report["step"]] = report
    assert len(report["buckets"]) > 1  # since DDP has grouped parameters anew
    for number, report in list(reports.items())[:-1]:  # the last one is not written
        told = {tag: value for tag, value, at in writer.scalars if at == number}
        for name, together in (("relative_error", max), ("residual_norm", math.hypot)):
            known = [bucket[name] for bucket in report["buckets"] if bucket[name] is not None]
            told_of = known and (name != "residual_norm" or report["last_step"]["finite"])
            expected = together(*known, 0) if told_of else None
            assert told.get("thinwire/" + name) == expected, (number, name, told, known)
        cosines = [bucket["cosine"] for bucket in report["buckets"] if bucket["cosine"] is not None]
        assert told.get("thinwire/cosine") == (min(cosines) if cosines else None), (number, told, cosines)
        assert all(0.9 < cosine < 1 for cosine in cosines), cosines  # 4 bits hardly turn a mean
        assert told["thinwire/finite"] == float(report["last_step"]["finite"]), (number, told)
    def written(name):
        return [value for tag, value, _ in writer.scalars if tag == "thinwire/" + name]

    assert written("finite").count(0.0) == 1, writer.scalars
    assert 1 < len(written("relative_error")) < 28, writer.scalars  # the guard measures in some steps
    assert len(written("residual_norm")) == 28, writer.scalars  # not in the step that does not count


COMPRESSION = [every_system_agrees, vectors_are_known_to_systems, *AUTO,
               compression_is_the_same_on_an_emulated_device, nothing_is_lost, mixed_types, *OVERFLOWS,
               tiny_model, reports_and_logs, scalars_tell_of_trouble]

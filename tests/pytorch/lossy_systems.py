"""Scenarios of what compression adds: agreement, nothing lost, loss scaling."""
import copy
import logging
import math
import re
import time
from typing import Union, get_args, get_origin, get_type_hints

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire.interface import Report
from thinwire.state import State
from common import (
    RANK, WORLD, Given, Mixed, Net, batch, register, require_agreement,
    require_error, require_same, sgd, total, train, values_of, wrap,
)

SPECS = ["dense", "half", "marsit:full_every=3", "casq", "sketched_sgd:ratio=0.1", "power_sgd:rank=2",
         "ef_signsgd", "signsgd", "ssdm", "qsgd:bits=3", "terngrad", "nuqsgd:bits=3", "alq:bits=3",
         "amq:bits=3", "zen", "agsparse", "top_k:ratio=0.1+zen", "dgc:ratio=0.1+agsparse",
         "block_top_k:ratio=0.25:block=16+s2_reducer:lambda=exact", "global_top_k:ratio=0.1", "omnireduce",
         "sparcml", "sparse_ps", "auto", "auto:settle=0:steps=2", "blocks:bits=4", "power_sgd:rank=2:bits=8",
         "acp_sgd:rank=2:bits=8", "demo:chunk=8:top=4", "momentum+casq", "decay:factor=0.9+casq",
         "clip:norm=0.1+casq",
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


def auto_chooses_and_says_why():
    """Whatever the times say: all ranks choose alike, every bucket is told of,
    and a resumed run keeps the choice."""
    spec = "auto:settle=1:rounds=1:steps=2:interval=64"
    logged = []
    log = logging.Handler()
    log.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("thinwire").addHandler(log)
    logging.getLogger("thinwire").setLevel(logging.INFO)
    model = wrap(Net)
    handle = register(model, spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    used = train_until_chosen(model, handle, optimizer)
    step = len(used) - 1
    require_agreement(model, spec)
    assert [" ".join(one).split(":")[0] for one in used[:9]] == (
        ["dense"] * 3 + ["half"] * 3 + ["power_sgd"] * 3), used
    *lines, last = handle.explain().splitlines()
    guarded = [one for one in lines if ": guard: " in one]
    (line,) = [one for one in lines if one not in guarded]
    assert bool(guarded) == (": power_sgd" in line), lines  # which has a guard, and the others none
    assert all(re.match("step [0-9]+: guard: bucket .* times the batches' noise, allowed are 0.50", one)
               for one in guarded), guarded
    short = spec.replace(":steps=2", "")  # which is the default
    require_last_step(last, step, short, [bucket["scheme"] for bucket in handle.report()["buckets"]])
    assert re.match(f"step {step - 1}: (dense|half|power_sgd)", line), (line, used)
    (number, reason), *later = handle.changes()
    assert f"step {number}: {reason}" == line and not later, handle.changes()
    assert handle.report()["changes"] == [(number, reason)] and handle.report()["total"]["changes"] == 1
    assert logged == ([line] if RANK == 0 else []), logged
    for name in ("with dense", "with half:format=bf16:feedback=on", "with power_sgd:rank=32:bits=8"):
        assert name in line or "power_sgd" in " ".join(used[-1]), (name, line)
    known = [None] * WORLD
    torch.distributed.all_gather_object(known, used)
    assert all(one == used for one in known), known
    state = handle.state_dict()
    again = wrap(Net)
    resumed = register(again, spec)
    resumed.load_state_dict(state)
    train(again, 2, first=step + 1)
    assert {bucket["scheme"] for bucket in resumed.report()["buckets"]} == set(used[-1])
    assert resumed.explain().count("as in the state that was loaded") == 1, resumed.explain()


def train_until_chosen(model, handle, optimizer):
    """Trains to the step after auto's choice. Gives what each step's buckets ran, each once.

    The candidates alone are tried in steps 0 to 8. Where a lossy one wins, it is tried beside dense then."""
    used = []
    while not handle.changes() or len(used) < handle.changes()[0][0] + 2:
        assert len(used) < 64, handle.explain()
        explained = handle.explain()
        assert len(used) < 2 or handle.changes() or "nothing is chosen yet" in explained, explained
        train(model, 1, first=len(used), optimizer=optimizer)
        used.append(sorted({bucket["scheme"] for bucket in handle.report()["buckets"]}))
    return used


def require_last_step(line, step, spec, schemes):
    """What explain() ends with: which scheme how many buckets had."""
    assert line.startswith(f"the last step, {step}, ran {spec}: "), line
    for scheme in set(schemes):
        assert f"{scheme} in {schemes.count(scheme)} of {len(schemes)} buckets" in line, (line, schemes)


def a_given_system_is_explained_as_it_was_given():
    for spec in ("power_sgd:rank=2", "rows=casq,dense=half", "warm_up:steps=3+casq:bits=4"):
        model = wrap(Net)
        handle = register(model, spec)
        assert handle.explain() == f"no step was made yet; the next one, 0, runs {spec}"
        assert handle.report()["system"] == spec and handle.report()["spec"] != spec
        train(model, 1, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
        count = len(handle.report()["buckets"])
        took = f": dense in {count} of {count} buckets" if spec.startswith("warm_up") else ""
        assert handle.explain() == f"the last step, 0, ran {spec}{took}"
        handle.set("half")
        assert handle.report()["system"] == "half"
        assert handle.explain() == f"the last step, 0, ran {spec}{took}\nthe next one runs half"
        handle.load_state_dict(handle.state_dict())
        assert handle.explain() == "no step was made yet; the next one, 1, runs half"
        handle.close()


class Normed(nn.Module):
    """With buffers, which DDP sends from rank 0 when forward begins."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.Tanh(), nn.Linear(48, 5))

    def forward(self, x):
        return self.layers(x.view(-1, 20))


def auto_names_a_slow_rank_0_where_ranks_wait_for_its_buffers():
    """On a busy machine steps may vary by more than it sleeps, so it has several tries."""
    model = wrap(Normed)
    handle = register(model, "auto:settle=1:rounds=1:steps=2:interval=4")
    optimizer = sgd(model)
    step = len(train_until_chosen(model, handle, optimizer))
    for _ in range(4):
        train(model, 20, first=step, optimizer=optimizer)
        for _ in range(24):
            if RANK == 0:
                time.sleep(0.25)
            train(model, 1, first=step, optimizer=optimizer)
            step += 1
        if "by rank 0 alone, for which the others wait" in handle.explain():
            break
    else:
        raise AssertionError(handle.explain())
    copy.deepcopy(model)(batch(step)).sum().backward()  # which takes nothing of the handle along
    handle.close()
    assert not model._forward_pre_hooks and not model.module._forward_pre_hooks


def auto_explains_a_table_of_rows():
    auto_beside_rows(wrap(Mixed))


class TableFirst(torch.nn.Module):
    """A table before all other layers."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(64, 48, sparse=True)
        self.rest = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.Tanh(), torch.nn.Linear(48, 5))

    def forward(self, x):
        return self.rest(self.table((x.abs() * 20).long() % 64).mean(1))


def auto_decides_where_the_first_bucket_is_a_table():
    """One bucket of rows and one of the rest, each in a lane of its own."""
    model = torch.nn.parallel.DistributedDataParallel(TableFirst())  # with its usual large buckets
    handle = auto_beside_rows(model)
    assert [bucket["parameters"] for bucket in handle.report()["buckets"]][0] == ["table.weight"]
    assert len(handle.report()["buckets"]) == 2


def auto_beside_rows(model):
    """Beside what it chose for the dense part: what zen, which has the rows, took for them."""
    spec = "auto:settle=1:rounds=1:steps=2:interval=64"
    handle = register(model, spec, rows="zen")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = len(train_until_chosen(model, handle, optimizer)) - 1
    *lines, last = handle.explain().splitlines()
    guarded = [line for line in lines if ": guard: " in line]
    chosen = [line for line in lines if line not in guarded]
    assert len(chosen) == 1, lines  # by steps, so that a guard's line may be the first one
    assert bool(guarded) == (": power_sgd" in chosen[0]), lines
    assert re.match(f"step {step - 1}: (dense|half|power_sgd)", chosen[0]), chosen
    buckets = {tuple(bucket["parameters"]): bucket["scheme"] for bucket in handle.report()["buckets"]}
    require_last_step(last, step, spec.replace(":steps=2", ""), list(buckets.values()))
    of_rows = buckets.pop(("table.weight",))
    assert of_rows in ("push_pull", "centralization"), of_rows  # zen's two
    candidates = {"dense", "half:format=bf16:feedback=on", "power_sgd:rank=32:bits=8"}
    assert buckets and set(buckets.values()) <= candidates, buckets
    return handle


def given(step, sizes, scale=1.0):
    generator = torch.Generator().manual_seed(31 * step + RANK)
    return [scale * torch.randn(size, generator=generator) for size in sizes]


def residuals_of(handle):
    """Of all parameters in order of names, this rank's residuals."""
    values = handle.state_dict()["values"]
    return {name.split("/", 1)[1]: value for name, value in values.items() if name.startswith("residual/")}


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


def states_of_another_scale():
    """Saved under one loss scale and loaded under another, or none: what is owed is the same gradient."""
    sizes = (700, 33)
    spec = "top_k:ratio=0.05+zen"
    for saved_at, loaded_at in ((1024.0, None), (None, 1024.0), (1024.0, 2.0), (None, None)):
        states = []
        model = wrap(lambda: Given(sizes))
        scaler = None if saved_at is None else Scaler()
        if scaler is not None:
            scaler.scale = saved_at
        handle = register(model, spec, grad_scaler=scaler)
        for step in range(3):
            model(given(step, sizes, saved_at or 1.0)).backward()
        state = handle.state_dict()
        other = wrap(lambda: Given(sizes))
        scaler = None if loaded_at is None else Scaler()
        if scaler is not None:
            scaler.scale = loaded_at
        resumed = register(other, spec, grad_scaler=scaler)
        for step in range(2):  # DDP's grouping of later steps
            other(given(50 + step, sizes)).backward()
        resumed.load_state_dict(state)
        for one, scale in ((model, saved_at or 1.0), (other, loaded_at or 1.0)):
            one.zero_grad()
            one(given(3, sizes, scale)).backward()
            states.append([weight.grad / scale for weight in one.module.weights])
        for straight, after in zip(*states):  # powers of two: to the bit
            assert torch.equal(straight, after), (saved_at, loaded_at, straight, after)


def loss_scaling():
    sizes = (700, 33, 1200, 5)
    for spec in ("top_k:ratio=0.05+zen", "casq", "marsit:full_every=3", "ef_signsgd", "half",
                 "mc+top_k:ratio=0.05+zen"):
        scaler = Scaler()
        model = wrap(lambda: Given(sizes))
        handle = register(model, spec, grad_scaler=scaler)
        for step in range(3):
            model(given(step, sizes, scaler.scale)).backward()
        before = residuals_of(handle)
        # One parameter overflows on one rank; the step is skipped everywhere, also for buckets that are fine.
        spoilt = given(3, sizes, scaler.scale)
        if RANK == WORLD - 1:
            spoilt[2][0] = float("inf")
        model.zero_grad()
        model(spoilt).backward()
        assert not torch.isfinite(model.module.weights[2].grad).all(), (
            f"{spec}: a rank did not see the overflow"
        )
        assert not torch.isfinite(model.module.weights[0].grad).any(), (
            f"{spec}: an optimizer of this parameter alone would apply what is delivered again"
        )
        after = residuals_of(handle)
        for name, value in before.items():
            assert torch.equal(value, after[name]), f"{spec}: a skipped step changed a residual"
        # The scale is halved; residuals follow.
        scaler.scale /= 2
        state = handle.state_dict()
        assert state["loss_scale"] == 2 * scaler.scale
        for name, value in state["values"].items():
            if name.split("/")[0] in ("residual", "velocity", "casq_centres", "casq_shard_centres",
                                      "marsit_eta"):
                state["values"][name] = value / 2
        other = wrap(lambda: Given(sizes))
        reference = register(other, spec)
        for step in range(2):  # DDP's grouping of later steps
            other(given(50 + step, sizes)).backward()
        # Without a GradScaler a state's scale becomes 1; here gradients come scaled, as the state is.
        reference.load_state_dict({**state, "loss_scale": None})
        gradients = given(4, sizes, scaler.scale)
        for one in (model, other):
            one.zero_grad()
            one(gradients).backward()
        require_same([w.grad for w in model.module.weights], [w.grad for w in other.module.weights],
                     f"{spec} after a new scale", 1e-5)


def overflow_in_the_first_step():
    """What a loss scale that begins too high does, before DDP groups parameters anew."""
    sizes = (700, 33, 1200, 5)
    for spec in ("marsit:full_every=3", "casq:double_momentum=0.5", "mc+top_k:ratio=0.05+zen"):
        model = wrap(lambda: Given(sizes))
        register(model, spec, grad_scaler=Scaler())
        for step in range(5):
            gradients = given(step, sizes)
            if step == 0 and RANK == 0:
                gradients[3][0] = float("nan")
            model.zero_grad()
            model(gradients).backward()
        require_agreement_of_gradients(model)


def overflow_where_buckets_are_rebuilt():
    """In DDP's second step some buckets are what they were and others are not:
    nothing of it may stay behind."""
    # At first a bucket for each type, then one for each parameter.
    sizes = (1500, 1400, 3000)
    model = wrap(lambda: Given(sizes, (torch.float32, torch.float32, torch.float16)))
    handle = register(model, "top_k:ratio=0.05+zen", grad_scaler=Scaler())
    model(given(0, sizes)).backward()
    before = residuals_of(handle)
    buckets = [bucket["parameters"] for bucket in handle.report()["buckets"]]
    spoilt = given(1, sizes)
    if RANK == 0:
        spoilt[1][0] = float("inf")
    model.zero_grad()
    model(spoilt).backward()
    rebuilt = [bucket["parameters"] for bucket in handle.report()["buckets"]]
    assert rebuilt[0] == buckets[0] and rebuilt != buckets, (buckets, rebuilt)
    after = residuals_of(handle)
    assert len(before) == len(sizes) and all(value.any() for value in before.values())
    for name, value in before.items():
        assert torch.equal(value, after[name]), f"a skipped step changed the residual of {name}"


def a_backward_that_raises():
    """After an overflow in one bucket backward ends before its last one:
    what other buckets have delivered is undone."""
    sizes = (1500, 1400, 1300, 1200)
    for spec in ("top_k:ratio=0.05+zen", "casq", "ef_signsgd", "half:feedback=on"):
        scaler = Scaler()
        model = wrap(lambda: Given(sizes))
        handle = register(model, spec, grad_scaler=scaler)
        for step in range(3):
            model.zero_grad()
            model(given(step, sizes)).backward()
        buckets = [[int(name.split(".")[-1]) for name in bucket["parameters"]]
                   for bucket in handle.report()["buckets"]]
        assert len(buckets) > 2, buckets
        before = residuals_of(handle)
        spoilt = given(3, sizes)
        if RANK == WORLD - 1:
            spoilt[buckets[0][0]][0] = float("inf")

        def fail(_):
            raise ValueError("in the middle of backward")

        model.module.weights[buckets[-1][0]].register_hook(fail)
        model.zero_grad()
        require_error(ValueError, ["in the middle"], lambda: model(spoilt).backward())
        assert model.module.weights[buckets[1][0]].grad is not None, (
            f"{spec}: backward did not come to the second bucket"
        )
        after = residuals_of(handle)
        for name, value in before.items():
            assert torch.equal(value, after[name]), (f"{spec}: a step that was given up changed the "
                                                     f"residual of {name}")
        assert handle.step == 3 and handle.explain().startswith("the last step, "), handle.explain()


def means_beyond_float16():
    """Every rank's gradient is finite in float16, what is delivered is not:
    a step to leave out, like one with an infinite gradient."""
    model = wrap(lambda: Given((64,), (torch.float16,)))
    handle = register(model, "top_k:ratio=0.02+zen", grad_scaler=Scaler())
    gradient = (6e4 * (1 - 1e-3 * torch.arange(64))).half()
    model([gradient]).backward()
    assert torch.isfinite(model.module.weights[0].grad).all() and handle.report()["last_step"]["finite"]
    before = residuals_of(handle)
    model.zero_grad()
    model([gradient]).backward()  # of what was held back
    assert not torch.isfinite(model.module.weights[0].grad).all()
    assert not handle.report()["last_step"]["finite"]
    for name, value in before.items():
        assert torch.equal(value, residuals_of(handle)[name])


def skipped_steps():
    """A real GradScaler, where torch has one for the CPU: all ranks skip the step in which one overflows."""
    if not hasattr(torch.amp, "GradScaler"):
        return "skipped: this torch has no GradScaler for the CPU"
    model = wrap(Net)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    register(model, "casq", grad_scaler=scaler)
    optimizer = sgd(model)
    for step in range(6):
        optimizer.zero_grad()
        inputs = batch(step)
        if step == 3 and RANK == 0:
            inputs[0, 0] = float("inf")
        scaler.scale(model(inputs).square().mean()).backward()
        before = values_of(model)
        scaler.step(optimizer)
        scaler.update()
        skipped = all(torch.equal(a, b) for a, b in zip(before, values_of(model)))
        assert skipped == (step == 3), f"step {step}"
    assert scaler.get_scale() == 128.0
    require_agreement(model, "skipped step")


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


COMPRESSION = [every_system_agrees, vectors_are_known_to_systems, auto_chooses_and_says_why,
               auto_names_a_slow_rank_0_where_ranks_wait_for_its_buffers,
               auto_explains_a_table_of_rows, auto_decides_where_the_first_bucket_is_a_table,
               a_given_system_is_explained_as_it_was_given,
               compression_is_the_same_on_an_emulated_device, nothing_is_lost, mixed_types, loss_scaling,
               states_of_another_scale,
               overflow_in_the_first_step, overflow_where_buckets_are_rebuilt, a_backward_that_raises,
               means_beyond_float16, skipped_steps, tiny_model, reports_and_logs,
               scalars_tell_of_trouble]

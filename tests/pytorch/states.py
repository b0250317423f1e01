"""Scenarios of checkpoints and of systems that change."""
import copy
import tempfile
import warnings
from random import Random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from thinwire import state as saved_state
from common import (
    RANK, WORLD, Branches, Given, Mixed, Net, batch, register, require_agreement,
    require_error, require_same, residuals_of, sgd, total, train, values_of, wrap,
)


def resumes_bit_for_bit():
    """As a new process does: its first step is in the buckets that DDP begins with,
    which are others than those of later steps."""
    specs = ["dense", "half", "casq", "marsit", "marsit:full_every=3",
             "mc:momentum=0.9+top_k:ratio=0.1+agsparse", "power_sgd:rank=2"]
    specs += ["auto:settle=0:steps=2", "whole+casq", "warm_up:steps=3:with=qsgd/bits=4+power_sgd:rank=2",
              "qsgd:bits=3", "sketched_sgd:ratio=0.1:dense_below=0",
              "block_top_k:ratio=0.1:block=16+zen", "ef_signsgd", "blocks:bits=4", "power_sgd:rank=2:bits=8",
              "acp_sgd:rank=2:bits=8", "demo:chunk=8:top=4", "momentum+casq",
              "decay:factor=0.9+top_k:ratio=0.1+zen", "warm_up:steps=2+top_k:ratio=0.1:ramp_steps=9+zen",
              "clip:norm=0.1+casq"]
    for spec in specs:
        cases = [(Net, 0)]
        if spec in ("casq", "sketched_sgd:ratio=0.1:dense_below=0"):
            cases += [(Mixed, 0), (Net, 1), (Net, 2)]
        for make, steps_before in cases:
            model = wrap(make)
            handle = register(model, f"rows=zen,dense={spec}" if make is Mixed else spec)
            optimizer = train(model, 4)
            with tempfile.TemporaryFile() as file:
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                            "thinwire": handle.state_dict()}, file)
                train(model, 3, first=4, optimizer=optimizer)
                file.seek(0)
                saved = torch.load(file)
            again = wrap(make)
            resumed = register(again, handle.spec)
            # Not only into a new process.
            train(again, steps_before, first=50)
            again.module.load_state_dict(saved["model"])
            optimizer = sgd(again)
            optimizer.load_state_dict(saved["optimizer"])
            resumed.load_state_dict(saved["thinwire"])
            assert resumed.scalars() == {}, "a step that was not made has cost something"
            assert resumed.step == 4
            train(again, 1, first=4, optimizer=optimizer)
            buckets = [bucket["parameters"] for bucket in handle.report()["buckets"]]
            assert [bucket["parameters"]
                    for bucket in resumed.report()["buckets"]] == buckets, "not in the state's buckets"
            train(again, 2, first=5, optimizer=optimizer)
            require_same(values_of(again), values_of(model), f"{spec}, resumed after {steps_before} steps")


class Many(torch.nn.Module):
    """Enough layers for different bucket limits to group them differently."""

    def __init__(self):
        super().__init__()
        widths = [20] + 6 * [30] + [5]
        self.layers = nn.Sequential(*[nn.Linear(a, b) for a, b in zip(widths, widths[1:])])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def first_step_is_in_the_states_buckets():
    """Buckets of several of DDP's, and the other way round:
    the step after the load is the saved run's next one, bit for bit."""
    for spec in ("casq", "mc:momentum=0.9+top_k:ratio=0.1+agsparse"):
        for saved_mb, own_mb, steps_before, lanes in ((0.004, 0.010, 3, 2), (0.010, 0.004, 3, 1),
                                                      (25, 0.004, 3, 2), (0.006, 0.010, 0, 3)):
            model = wrap(Many, bucket_cap_mb=saved_mb)
            handle = register(model, spec)
            optimizer = train(model, 3)
            saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), handle.state_dict()))
            train(model, 1, first=3, optimizer=optimizer)
            again = wrap(Many, bucket_cap_mb=own_mb)
            resumed = register(again, spec, lanes=lanes)
            train(again, steps_before, first=50)
            again.module.load_state_dict(saved[0])
            optimizer = sgd(again)
            optimizer.load_state_dict(saved[1])
            resumed.load_state_dict(saved[2])
            train(again, 1, first=3, optimizer=optimizer)
            require_same(values_of(again), values_of(model),
                         f"{spec}, from {saved_mb} to {own_mb} MB after {steps_before} steps")
            train(again, 2, first=4, optimizer=optimizer)
            require_agreement(again, "back in buckets of its own")


def a_forgotten_state_is_told():
    """By rank 0, where the optimizer counts its steps, and once."""
    def warned(spec, load):
        model = wrap(Net)
        handle = register(model, spec)
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, 3, optimizer=optimizer)
        again = wrap(Net)
        resumed_optimizer = torch.optim.AdamW(again.parameters())
        resumed_optimizer.load_state_dict(optimizer.state_dict())
        resumed = register(again, spec, optimizer=resumed_optimizer)
        if load:
            resumed.load_state_dict(handle.state_dict())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(again, 2, optimizer=resumed_optimizer)
        return [str(one.message) for one in caught if "load_state_dict" in str(one.message)]

    told = warned("casq:bits=4", load=False)
    assert len(told) == (1 if RANK == 0 else 0), told
    assert RANK != 0 or "the optimizer has taken 3 steps and this handle none" in told[0], told
    assert not warned("casq:bits=4", load=True) and not warned("dense", load=False)


def a_late_registration_forgets_nothing():
    """All systems alike: plain DDP has taken the steps before it. A handle that was closed is another matter.
    """
    def warned(spec, before):
        model = wrap(Net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        earlier = register(model, before, optimizer=optimizer) if before is not None else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(model, 4, optimizer=optimizer)
            if earlier is not None:
                earlier.close()
            handle = register(model, spec, optimizer=optimizer)
            train(model, 5, first=4, optimizer=optimizer)
        require_agreement(model, f"{spec}, registered late")
        assert handle.step == 5
        frozen = max(state.get("thinwire_frozen_steps", 0) for state in optimizer.state.values())
        assert frozen == (3 if spec == "one_bit_adam:freeze=2" else 0), (spec, frozen)
        return [str(one.message) for one in caught if "load_state_dict" in str(one.message)]

    for spec in ("casq:bits=4", "one_bit_adam:freeze=2", "auto"):
        assert not warned(spec, before=None), spec
        told = warned(spec, before="casq")
        assert len(told) == (1 if RANK == 0 else 0), (spec, told)


def mixed_types_resume():
    types = (torch.float16, torch.float32, torch.float64, torch.float16, torch.float32, torch.float16)
    make = lambda: Given((700, 400, 900, 33, 500, 1100), types)

    def gradients_of(model, step):
        generator = torch.Generator().manual_seed(100 * step + RANK)
        model.zero_grad()
        model([torch.randn(weight.numel(), generator=generator)
               for weight in model.module.weights]).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    for steps_before in (0, 3):
        model = wrap(make, bucket_cap_mb=0.001)
        handle = register(model, "casq")
        for step in range(4):
            gradients_of(model, step)
        state = handle.state_dict()
        again = wrap(make, bucket_cap_mb=0.001)
        resumed = register(again, "casq")
        for step in range(steps_before):
            gradients_of(again, 70 + step)
        resumed.load_state_dict(state)
        for step in (4, 5):
            require_same(gradients_of(again, step), gradients_of(model, step),
                         f"mixed types, step {step} after {steps_before}")


class _Scaler:
    def get_scale(self):
        return 1.0


def a_skipped_step_after_a_load():
    """The second step after a load is in other buckets than the first;
    what it changes is undone all the same."""
    sizes = (300, 300, 1500)

    def step(model, number, spoilt=False):
        generator = torch.Generator().manual_seed(100 * number + RANK)
        gradients = [torch.randn(size, generator=generator) for size in sizes]
        if spoilt:
            gradients[0][0] = float("inf")
        model.zero_grad()
        model(gradients).backward()

    for steps_before in (0, 3):
        model = wrap(lambda: Given(sizes), bucket_cap_mb=0.001)
        handle = register(model, "top_k:ratio=0.1+zen", grad_scaler=_Scaler())
        for number in range(4):
            step(model, number)
        again = wrap(lambda: Given(sizes), bucket_cap_mb=0.004)
        resumed = register(again, "top_k:ratio=0.1+zen", grad_scaler=_Scaler())
        for number in range(steps_before):
            step(again, number)
        resumed.load_state_dict(handle.state_dict())
        step(again, 4)
        before = residuals_of(resumed)
        step(again, 5, spoilt=True)
        after = residuals_of(resumed)
        for name, value in before.items():
            require_same([after[name]], [value],
                         f"residual of {name} after a skipped step, {steps_before} steps before the load")


class _Lines:
    def __init__(self):
        self.steps = []

    def add_scalar(self, tag, value, step):
        if tag == "thinwire/wire_bytes_sent":
            self.steps.append(step)
            assert value > 0, f"step {step} sent nothing"


def a_load_is_not_logged():
    model = wrap(Net)
    handle = register(model, "casq")
    train(model, 4)
    for steps_before in (0, 3):
        again, lines = wrap(Net), _Lines()
        resumed = register(again, "casq")
        train(again, steps_before)
        resumed.log_to(lines)
        resumed.load_state_dict(handle.state_dict())
        train(again, 3, first=4)
        assert lines.steps == [5, 6], lines.steps


def resumes_in_other_buckets():
    model = wrap(Net)
    handle = register(model, "top_k:ratio=0.1+zen")
    train(model, 3)
    state, before = handle.state_dict(), residuals_of(handle)
    torch.manual_seed(7)
    other = DDP(Net())  # one bucket
    resumed = register(other, "top_k:ratio=0.1+zen", lanes=1)
    resumed.load_state_dict(state)
    assert {k: v.tolist()
            for k, v in residuals_of(resumed).items()} == {k: v.tolist() for k, v in before.items()}
    train(other, 1)  # in the buckets of the state
    assert len(resumed.report()["buckets"]) == len(handle.report()["buckets"])
    train(other, 1)
    assert len(resumed.report()["buckets"]) < len(handle.report()["buckets"])
    require_agreement(other, "resumed in other buckets")


def another_system_before_the_first_step():
    model = wrap(Net)
    handle = register(model, "top_k:ratio=0.1+zen")
    train(model, 2)
    before = residuals_of(handle)
    fresh = wrap(Net)
    resumed = register(fresh, "top_k:ratio=0.1+zen")
    resumed.load_state_dict(handle.state_dict())
    resumed.set("ef_signsgd")
    assert {k: v.tolist()
            for k, v in residuals_of(resumed).items()} == {k: v.tolist() for k, v in before.items()}
    # A step of zeros: residuals go in, and what comes out and what is left add up to them.
    optimizer = torch.optim.SGD(fresh.parameters(), lr=1.0)
    optimizer.zero_grad()
    (0.0 * fresh(batch(9)).sum()).backward()
    for name, parameter in fresh.module.named_parameters():
        out = WORLD * parameter.grad.double() + total(residuals_of(resumed)[name]).reshape(parameter.shape)
        require_same([out], [total(before[name]).reshape(parameter.shape)], f"{name} by another system", 1e-5)


def resumes_with_other_ranks():
    """A run of all ranks goes on with one fewer, by both ways to save."""
    model = wrap(Net)
    handle = register(model, "ef_signsgd", grad_scaler=_Scaler())
    train(model, 3)
    whole = handle.state_dict(consolidate=True)
    everyones = [None] * WORLD
    dist.all_gather_object(everyones, handle.state_dict())
    # As saved before states said what their values are.
    undeclared = [{**one, "values": {name: value for name, value in one["values"].items()
                                     if not name.startswith("kind/")}} for one in everyones]
    assert all(len(one["values"]) < len(other["values"]) for one, other in zip(undeclared, everyones))
    sums = {name: total(value) for name, value in sorted(residuals_of(handle).items())}
    small = dist.new_group(list(range(WORLD - 1)))
    if RANK < WORLD - 1:
        torch.manual_seed(7)
        for state in (whole, everyones, undeclared):
            fewer = DDP(Net(), process_group=small)
            resumed = register(fewer, "ef_signsgd")
            require_error(ValueError, ["list of all ranks"], lambda: resumed.load_state_dict(everyones[RANK]))
            require_error(ValueError, ["needed"], lambda: resumed.load_state_dict(everyones[:-1]))
            resumed.load_state_dict(state)
            for name, value in sorted(residuals_of(resumed).items()):
                value = value.double()
                dist.all_reduce(value, group=small)
                require_same([value], [sums[name]], f"sum of {name}", 1e-6)
            train(fewer, 2)
    dist.barrier()


def refuses_what_does_not_fit():
    handle = register(wrap(Net), "ef_signsgd")
    state = handle.state_dict()
    wider = register(wrap(lambda: Net(50)), "ef_signsgd")
    require_error(ValueError, ["elements"], lambda: wider.load_state_dict(state))
    branches = register(wrap(Branches, find_unused_parameters=True), "ef_signsgd")
    require_error(ValueError, ["strict=False"], lambda: branches.load_state_dict(state))
    require_error(ValueError, ["state_dict()"], lambda: handle.load_state_dict({"model": 1}))
    trained = wrap(Net)
    handle = register(trained, "ef_signsgd", seed=3)
    train(trained, 2)
    before = residuals_of(handle)
    other = wrap(Net)
    seeded = register(other, "ef_signsgd", seed=4)
    train(other, 1)
    kept = residuals_of(seeded)
    require_error(RuntimeError, ["seed 3", "seed 4"], lambda: seeded.load_state_dict(handle.state_dict()))
    assert all(torch.equal(kept[name], value) for name, value in residuals_of(seeded).items())
    untrained = register(wrap(Net), "ef_signsgd", seed=4)
    require_error(RuntimeError, ["seed 3", "seed 4"], lambda: untrained.load_state_dict(handle.state_dict()))
    # A layer more than when it was saved: what is known is kept.
    bigger = wrap(lambda: nn.ModuleDict({"layers": Net().layers, "more": nn.Linear(2, 2)}),
                  find_unused_parameters=True)
    grown = register(bigger, "ef_signsgd", seed=3)
    grown.load_state_dict(handle.state_dict(), strict=False)
    assert all(torch.equal(residuals_of(grown)[name], value) for name, value in before.items())


def refuses_states_of_different_moments():
    model = wrap(Net)
    handle = register(model, "top_k:ratio=0.1+zen")
    train(model, 2)
    states = [None] * WORLD
    dist.all_gather_object(states, handle.state_dict())
    before = residuals_of(handle)
    changes = {
        "step": lambda state: {**state, "values": {**state["values"], "step": 9}},
        "seed": lambda state: {**state, "values": {**state["values"], "seed": 9}},
        "spec": lambda state: {**state, "values": {**state["values"], "spec": "dense"}},
        "loss scale": lambda state: {**state, "loss_scale": 9.0},
        "number of ranks": lambda state: {**state, "world_size": 9},
    }
    small = register(wrap(Net), "top_k:ratio=0.1+zen")
    for what, change in changes.items():
        words = ["states of ranks 0 and 1 are not of the same", what, "9" if what != "spec" else "dense"]
        require_error(ValueError, words, lambda: saved_state.merge([states[0], change(states[1])]))
    require_error(ValueError, ["ranks [0, 0]"], lambda: small.load_state_dict([states[0], states[0]]))
    require_error(ValueError, [f"of rank {1 - RANK} of 2"], lambda: small.load_state_dict(states[1 - RANK]))
    other = {**states[1], "parameters": {**states[1]["parameters"], "layers.0.bias": 49}}
    require_error(ValueError, ["different models", "layers.0.bias"],
                  lambda: saved_state.merge([states[0], other]))
    damaged = {**states[RANK], "values": 5}
    require_error(ValueError, ["damaged", "values"], lambda: small.load_state_dict(damaged))
    handle.load_state_dict(list(reversed(states)))  # each finds its own
    assert all(torch.equal(residuals_of(handle)[name], value) for name, value in before.items())


def _damaged(state, random):
    """The state with one to three things changed."""
    junk = [None, -1, 0, 2, 2**63 - 1, 2**70, 1.5, float("nan"), "x", b"x", True, {}, [], torch.zeros(3),
            torch.zeros(2, 2), torch.zeros(0), torch.full((7,), float("nan")),
            torch.zeros(5, dtype=torch.int64), torch.zeros(4, dtype=torch.complex64)]
    damaged = {**state, "parameters": dict(state["parameters"]), "values": dict(state["values"])}
    for _ in range(random.randint(1, 3)):
        part = random.choice([damaged, damaged.get("values"), damaged.get("values"),
                              damaged.get("parameters")])
        if not isinstance(part, dict) or not part:
            continue
        key = random.choice(sorted(part, key=str))
        what = random.randrange(5)
        if what == 0:
            del part[key]
        elif what == 1:
            part[random.choice(["x", "", f"{key}x", str(key)[:-1], str(key).replace("/", ""),
                                7])] = part.pop(key)
        elif what == 2:
            part[key] = part[random.choice(sorted(part, key=str))]
        elif (what == 3 and isinstance(part[key], torch.Tensor) and part[key].dim() == 1
              and part[key].numel() > 1):
            part[key] = random.choice([part[key][1:], part[key].repeat(2), part[key].double(),
                                       part[key].view(1, -1), part[key][::2]])
        else:
            part[key] = random.choice(junk)
    return damaged


def _require_same_state(one, other, what):
    assert one["values"].keys() == other["values"].keys(), what
    for key, value in one["values"].items():
        same = (torch.equal(value, other["values"][key]) if isinstance(value, torch.Tensor)
                else value == other["values"][key])
        assert same, f"{what}: {key} is another"


def damaged_states_are_refused():
    """Whatever is wrong with a state: it is refused in words, and nothing has changed, or it is a state."""
    for spec in ("casq", "mc:momentum=0.9+top_k:ratio=0.1+zen", "power_sgd:rank=2", "alq:every=2"):
        model = wrap(Net)
        handle = register(model, spec)
        train(model, 3)
        state = handle.state_dict()
        everyones = [{**state, "rank": rank} for rank in range(WORLD)]
        random = Random(f"{spec} {RANK}")
        refused = 0
        for _ in range(400):
            damaged = _damaged(state, random)
            given = damaged if random.random() < 0.6 else everyones[:RANK] + [damaged] + everyones[RANK + 1 :]
            try:
                handle.load_state_dict(given, strict=random.random() < 0.5)
            except (ValueError, RuntimeError) as error:
                assert str(error) and len(str(error)) < 1000 and "\n" not in str(error).strip(), error
                refused += 1
                _require_same_state(handle.state_dict(), state, f"{spec}: after '{error}'")
            else:
                handle.load_state_dict(state)
        assert refused > 100, refused
        handle.load_state_dict(state)
        train(model, 2, first=3)
        require_agreement(model, spec)


def residuals_change_units_with_the_system():
    """sketched_sgd's residual holds gradients times the rate, and others' hold gradients: nothing is lost
    where one follows the other."""
    rate = 0.1
    for specs in (("sketched_sgd", "casq"), ("casq", "sketched_sgd"), ("global_top_k", "ef_signsgd")):
        model = wrap(Given)
        handle = register(model, specs[0], optimizer=torch.optim.SGD(model.parameters(), lr=rate))

        def waiting(spec):
            unit = rate if spec in ("sketched_sgd", "global_top_k") else 1
            return [total(residuals_of(handle).get(f"weights.{i}", torch.zeros(1))) / unit for i in range(4)]

        for step in range(4):
            if step == 2:
                handle.set(specs[1])
            before = waiting(specs[0 if step <= 2 else 1])
            generator = torch.Generator().manual_seed(10 * step + RANK)
            gradients = [torch.randn(weight.shape, generator=generator) for weight in model.module.weights]
            model.zero_grad()
            model(gradients).backward()
            after = waiting(specs[step // 2])
            came = [total(gradient) + old for gradient, old in zip(gradients, before)]
            left = [WORLD * weight.grad.double() + new for weight, new in zip(model.module.weights, after)]
            require_same(came, left, f"{specs}, step {step}", 1e-4)
        handle.close()


STATES = [
    residuals_change_units_with_the_system,
    a_forgotten_state_is_told,
    a_late_registration_forgets_nothing,
    damaged_states_are_refused,
    refuses_states_of_different_moments,
    resumes_bit_for_bit, first_step_is_in_the_states_buckets, mixed_types_resume, a_skipped_step_after_a_load,
    a_load_is_not_logged, resumes_in_other_buckets, another_system_before_the_first_step,
    resumes_with_other_ranks, refuses_what_does_not_fit,
]

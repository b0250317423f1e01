"""Scenarios of systems that hold Adam's variance."""
import copy
import gc
import warnings

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from common import (
    DEADLINE, RANK, WORLD, Given, Net, register, require_agreement, require_error, require_same, wrap,
)
from thinwire import adapter

SIZES = (700, 33, 1200, 5)
BETAS, EPS, DECAY, RATE = (0.8, 0.95), 1e-8, 0.1, 1e-2


def gradients_of(step):
    generator = torch.Generator().manual_seed(31 * step + RANK)
    return [torch.randn(size, generator=generator) for size in SIZES]


class Reference:
    """Adam by its definition, in double, whose second moment moves only where it is told to."""

    def __init__(self, parameters, decoupled):
        self.x = [parameter.detach().double().clone() for parameter in parameters]
        self.m = [torch.zeros_like(x) for x in self.x]
        self.v = [torch.zeros_like(x) for x in self.x]
        self.steps = self.moved = 0
        self.decoupled = decoupled

    def step(self, gradients, frozen):
        self.steps += 1
        self.moved += not frozen
        corrected = self.steps if frozen else self.moved
        for i, gradient in enumerate(gradients):
            g = gradient.double()
            if self.decoupled:
                self.x[i] *= 1 - RATE * DECAY
            else:
                g = g + DECAY * self.x[i]
            self.m[i] = BETAS[0] * self.m[i] + (1 - BETAS[0]) * g
            if not frozen:
                self.v[i] = BETAS[1] * self.v[i] + (1 - BETAS[1]) * g * g
            held = self.v[i] / (1 - BETAS[1] ** self.moved)
            self.x[i] -= RATE * self.m[i] / (1 - BETAS[0] ** corrected) / (held.sqrt() + EPS)


def make(kind, model, **options):
    return kind(model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, **options)


# Four steps in codes, one of floats, then signs.
BEGUN_IN_CODES = "clip:norm=2+warm_up:steps=4:with=blocks/bits=4+one_bit_adam:freeze=1:beta1=0.8"


def the_variance_stands_still():
    """Of Adam and AdamW, one parameter at a time and all at once, with a schedule made before and after."""
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        for foreach in (False, True):
            for spec, moves in (("one_bit_adam:freeze=3:beta1=0.8", range(3)),
                                (BEGUN_IN_CODES, range(5)),
                                ("zero_one_adam:kappa=2:beta1=0.8", (0, 1, 2, 4, 6, 10))):
                model = wrap(Given)
                optimizer = make(kind, model, foreach=foreach)
                schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)]
                handle = register(model, spec, optimizer=optimizer)
                schedules.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0))
                parameters = list(model.module.weights)
                reference = Reference(parameters, kind is torch.optim.AdamW)
                for step in range(12):
                    model.zero_grad()
                    model(gradients_of(step)).backward()
                    before = [optimizer.state[p]["exp_avg_sq"].clone() for p in parameters] if step else None
                    reference.step([p.grad for p in parameters], step not in moves)
                    optimizer.step()
                    for schedule in schedules:
                        schedule.step()
                    now = [optimizer.state[p]["exp_avg_sq"] for p in parameters]
                    if before is not None:
                        same = all(torch.equal(a, b) for a, b in zip(before, now))
                        assert same == (step not in moves), (f"{spec}, step {step}: "
                                                             f"the variance {'stood' if same else 'moved'}")
                assert not optimizer.param_groups[0]["amsgrad"]
                for parameter, expected in zip(parameters, reference.x):
                    assert torch.allclose(parameter.detach().double(), expected,
                                          atol=2e-5), f"{spec}, {kind.__name__}"
                require_agreement(model, spec)
                handle.close()


def adams_momentum_is_what_travelled():
    """One size for each shard of each parameter, though many gradients were added to it."""
    model = wrap(Given)
    optimizer = make(torch.optim.AdamW, model)
    handle = register(model, "one_bit_adam:freeze=3:beta1=0.8", optimizer=optimizer)
    for step in range(9):
        model.zero_grad()
        model(gradients_of(step)).backward()
        optimizer.step()
    for parameter in model.module.weights:
        sizes = optimizer.state[parameter]["exp_avg"].abs().flatten()
        groups = torch.unique((sizes / sizes.max() * 1e4).round())
        assert len(groups) <= WORLD, f"{len(groups)} sizes in a momentum of {sizes.numel()} elements"
    handle.close()


def a_closure_comes_before_the_question():
    """Backward runs in it, and decides whether the variance of this step stands still."""
    for spec in ("one_bit_adam:freeze=3:beta1=0.8", "zero_one_adam:kappa=2:beta1=0.8"):
        results = []
        for in_closure in (False, True):
            torch.manual_seed(5)
            model = wrap(Given)
            optimizer = make(torch.optim.AdamW, model)
            handle = register(model, spec, optimizer=optimizer)

            def backward():
                model.zero_grad()
                loss = model(gradients_of(step))
                loss.backward()
                return loss

            for step in range(9):
                if in_closure:
                    assert optimizer.step(backward).requires_grad
                else:
                    backward()
                    assert optimizer.step() is None
            results.append([parameter.detach().clone() for parameter in model.parameters()]
                           + [state["exp_avg_sq"] for state in optimizer.state.values()])
            handle.close()
        require_same(*results, f"{spec}, backward in a closure", 0)


def a_rate_of_zero_loses_nothing():
    """As in the first step of a rise of the rate; and the rate is that of the model's own group."""
    for spec in ("sketched_sgd:ratio=0.1:p=4:columns_ratio=0.1", "global_top_k:ratio=0.1"):
        model, other = wrap(Given), nn.Linear(2, 2)
        optimizer = torch.optim.SGD([{"params": list(other.parameters()), "lr": 1e-4},
                                     {"params": list(model.parameters()), "lr": 0.0}])
        handle = register(model, spec, optimizer=optimizer)
        model(gradients_of(0)).backward()
        assert all(not parameter.grad.any() for parameter in model.parameters()), spec
        optimizer.param_groups[1]["lr"] = 0.1
        model.zero_grad()
        model(gradients_of(1)).backward()
        assert any(parameter.grad.any() for parameter in model.parameters()), spec
        require_agreement(model, spec)
        handle.close()


def a_framework_that_clips_or_puts_its_step_back_is_refused():
    for spec, system in (("one_bit_adam", "one_bit_adam"), ("demo", "demo"), ("momentum+casq", "momentum")):
        model = wrap(Net)
        optimizer = (torch.optim.AdamW(model.parameters()) if spec != "demo"
                     else torch.optim.SGD(model.parameters(), lr=0.1))
        require_error(ValueError, ["clips gradients at 1,", system, "turn clipping off"],
                      lambda: adapter.Synchronization(model, spec, optimizer=optimizer, remedy="",
                                                      clipped_at=1.0))
    model = wrap(Net)
    run = adapter.Synchronization(model, "casq", optimizer=torch.optim.AdamW(model.parameters()), remedy="",
                                  clipped_at=1.0)
    run.close()

    class Scaled:
        def __init__(self, optimizer):
            self.optimizer = optimizer
            self._optimizer_original_step_method = optimizer.step

    model = wrap(Net)
    wrapper = Scaled(torch.optim.AdamW(model.parameters()))
    require_error(ValueError, ["Accelerate", "bf16"],
                  lambda: adapter.Synchronization(model, "one_bit_adam", optimizer=wrapper, remedy=""))
    run = adapter.Synchronization(model, "casq", optimizer=wrapper, remedy="")
    require_error(ValueError, ["Accelerate", "bf16"], lambda: run.handle.set("zero_one_adam"))
    run.close()


def resumes_with_its_optimizer():
    """The steps in which the variance stood still are in the optimizer's own state."""
    spec = "zero_one_adam:kappa=2:beta1=0.8"

    def started():
        torch.manual_seed(5)
        model = wrap(Given)
        optimizer = make(torch.optim.AdamW, model)
        return model, optimizer, register(model, spec, optimizer=optimizer)

    def train(model, optimizer, first, last):
        for step in range(first, last):
            model.zero_grad()
            model(gradients_of(step)).backward()
            optimizer.step()

    model, optimizer, handle = started()
    train(model, optimizer, 0, 6)
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), handle.state_dict()))
    train(model, optimizer, 6, 12)
    resumed, other, another = started()
    resumed.module.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    another.load_state_dict(saved[2])
    train(resumed, other, 6, 12)
    require_same(list(resumed.module.parameters()), list(model.module.parameters()), "resumed", 0)
    handle.close()
    another.close()
    fresh, new, third = started()
    train(fresh, new, 0, 3)
    new.state.clear()
    fresh.zero_grad()
    fresh(gradients_of(3)).backward()
    require_error(RuntimeError, ["variance", "state_dict"], new.step)
    third.close()


def an_adam_is_needed():
    for spec in ("one_bit_adam", "warm_up:steps=5+zero_one_adam"):
        model = wrap(Net)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        require_error(ValueError, ["variance", "optimizer=optimizer"], lambda: thinwire.register(model, spec))
        model = wrap(Net)
        require_error(ValueError, ["SGD", "AdamW"], lambda: thinwire.register(model, spec, optimizer=sgd))
        model = wrap(Net)
        amsgrad = torch.optim.Adam(model.parameters(), amsgrad=True)
        require_error(ValueError, ["amsgrad=False"],
                      lambda: thinwire.register(model, spec, optimizer=amsgrad))
    model = wrap(Net)
    handle = register(model, "dense")
    require_error(ValueError, ["variance", "optimizer=optimizer"], lambda: handle.set("one_bit_adam"))
    assert handle.spec.endswith("dense=dense:sum=type:feedback=off")
    handle.close()


def the_optimizers_momentum_is_the_specs():
    """A spec that needs another one would make another optimizer of it in silence."""
    def refuse(spec, words, make_optimizer):
        model = wrap(Net)
        optimizer = make_optimizer(model.parameters())
        require_error(ValueError, words, lambda: thinwire.register(model, spec, optimizer=optimizer))

    refuse("one_bit_adam", ["one_bit_adam:beta1=0.9", "0.95", "one_bit_adam:beta1=0.95"],
           lambda parameters: torch.optim.AdamW(parameters, betas=(0.95, 0.999)))
    refuse("momentum+casq", ["momentum:momentum=0.9", "0.8"],
           lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.8))
    refuse("rows=zen,dense=momentum:momentum=0.5+casq", ["momentum:momentum=0.5", "is 0.9"],
           lambda parameters: torch.optim.AdamW(parameters))
    for spec in ("mc+top_k:ratio=0.1+zen", "dgc+zen", "sketched_sgd:momentum=0.9",
                 "warm_up:steps=4+mc+top_k:k=5+zen"):
        refuse(spec, ["momentum itself", "0.9", "momentum=0"],
               lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    for spec in ("mc+top_k:ratio=0.1+zen", "demo"):
        refuse(spec, ["momentum itself", "0.9", "SGD without momentum"],
               lambda parameters: torch.optim.AdamW(parameters))
    for spec, make_optimizer in (
        ("mc+top_k:ratio=0.1+zen", lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        ("sketched_sgd", lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
        ("momentum:momentum=0.8+casq", lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.8)),
        ("momentum+casq", lambda parameters: torch.optim.Adagrad(parameters)),
        ("dgc:momentum=0+zen", lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
        ("demo:sign=off", lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
        ("rows=dgc+zen,dense=half", lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
    ):
        model = wrap(Net)
        handle = register(model, spec, optimizer=make_optimizer(model.parameters()))
        if spec == "sketched_sgd":
            require_error(ValueError, ["momentum itself"], lambda: handle.set("dgc+zen"))
            assert handle.spec.endswith("feedback=on") and "dgc" not in handle.spec, handle.spec
        handle.close()

    # Another group is another model's; and a schedule does not make a spec that runs one that is refused.
    model = wrap(Net)
    other = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), "momentum": 0.0},
                                 {"params": list(other.parameters()), "momentum": 0.9}], lr=0.1)
    handle = register(model, "mc+top_k:k=5+zen", optimizer=optimizer)
    optimizer.param_groups[0]["momentum"] = 0.5
    handle.set("mc+top_k:k=9+zen")
    require_error(ValueError, ["momentum=0.9", "is 0.5"], lambda: handle.set("momentum+casq"))
    handle.close()


def an_optimizer_of_other_parameters_is_refused():
    """It would look as if the variance stood still."""
    other = torch.nn.Linear(3, 3)
    for spec, foreign in (("one_bit_adam:freeze=2", torch.optim.AdamW(other.parameters())),
                          ("momentum+casq", torch.optim.SGD(other.parameters(), lr=0.1))):
        require_error(ValueError, [spec, type(foreign).__name__, "none of this model's parameters"],
                      lambda: thinwire.register(wrap(Net), spec, optimizer=foreign))
    require_error(TypeError, ["rows is of type AdamW", "optimizer=..."],
                  lambda: thinwire.register(wrap(Net), "casq", torch.optim.AdamW(other.parameters())))


def an_optimizer_of_a_part_of_the_model_is_told():
    """The others' variance would go on, by the squares of what is no gradient."""
    model = wrap(Net)
    names = [name for name, _ in model.module.named_parameters()]
    parameters = list(model.parameters())
    for part, told_of in ((parameters[1:], f"which has not '{names[0]}':"),
                          (parameters[:1], f"which has not '{names[1]}' and {len(names) - 2} more:"),
                          (parameters, None)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            handle = register(model, "one_bit_adam:freeze=2", optimizer=torch.optim.AdamW(part))
        handle.close()
        found = [str(one.message) for one in told if "which has not" in str(one.message)]
        assert len(found) == (1 if told_of and RANK == 0 else 0), (RANK, found)
        assert all(told_of in one for one in found), found


def what_a_system_loses_is_told():
    """Once, by rank 0, where the optimizer is given and such a training was measured."""
    model = wrap(Net)
    parameters = list(model.parameters())
    adam, momentum = torch.optim.AdamW(parameters), torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    plain = torch.optim.SGD(parameters, lr=0.1)
    for optimizer, spec, words in ((adam, "casq", "casq with Adam: a transformer's loss ended about"),
                                   (momentum, "marsit", "marsit with momentum:"),
                                   (torch.optim.NAdam(parameters), "casq", "casq with Adam:"),
                                (plain, "casq", None), (None, "casq", None), (adam, "half", None),
                                   (adam, "guard+casq", None)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            handle = register(model, spec, optimizer=optimizer)
        handle.close()
        found = [one for one in told if "nats above dense's" in str(one.message)]
        assert len(found) == (1 if words and RANK == 0 else 0), (RANK, spec, found)
        assert all(words in str(one.message) and one.filename == register.__code__.co_filename
                   for one in found), [(one.filename, str(one.message)) for one in found]


def an_optimizer_that_was_not_measured_is_told():
    """Once, by rank 0, for a system that leaves something out."""
    model = wrap(Net)
    parameters = list(model.parameters())

    class OthersFusedAdam(torch.optim.Adagrad):
        """Another library's Adam, by its name."""

    for kind, spec, is_told in ((torch.optim.Adagrad, "auto", True), (torch.optim.Adagrad, "klt", True),
                                (torch.optim.Adagrad, "auto:lossless", False),
                                (torch.optim.Adagrad, "half", False),
                                (torch.optim.AdamW, "auto", False), (OthersFusedAdam, "klt", False)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            handle = register(model, spec, optimizer=kind(parameters))
        handle.close()
        found = [str(one.message) for one in told if "was compared with dense's under" in str(one.message)]
        assert len(found) == (1 if is_told and RANK == 0 else 0), (RANK, kind, spec, found)
        assert all("under Adagrad. " in one and spec in one for one in found), found


def another_models_optimizer_is_told():
    """Once, by rank 0. One that moves the model, also among others, is nothing to tell."""
    model, other = wrap(Net), wrap(Net)
    of_both = [*other.parameters(), *model.parameters()]
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    for moved, is_told in ((list(other.parameters()), True), (copies, True), (of_both, False)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            handle = register(model, "half", optimizer=torch.optim.AdamW(moved))
            handle.set("casq:bits=4")
        handle.close()
        found = [str(one.message) for one in told if "none of the model's parameters" in str(one.message)]
        assert len(found) == (1 if is_told and RANK == 0 else 0), (RANK, is_told, found)
        assert all("AdamW" in one and "copies" in one for one in found), found


def auto_is_the_default():
    model = wrap(Net)
    handle = thinwire.register(model, optimizer=torch.optim.AdamW(model.parameters()))
    assert ",dense=auto:" in handle.spec, handle.spec
    handle.close()
    model = wrap(Net)
    hook, state = thinwire.comm_hook(deadline_seconds=DEADLINE)
    model.register_comm_hook(state, hook)
    model(torch.randn(4, 20)).square().mean().backward()
    assert ",dense=auto:" in state.handle.spec, state.handle.spec
    state.handle.close()
    model = wrap(Net)
    require_error(TypeError, ["spec is of type AdamW", "'auto'", "optimizer=..."],
                  lambda: thinwire.register(model, torch.optim.AdamW(model.parameters())))
    require_error(TypeError, ["takes the model first", "AdamW stands there", "optimizer=..."],
                  lambda: thinwire.register(torch.optim.AdamW(model.parameters()), model))


def an_optimizer_that_was_made_anew_is_noticed():
    model = wrap(Net)
    handle = register(model, "one_bit_adam:freeze=2", optimizer=torch.optim.AdamW(model.parameters()))
    another = torch.optim.AdamW(model.parameters())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(14):
            another.zero_grad()
            model(torch.randn(4, 20)).square().mean().backward()
            another.step()
    words = [str(one.message) for one in told if "variance stands still" in str(one.message)]
    assert len(words) == 1 and "register again" in words[0], words
    handle.close()
    # One for which several means are made for a step is no other one.
    optimizer = torch.optim.AdamW(model.parameters())
    handle = register(model, "one_bit_adam:freeze=8", optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for step in range(32):
            model(torch.randn(4, 20)).square().mean().backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    handle.close()


def an_optimizer_is_held_for_one_model():
    """Whoever held it may end, and another model's handle takes its place:
    variance and bias correction stay right."""
    spec = "one_bit_adam:freeze=3:beta1=0.8"
    model, other = wrap(Given), wrap(Given)
    optimizer = make(torch.optim.AdamW, model)
    optimizer.add_param_group({"params": list(other.parameters())})
    handle = register(model, spec, optimizer=optimizer)
    require_error(ValueError, ["another model", "close()"],
                  lambda: register(other, spec, optimizer=optimizer))
    for step in range(5):
        model.zero_grad()
        model(gradients_of(step)).backward()
        optimizer.step()
    handle.close()
    frozen = [state["exp_avg_sq"].clone() for state in optimizer.state.values()]
    module = model.module
    del model, handle  # DDP takes its own hooks off the parameters when it ends
    gc.collect()
    again = DistributedDataParallel(module)
    second = register(again, spec, optimizer=optimizer)
    for step in range(3):
        again.zero_grad()
        again(gradients_of(step)).backward()
        optimizer.step()
    moved = [state["exp_avg_sq"].clone() for state in optimizer.state.values()]
    assert all(not torch.equal(a, b)
               for a, b in zip(frozen, moved)), "the second handle's first steps are dense"
    for step in range(2):
        again.zero_grad()
        again(gradients_of(step)).backward()
        optimizer.step()
    assert all(torch.equal(a, state["exp_avg_sq"]) for a, state in zip(moved, optimizer.state.values()))
    assert all(int(state["step"]) == 10 and state["thinwire_frozen_steps"] == 4
               for state in optimizer.state.values())
    assert all(bool(parameter.isfinite().all()) for parameter in again.parameters())
    second.close()
    # Nobody says any more that it stands still.
    for parameter in again.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(not torch.equal(a, state["exp_avg_sq"]) for a, state in zip(moved, optimizer.state.values()))


class Scale:
    """What is read from a GradScaler."""

    def get_scale(self):
        return 65536.0


def signs_are_refused_under_a_loss_scale():
    model = wrap(Net)
    require_error(ValueError, ["spec 'demo' delivers signs", "sign=off"],
                  lambda: thinwire.register(model, "demo", grad_scaler=Scale()))
    handle = register(wrap(Net), "demo:sign=off", grad_scaler=Scale())
    require_error(ValueError, ["spec 'demo:top=8' delivers signs"], lambda: handle.set("demo:top=8"))
    handle.close()


ADAM = [a_closure_comes_before_the_question, a_rate_of_zero_loses_nothing,
        a_framework_that_clips_or_puts_its_step_back_is_refused, an_optimizer_is_held_for_one_model,
        an_optimizer_of_other_parameters_is_refused, an_optimizer_of_a_part_of_the_model_is_told,
        what_a_system_loses_is_told, an_optimizer_that_was_not_measured_is_told,
        another_models_optimizer_is_told, auto_is_the_default, an_optimizer_that_was_made_anew_is_noticed,
        signs_are_refused_under_a_loss_scale, the_variance_stands_still, adams_momentum_is_what_travelled,
        resumes_with_its_optimizer, an_adam_is_needed, the_optimizers_momentum_is_the_specs]

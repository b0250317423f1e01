"""Scenarios of hooks: ``comm_hook``, and a model that is registered again."""
import copy
import linecache
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire import state as saved_state
from thinwire import wrappers
from common import (DEADLINE, RANK, WORLD, Net, register, require_agreement, require_error, require_same, sgd,
                    train, values_of, wrap)

LOSSY = ["casq", "top_k:ratio=0.05+zen", "power_sgd:rank=4"]


def hooked(spec, **options):
    model = wrap(Net)
    hook, state = thinwire.comm_hook(spec, deadline_seconds=DEADLINE, **options)
    model.register_comm_hook(state, hook)
    return model, state


def a_hook_of_ones_own():
    for spec in ["dense", *LOSSY]:
        model, state = hooked(spec)
        registered = wrap(Net)
        register(registered, spec)
        assert state.handle is None
        for one in (model, registered):
            train(one, 4)
        require_same(values_of(model), values_of(registered), f"comm_hook({spec!r})")
        assert state.handle.step == 4 and state.handle.scalars()["thinwire/wire_bytes_sent"] > 0


def its_state_comes_before_its_handle():
    for spec in LOSSY:
        model, state = hooked(spec)
        require_error(RuntimeError, ["before the first backward"], state.state_dict)
        optimizer = train(model, 4)
        saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), state.state_dict()))
        train(model, 3, first=4, optimizer=optimizer)
        again, resumed = hooked(spec)
        again.module.load_state_dict(saved[0])
        optimizer = sgd(again)
        optimizer.load_state_dict(saved[1])
        resumed.load_state_dict(given_again(saved[2]))
        train(again, 3, first=4, optimizer=optimizer)
        require_same(values_of(again), values_of(model), f"{spec}: resumed with a hook of one's own")


def given_again(state):
    """What a run saves that has loaded ``state`` and has not stepped."""
    _, between = hooked("casq")
    between.load_state_dict(state)
    return between.state_dict()


def require_equal(found, wanted):
    assert found.keys() == wanted.keys(), (found.keys(), wanted.keys())
    for name, value in wanted.items():
        assert (torch.equal(value, found[name]) if isinstance(value, torch.Tensor)
                else value == found[name]), name


def a_state_that_was_given_can_be_saved():
    """Before the first backward, in each form of a state."""
    model, state = hooked("casq")
    train(model, 2)
    everyones = [None] * WORLD
    dist.all_gather_object(everyones, state.state_dict())
    together = state.state_dict(consolidate=True)
    for given in (everyones[RANK], everyones, saved_state.pack(everyones), together):
        handle = register(wrap(Net), "casq")
        handle.load_state_dict(given_again(given))
        loaded = handle.state_dict(consolidate=given is together)["values"]
        require_equal(loaded, together["values"] if given is together else everyones[RANK]["values"])
        _, between = hooked("casq")
        between.load_state_dict(given)
        if given is everyones[RANK]:
            require_error(RuntimeError, ["was given to load_state_dict", "not that of all ranks"],
                          lambda: between.state_dict(consolidate=True))
        else:
            require_equal(between.state_dict(consolidate=True)["values"], together["values"])


def a_first_backward_that_fails():
    """Whoever tries again hears the cause, and not that the model is gone."""
    model, state = hooked("casq", lanes=0)
    for _ in range(3):
        require_error(RuntimeError, ["lanes=0"], lambda: train(model, 1))
    assert state.handle is None
    model, state = hooked("casq")
    state.load_state_dict({"values": {}})
    for _ in range(3):  # not without the state
        require_error(RuntimeError, ["no state of Thinwire", "state_dict()"], lambda: train(model, 1))
    assert state.handle._is_closed
    handle = register(model, "casq")
    train(model, 2)
    assert handle.step == 2


def hooks_that_cannot_be():
    require_error(TypeError, ["spec is 5", "such as 'auto'"], lambda: thinwire.comm_hook(5))
    require_error(ValueError, ["nosuch"], lambda: thinwire.comm_hook("nosuch"))
    require_error(ValueError, ["bits=7"], lambda: thinwire.comm_hook("casq:bits=7"))
    hook, state = thinwire.comm_hook("casq", deadline_seconds=DEADLINE)
    one, other = wrap(Net), wrap(Net)
    for model in (one, other):
        model.register_comm_hook(state, hook)
    train(one, 2)
    require_error(RuntimeError, ["a parameter that the model did not have", "register"],
                  lambda: train(other, 1))


def a_copy_of_a_hooked_model():
    model, _ = hooked("casq")
    train(model, 2)
    copied = copy.deepcopy(model)
    train(copied, 2, first=2)
    require_agreement(copied, "a copy")


def a_hook_of_somebody_elses_is_named():
    model = wrap(Net)
    model.register_comm_hook(None, lambda _, bucket: torch.futures.Future())
    require_error(RuntimeError, ["leave out your own register_comm_hook"], lambda: register(model, "auto"))


def registered_again():
    """A model whose handle was closed takes another, which begins as on a new model."""
    for before, spec in (("dense", "casq"), ("casq", "top_k:ratio=0.05+zen"),
                         ("power_sgd:rank=4", "power_sgd:rank=4")):
        model = wrap(Net)
        first = register(model, before)
        train(model, 3)
        require_error(RuntimeError, ["a communication hook already", "handle.set"],
                      lambda: register(model, spec))
        first.close()
        state = first.state_dict()
        assert state["values"]["step"] == 3
        require_error(RuntimeError, ["closed"], lambda: train(model, 1))
        fresh = wrap(Net)
        fresh.module.load_state_dict(model.module.state_dict())
        handle, other = register(model, spec), register(fresh, spec)
        handle.load_state_dict(state)
        other.load_state_dict(state)
        for one in (model, fresh):
            train(one, 3, first=3)
        require_same(values_of(model), values_of(fresh), f"{spec}, registered again after {before}")
        assert handle.step == 6, handle.step
        first.close()
        require_error(RuntimeError, ["a communication hook already"], lambda: register(model, spec))


class FSDPModule(nn.Module):
    pass


class DeepSpeedEngine(nn.Module):
    pass


FSDPModule.__module__, DeepSpeedEngine.__module__ = "torch.distributed.fsdp", "deepspeed.runtime.engine"


def wrappers_that_synchronize_themselves():
    for model, words in (
        (FSDPModule(), ["FSDP2", "DistributedDataParallel"]),
        (DeepSpeedEngine(), ["DeepSpeed's engine", "DistributedDataParallel"]),
        (nn.Sequential(nn.Linear(2, 2), FSDPModule()), ["FSDP2"]),
        (nn.DataParallel(nn.Linear(2, 2)), ["one process per device"]),
    ):
        require_error(TypeError, words, lambda: register(model))
    wrapped = DDP(Net())
    assert (wrappers.ddp_within(wrapped) is wrapped and wrappers.ddp_within(Net()) is None
            and wrappers.ddp_within(None) is None)
    if not hasattr(torch, "compile"):
        return
    assert wrappers.ddp_within(torch.compile(wrapped)) is wrapped


def compiled_models():
    """torch.compile around DDP, before and after register, and within it:
    as without, and states are each other's."""
    if not hasattr(torch, "compile"):
        return "skipped"

    def trained(spec, around, within=False):
        torch.manual_seed(7)
        net = Net(600)  # of several buckets, between which torch divides what it compiles
        model = DDP(torch.compile(net, backend="aot_eager") if within else net, bucket_cap_mb=1)
        handle = register(torch.compile(model, backend="aot_eager") if around == "before" else model, spec)
        whole = torch.compile(model, backend="aot_eager") if around else model
        train(whole, 4)
        assert handle.step == 4 and handle.report()["last_step"]["wire_bytes_sent"] > 0
        return values_of(model), handle

    for spec in ("dense", *LOSSY):
        plain, handle = trained(spec, None)
        state = handle.state_dict()
        for around, within in (("before", False), ("after", False), (None, True)):
            values, compiled = trained(spec, around, within)
            require_same(values, plain, f"{spec}, torch.compile {around} register, within: {within}",
                         1e-6 if spec == "dense" else 0.05)
            compiled.load_state_dict(state)
            assert compiled.state_dict()["parameters"] == state["parameters"], "names with torch.compile"
            compiled.close()
        handle.close()


def reducers_without_buckets():
    model = wrap(Net)
    model.mixed_precision = object()  # CPUs have none
    require_error(ValueError, ["mixed_precision", "torch.autocast"], lambda: register(model))
    if not hasattr(torch, "compile"):
        return
    torch._dynamo.config.optimize_ddp = "python_reducer"
    try:
        model = wrap(Net)
        if not getattr(model, "_use_python_reducer", False):  # of an older torch
            return
        require_error(ValueError, ["python_reducer", "ddp_optimizer"], lambda: register(model))
        hook, state = thinwire.comm_hook("casq")
        model.register_comm_hook(state, hook)
        require_error(RuntimeError, ["python_reducer", "ddp_optimizer"], lambda: train(model, 1))
    finally:
        torch._dynamo.config.optimize_ddp = True


def warnings_of(body):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        body()
    told = [one for one in told if "whole" in str(one.message)]
    for one in told:
        line = linecache.getline(one.filename, one.lineno)
        assert "handle.set(" in line or "thinwire.register(" in line, (one.filename, one.lineno, line)
    return [str(one.message) for one in told]


def names_that_fit_no_parameter():
    model = wrap(Net)
    names = [name for name, _ in model.module.named_parameters()]
    typo = names[0][:-1] + "_"
    words = [f"whole:names={typo} fits no parameter", f"did you mean '{names[0]}'"] if RANK == 0 else None
    handle = None

    def registers():
        nonlocal handle
        handle = register(model, f"whole:names={names[0]}|{typo}+casq")

    for body in (registers, lambda: handle.set(f"whole:names={typo}+casq:bits=4")):
        told = warnings_of(body)
        assert len(told) == (words is not None), told
        assert all(word in told[0] for word in words or []), told
    assert warnings_of(lambda: handle.set(f"whole:names={names[0]}+casq")) == []
    train(model, 2)


def handles_say_what_they_are():
    model = wrap(Net)
    handle = register(model, "casq:bits=4")
    train(model, 2)
    assert repr(handle) == f"<thinwire.Handle of 'casq:bits=4', rank {RANK} of {WORLD}, step 2>", repr(handle)
    handle.close()
    assert repr(handle).endswith("step 2, closed>"), repr(handle)
    assert {"register", "Handle", "lightning", "__version__"} <= set(dir(thinwire))


HOOKS = [a_hook_of_somebody_elses_is_named, a_hook_of_ones_own,
         its_state_comes_before_its_handle, a_state_that_was_given_can_be_saved,
         a_first_backward_that_fails, hooks_that_cannot_be, a_copy_of_a_hooked_model, registered_again,
         names_that_fit_no_parameter, wrappers_that_synchronize_themselves, compiled_models,
         reducers_without_buckets, handles_say_what_they_are]

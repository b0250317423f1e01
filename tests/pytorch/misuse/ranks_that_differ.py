"""Ranks that do not do the same."""
import json
import types

import torch
import torch.distributed as dist
from torch import nn

import thinwire
from thinwire import agreement
from adam import Scale
from common import RANK, WORLD, Net, batch, require_agreement, register, require_error, train, wrap


def ranks_that_differ():
    model = wrap(Net)
    register(model, "casq" if RANK == 0 else "half")
    message = require_error(RuntimeError, ["rank"], lambda: train(model, 1))
    assert "casq" in message or "half" in message, message
    require_error(ValueError, ["checked_sums=False on rank 0", "checked_sums=True on rank 1"],
                  lambda: register(wrap(Net), checked_sums=RANK == 1))
    require_error(ValueError, ["grad_scaler=False on rank 0", "grad_scaler=True on rank 1"],
                  lambda: register(wrap(Net), grad_scaler=Scale() if RANK == 1 else None))
    require_error(ValueError, ["lanes=1 on rank 0", "lanes=2 on rank 1"],
                  lambda: register(wrap(Net), lanes=1 + RANK))
    seeded = wrap(Net)
    register(seeded, "casq", seed=1 + RANK)
    require_error(RuntimeError, ["seed"], lambda: train(seeded, 1))


    require_error(ValueError, ["deadline_seconds=30.0 on rank 0", "deadline_seconds=31.0 on rank 1"],
                  lambda: thinwire.register(wrap(Net), "dense", deadline_seconds=30.0 + RANK))
    require_error(ValueError, ["step_limit_seconds=100 on rank 0", "step_limit_seconds=101 on rank 1"],
                  lambda: register(wrap(Net), step_limit_seconds=100 + RANK))


def ranks_of_another_build():
    """What no build like this one has written in the store is refused with the rank that wrote it."""
    words = ["rank 1 runs another build of Thinwire than rank 0"]
    for written in ("[1", "[1]", '{"job": ""}'):
        if RANK == 1:
            agreement.json = types.SimpleNamespace(loads=json.loads, dumps=lambda said: written)
        try:
            require_error(ValueError, words, lambda: register(wrap(Net)))
        finally:
            agreement.json = json
        if RANK == 0:
            agreement.json = types.SimpleNamespace(
                loads=json.loads, dumps=lambda said: written if "token" in said else json.dumps(said))
        try:
            require_error(RuntimeError, ["ranks have concluded", repr(written), "the same version"],
                          lambda: register(wrap(Net)))
        finally:
            agreement.json = json


def models_in_another_order():
    """Said at once: at the deadline the error would be another one."""
    small, large = wrap(Net), wrap(lambda: Net(50))
    one, other = (small, large) if RANK == 0 else (large, small)
    words = ["rank 1 registers a model of 6 parameters, the first 'layers.0.weight' of 1000",
             "rank 0 registers one of 6 parameters, the first", "960"]
    words += (["On this rank, 1: parameter 0 is 'layers.0.weight' of 1000 elements (torch.float32) here and"]
              if RANK == 1 else [])
    require_error(ValueError, words, lambda: register(one))
    renamed = wrap(lambda: nn.ModuleDict({"a" if RANK == 0 else "b": nn.Linear(20, 5)}))
    require_error(ValueError, ["'a.weight'", "'b.weight'"], lambda: register(renamed))
    for model in (small, large):
        register(model)
        train(model, 2)
        require_agreement(model, "after a refusal")


def equal_models_in_another_order():
    """Of the same shapes: plain DDP keeps them apart by the order in which backward comes to them."""
    one, other = wrap(Net), wrap(Net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    mine, theirs = (one, other) if RANK == 0 else (other, one)
    for model in (mine, theirs):
        require_error(ValueError, ["other values than on rank 0", "same order", "check_replicas_every=0"],
                      lambda model=model: register(model))
    handles = [register(one, "casq"), register(other, "casq")]
    train(one, 2)
    train(other, 2)
    assert [handle.step for handle in handles] == [2, 2]
    # Two that differ in nothing: backward shows it.
    for together in (False, True):
        models = [wrap(Net), wrap(Net)]
        for model in models if RANK == 0 else models[::-1]:
            register(model, "casq", check_replicas_every=0 if together else 1000)
        words = ["registered the model of this backward as its number", "in the same order on all ranks"]
        if together:
            loss = sum(model(batch(0)).square().mean() for model in models)
            require_error(RuntimeError, words, loss.backward)
        for model in models if not together else []:
            require_error(RuntimeError, words, lambda: model(batch(0)).square().mean().backward())


def a_system_that_one_rank_sets():
    model = wrap(Net)
    handle = register(model, "casq")
    train(model, 2)
    if RANK == 0:
        handle.set("half")
    require_error(RuntimeError, ["do not synchronize the same",
                                 "before step 2 rank 0 has called handle.set(), and rank 1 has not",
                                 "all ranks must do so between the same two steps", "step 2)"],
                  lambda: train(model, 1, first=2))
    # Ranks that hear of it before they have compared by themselves read the same, and of no silence.
    _, reason, _, failed = handle._engine.verdict()
    assert failed and "do not synchronize the same" in reason, reason


def a_rank_that_leaves_what_repeats():
    """Once steps repeat, Gloo's own sums begin before ranks have compared them, and messages do not.
    A rank that does something else is found out in either case, and nobody gets a mean."""
    for spec in ("dense", "sketched_sgd", "casq"):
        model = wrap(Net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        handle = thinwire.register(model, spec, optimizer=optimizer, deadline_seconds=8.0)
        train(model, 6, optimizer=optimizer)
        if RANK == 1:
            handle.set("half")
        for _ in range(2):
            require_error(RuntimeError, ["rank 1 has called handle.set()", "and rank 0 has not",
                                         "do not synchronize the same", "no mean was handed out"],
                          lambda: train(model, 1, first=6, optimizer=optimizer))


def replicas_that_differ():
    for every, found_at in ((1, 4), (3, 6), (0, None)):
        model = wrap(Net)
        handle = register(model, "ef_signsgd", check_replicas_every=every)
        optimizer = train(model, 4)
        if RANK == 1:
            with torch.no_grad():
                bits = model.module.layers[2].weight.view(-1)[17:18].view(torch.int32)
                bits ^= 1
        if found_at is None:
            train(model, 4, first=4, optimizer=optimizer)
            continue
        train(model, found_at - 4, first=4, optimizer=optimizer)
        names = ("rank 0, rank 1 hold different ones" if WORLD == 2
                 else "rank 1 holds other parameters than the rest of 3 ranks")
        words = [f"replicas differ before step {found_at}", names]
        require_error(RuntimeError, words, lambda: train(model, 1, first=found_at, optimizer=optimizer))
    require_error(ValueError, ["check_replicas_every=1 on rank 0, check_replicas_every=2 on rank 1"],
                  lambda: register(wrap(Net), check_replicas_every=1 + (RANK == 1)))
    require_error(ValueError, ["check_replicas_every=-1"],
                  lambda: register(wrap(Net), check_replicas_every=-1))


def a_load_of_different_models_is_found():
    model = wrap(Net)
    handle = register(model, "casq")
    train(model, 2)
    state = handle.state_dict()
    torch.manual_seed(100 + RANK)
    model.module.load_state_dict(Net().state_dict())
    handle.load_state_dict(state)
    for _ in range(2):  # whoever catches it hears it again
        require_error(RuntimeError, ["replicas differ before step 2"], lambda: train(model, 1, first=2))
    assert handle.step == 2
    torch.manual_seed(100)
    model.module.load_state_dict(Net().state_dict())
    train(model, 2, first=2)


def a_rank_that_does_not_register():
    """The last one here: ranks have then registered different numbers of models."""
    model = wrap(Net)
    if RANK == 0:
        missing = ["within 1 s, missing: 1.", "has to call register"]
        require_error(RuntimeError, missing, lambda: thinwire.register(model, "dense", deadline_seconds=1.0))
    dist.barrier()

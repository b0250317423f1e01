"""Scenarios of bad input, ranks that differ, sub-groups, and ranks that die."""
import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from common import RANK, Net, register, require_error, require_same, train, values_of, wrap


def bad_input():
    require_error(TypeError, ["DistributedDataParallel", "Net"], lambda: register(Net()))
    require_error(TypeError, ["spec=5", "casq:bits=2"], lambda: register(wrap(Net), 5))
    require_error(ValueError, ["nosuch", "marsit"], lambda: register(wrap(Net), "nosuch"))
    require_error(ValueError, ["bits=7"], lambda: register(wrap(Net), "casq:bits=7"))
    require_error(ValueError, ["lanes=0"], lambda: register(wrap(Net), lanes=0))
    require_error(ValueError, ["compress_on='gpu'"], lambda: register(wrap(Net), compress_on="gpu"))
    require_error(ValueError, ["threads='2'"], lambda: register(wrap(Net), threads="2"))
    require_error(ValueError, ["deadline_seconds=0"], lambda: thinwire.register(wrap(Net), "dense", deadline_seconds=0))
    require_error(ValueError, ["rows="], lambda: register(wrap(Net), "rows=zen,dense=half", rows="zen"))
    model = wrap(Net)
    handle = register(model)
    require_error(RuntimeError, ["a communication hook already", "handle.set"], lambda: register(model))
    train(model, 1)
    require_error(ValueError, ["empty list of states"], lambda: handle.load_state_dict([]))
    handle.close()
    require_error(RuntimeError, ["closed"], lambda: train(model, 1))
    require_error(RuntimeError, ["closed"], lambda: handle.load_state_dict(handle.state_dict()))
    require_error(RuntimeError, ["closed"], lambda: handle.state_dict(consolidate=True))
    uneven = wrap(Net)
    register(uneven)
    with uneven.join(divide_by_initial_world_size=False):
        require_error(RuntimeError, ["divide_by_initial_world_size"], lambda: train(uneven, 1))


def ranks_that_differ():
    model = wrap(Net)
    register(model, "casq" if RANK == 0 else "half")
    message = require_error(RuntimeError, ["rank"], lambda: train(model, 1))
    assert "casq" in message or "half" in message, message
    require_error(ValueError, ["lanes=1 on rank 0", "lanes=2 on rank 1"], lambda: register(wrap(Net), lanes=1 + RANK))
    seeded = wrap(Net)
    register(seeded, "casq", seed=1 + RANK)
    require_error(RuntimeError, ["seed"], lambda: train(seeded, 1))


def subgroups():
    pairs = [dist.new_group([0, 1]), dist.new_group([2])]
    if RANK == 2:
        alone = DDP(Net(), process_group=pairs[1])
        register(alone, "casq")
        train(alone, 3)
        return
    torch.manual_seed(7)
    plain, ours = DDP(Net(), process_group=pairs[0]), DDP(Net(), process_group=pairs[0])
    ours.module.load_state_dict(plain.module.state_dict())
    register(ours)
    train(plain, 3)
    train(ours, 3)
    require_same(values_of(ours), values_of(plain), "a group of two of three ranks")


def a_rank_that_does_not_register():
    """The last one here: ranks have then registered different numbers of models."""
    model = wrap(Net)
    if RANK == 0:
        missing = ["within 1 s, missing: 1.", "has to call register"]
        require_error(RuntimeError, missing, lambda: thinwire.register(model, "dense", deadline_seconds=1.0))
    dist.barrier()


MISUSE = [bad_input, ranks_that_differ, a_rank_that_does_not_register]


def dies(how, victim, spec="ef_signsgd"):
    """A rank leaves in the fourth step; the others must say so. run.py checks what they print."""
    model = wrap(Net)
    handle = thinwire.register(model, spec, deadline_seconds=3.0)
    train(model, 3)
    before = handle.state_dict()["values"]
    if RANK == victim:
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}[how])
    try:
        train(model, 1, first=3)
    except RuntimeError as error:
        # What some buckets of the step delivered before is undone.
        after = handle.state_dict()["values"]
        for name, value in before.items():
            assert torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name], name
        print(f"survivor {RANK}: {error}", flush=True)
        os._exit(0)
    raise AssertionError("the loss of a rank went unnoticed")

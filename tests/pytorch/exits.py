"""Scenarios of processes that end with handles open: the last of their group, whose end is Python's own."""
import atexit
import os
import time

import torch.distributed as dist

import thinwire
from thinwire import ddp
from common import DEADLINE, RANK, Mixed, Net, batch, register, train, wrap

LIMIT_SECONDS = 20
KEPT = []


def threads():
    return len(os.listdir("/proc/self/task"))


def wrap_and_keep(make, spec):
    model = wrap(make)
    KEPT.append(model)
    register(model, spec)
    return model


def with_handles_open():
    """Python's end closes them, and no thread is left that could ask for Python's lock."""
    plain = wrap(Net)
    train(plain, 1)
    before = threads()
    for spec in ("dense", "casq", "top_k:ratio=0.05+zen", "power_sgd:rank=4"):
        train(wrap_and_keep(Net, spec), 2)
    train(wrap_and_keep(Mixed, "rows=zen,dense=casq"), 2)
    unfinished = wrap_and_keep(Net, "casq")
    with unfinished.no_sync():
        unfinished(batch(0)).square().mean().backward()
    hooked = wrap(Net)
    hook, state = thinwire.comm_hook("casq", deadline_seconds=DEADLINE)
    hooked.register_comm_hook(state, hook)
    train(hooked, 1)
    KEPT.append(hooked)
    assert threads() > before

    def nothing_is_left():
        end = time.monotonic() + LIMIT_SECONDS
        while threads() > before and time.monotonic() < end:
            time.sleep(0.01)
        if threads() > before:
            print(f"rank {RANK}: {threads() - before} threads are left", flush=True)
            os._exit(1)  # Python would end well

    # The last that is registered comes first.
    atexit.unregister(ddp._close_all)
    atexit.register(nothing_is_left)
    atexit.register(ddp._close_all)
    dist.barrier()


EXITS = [with_handles_open]

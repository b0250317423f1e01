"""One rank of start_test.py: start_worker.py PLACE VICTIM.
The victim ends itself at the place, within register."""
import contextlib
import datetime
import os
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire import _C, agreement, group

DEADLINE = 4.0
place, victim = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])


def end_here():
    if place == "before_the_clients":
        return end_beside()
    if place.endswith("before_the_keys") and victim == 0:
        # Torch 1.13 aborts a process that opens a client of a store whose server ends at this moment.
        store = agreement.store_client(dist.distributed_c10d._get_default_store(),
                                       datetime.timedelta(seconds=60))
        store.wait([f"thinwire/0,1,2/1/{other}" for other in range(1, dist.get_world_size())])
    os.kill(os.getpid(), signal.SIGSTOP if place.startswith("frozen") else signal.SIGKILL)


def end_beside():
    """As soon as rank 1 is about to connect to the store that this process serves: it says so there."""
    dist.distributed_c10d._get_default_store().wait(["rank 1 is about to connect"])
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_end():
    """On the others: returns when the store's server is gone and nothing listens in its place.
    The kernel closes the server's connections one after another: the last may be the one that listens."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.set("rank 1 is about to connect", "")
    with contextlib.suppress(RuntimeError, OSError):
        while _C.missing_keys(store, ["never"]):
            time.sleep(0.02)
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    with contextlib.suppress(OSError):
        while True:
            socket.create_connection(address, timeout=DEADLINE).close()
            time.sleep(0.02)


def ends(name, when, call):
    """From now on the method ends this process before or after its call-th call."""
    method = getattr(group.PrivateGroups, name)
    calls = []

    def replaced(*arguments, **options):
        calls.append(name)
        if when == "before" and len(calls) == call:
            end_here()
        result = method(*arguments, **options)
        if when == "after" and len(calls) == call:
            end_here()
        return result

    setattr(group.PrivateGroups, name, replaced)


PLACES = {
    "before_the_clients": ("_open", "before", 1),
    "before_the_keys": ("_agree_on_token", "before", 1),
    "before_the_groups": ("_agree_on_token", "after", 1),
    "between_the_groups": ("_open_lane", "before", 2),
    "after_the_groups": ("_open_lane", "after", 2),
    "frozen_between_the_groups": ("_open_lane", "before", 2),
    "frozen_before_the_keys": ("_agree_on_token", "before", 1),
}

dist.init_process_group("gloo")
torch.manual_seed(7)
model = DDP(nn.Linear(4, 3))
dist.barrier()
if rank == victim:
    ends(*PLACES[place])
elif place == "before_the_clients":
    wait_for_the_end()
try:
    thinwire.register(model, "casq", deadline_seconds=DEADLINE)
except RuntimeError as error:
    print(f"survivor {rank}: {error}", flush=True)
    sys.exit(3)

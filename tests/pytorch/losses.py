"""Scenarios of ranks that leave: killed, frozen, or with an error of their own. run.py checks what the others
print, and that they end."""
import datetime
import os
import signal
import socket
import struct
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from common import RANK, Net, require_error, train, wrap

HOW = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}


class Headless(Net):
    """Rank 0 does not use the last bias, which is in the first bucket."""

    def forward(self, x):
        head = self.layers[4]
        hidden = self.layers[:4](x)
        return hidden @ head.weight.T + (0 if RANK == 0 else head.bias)


def error_between_steps(which):
    """Of a script's own, on one rank: the others hear its words, long before the deadline."""
    model = wrap(Net)
    thinwire.register(model, "ef_signsgd", deadline_seconds=36000.0)
    train(model, 3)
    if RANK == which:
        raise ArithmeticError("given up")
    if which == 0:
        time.sleep(3)  # when they ask, its process is about to end, and the store with it
    words = [f"rank {which} has failed", "an error of its own: ArithmeticError: given up"]
    require_error(RuntimeError, words, lambda: train(model, 1, first=3))


def one_closes_after_an_error():
    """Of a backward, on all ranks, which their scripts catch. The others keep their handles open for longer
    than a rank may be silent, and nobody takes the one that has closed its own for dead."""
    model = wrap(Net)
    dist.barrier()  # a busy machine may start ranks further apart than the deadline
    handle = thinwire.register(model, "casq", deadline_seconds=2.0)
    train(model, 2)
    time.sleep(1)  # until all have said that they live

    def fail(_):
        raise ArithmeticError("caught")

    model.module.layers[0].weight.register_hook(fail)  # the last of backward
    require_error(ArithmeticError, ["caught"], lambda: train(model, 1))
    if RANK == 1:
        handle.close()
    time.sleep(8)  # twice the deadline, the patience of the watch, and some more
    dist.barrier()
    handle.close()


def host_leaves_early():
    """Rank 0, whose process serves the store, makes a step less. The others hear it long before the deadline,
    while its process stays for them."""
    model = wrap(Net)
    handle = thinwire.register(model, "dense", deadline_seconds=36000.0)
    train(model, 3)
    if RANK == 0:
        handle.close()
        return
    require_error(RuntimeError, ["rank 0 has not come", "it has left"], lambda: train(model, 1, first=3))


def error_before_register(which):
    """On one rank: the others, which wait for it in register, end with its text long before the deadline."""
    model = wrap(Net)
    if RANK == which:
        time.sleep(1)  # until they wait
        raise ArithmeticError("given up")
    words = [f"rank {which} has ended before it called register, which every rank has to call",
             "ArithmeticError: given up"]
    require_error(RuntimeError, words, lambda: thinwire.register(model, "dense", deadline_seconds=36000.0))


def host_frozen_before_register():
    """Rank 0, whose process serves the store: the others end at the deadline, and say whose it is."""
    model = wrap(Net)
    if RANK == 0:
        os.kill(os.getpid(), HOW["frozen"])
    time.sleep(1)  # until it is
    try:
        thinwire.register(model, "casq", deadline_seconds=4.0)
    except RuntimeError as error:
        print(f"survivor {RANK}: {error}", flush=True)
        sys.exit(0)
    raise AssertionError("a frozen host went unnoticed")


class WithStatistics(Net):
    """DDP sends the running mean by its own group, in every forward."""

    def __init__(self):
        super().__init__()
        self.layers.insert(1, torch.nn.BatchNorm1d(self.layers[0].out_features))


def dies_in_forward(how, victim, spec="casq", after=3):
    """A rank leaves or raises, and the others wait for it in DDP's own group. run.py checks what they print.
    The group's limit is far away, so that Thinwire has to end the wait; and there are two models.
    after: steps before that. After one there is one model, and its board has hardly opened."""
    deadline = {"killed": 600.0, "raises": 600.0, "frozen": 4.0}[how]
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(hours=10))
    models = [DDP(WithStatistics(), process_group=group, bucket_cap_mb=0.01)
              for _ in range(1 if after == 1 else 2)]
    for model, one in zip(models, (spec, "dense")):
        thinwire.register(model, one, deadline_seconds=deadline)
        train(model, after)
    if RANK == victim and how == "raises":
        raise ArithmeticError("given up")
    if RANK == victim:
        os.kill(os.getpid(), HOW[how])
    time.sleep(1)  # until its connections are closed
    for model in models:
        train(model, 1, first=after)
    raise AssertionError("the loss of a rank went unnoticed")


def dies(how, victim, spec="ef_signsgd", unused=False, static=False, ranks_per_host=1):
    """A rank leaves in the fourth step; the others must say so. run.py checks what they print.
    unused: it leaves when the first bucket's mean has come, and rank 0 does not use a parameter of that.
    static: the model's graph is, to DDP."""
    model = wrap(Headless, find_unused_parameters=True) if unused else wrap(Net, static_graph=static)
    handle = thinwire.register(model, spec, deadline_seconds=3.0, ranks_per_host=ranks_per_host)
    train(model, 3)
    before = handle.state_dict()["values"]

    def leave(gradient=None):
        if unused:
            time.sleep(1)  # for the means
        os.kill(os.getpid(), HOW[how])

    if RANK == victim and unused:
        next(model.parameters()).register_hook(leave)
    elif RANK == victim:
        leave()
    try:
        train(model, 1, first=3)
    except RuntimeError as error:
        # What some buckets of the step delivered before is undone.
        after = handle.state_dict()["values"]
        for name, value in before.items():
            assert (torch.equal(value, after[name]) if isinstance(value, torch.Tensor)
                    else value == after[name]), name
        print(f"survivor {RANK}: {error}", flush=True)
        os._exit(0)
    raise AssertionError("the loss of a rank went unnoticed")


def tcp_sockets():
    """Those of this process."""
    sockets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # it is none, or closed by now
            continue
        if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
            sockets.append(one)
    return sockets


def bytes_received(sockets):
    where = 128  # of tcpi_bytes_received
    return sum(struct.unpack("Q", one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, where + 8)[where:])[0]
               for one in sockets)


def dies_within_a_message(how, victim, spec, deadline, received):
    """A rank leaves when it has received so many bytes of a step, of a message only a part. Gloo ends no
    transfer that has begun. The survivors end as scripts do."""
    model = DDP(nn.Linear(4096, 4096, bias=False), bucket_cap_mb=100)
    thinwire.register(model, spec, deadline_seconds=deadline)
    sockets = tcp_sockets()
    for one in sockets:
        for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one.setsockopt(socket.SOL_SOCKET, kind, 16384)
    model(torch.ones(1, 4096)).square().mean().backward()
    time.sleep(1)  # until whose connections are whose is known

    def leave(until):
        while bytes_received(sockets) < until:
            pass
        os.kill(os.getpid(), HOW[how])

    if RANK == victim:
        until = bytes_received(sockets) + received
        threading.Thread(target=leave, args=(until,), daemon=True).start()
    try:
        for _ in range(2):  # some ranks may have all of the step's messages
            model(torch.ones(1, 4096)).square().mean().backward()
    except RuntimeError as error:
        print(f"survivor {RANK}: {error}", flush=True)
        raise SystemExit(0) from None
    raise AssertionError("the loss of a rank went unnoticed")

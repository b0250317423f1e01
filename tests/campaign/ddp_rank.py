"""One rank of the campaign under DistributedDataParallel,
forked from a process that has loaded torch already.

It trains "parameters" that are the sum of all means. After its last step it writes final-RANK: the elements
as three arrays of double, the sum of its own gradients over all steps, the sum of means, the residual. An
error ends it as it would end a user's script, after one more look at its state.
"""
import ctypes
import datetime
import hashlib
import io
import json
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire._C import freezes_variance, momentum_needs

SIZES = (700, 33, 1200, 5)
TIMES_LARGER = 300
_C = ctypes.CDLL(None)


def sizes_of(plan):
    """Of the parameters."""
    return tuple(size * (TIMES_LARGER if plan.way == "large" else 1) for size in SIZES)


def make_sockets_narrow():
    """Messages of large parameters do not fit into what this process's connections hold, so that a rank that
    ends leaves others with a part of one."""
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                        one.setsockopt(socket.SOL_SOCKET, kind, 16384)
        except OSError:  # it is none, or closed by now
            pass


class Given(nn.Module):
    """Parameters whose gradients are exactly what forward() is given."""

    def __init__(self, plan):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes_of(plan)])
        if plan.way == "buffers":
            self.register_buffer("seen", torch.zeros(3))

    def forward(self, gradients, unused):
        return sum((weight * gradient).double().sum()
                   for position, (weight, gradient) in enumerate(zip(self.weights, gradients))
                   if position not in unused)


def unused_of(plan, step, rank):
    """The parameters that the rank does not use in this step: one that nobody uses, or one of its own."""
    if plan.way != "unused" or step % 3 == 0:
        return ()
    return (step % len(SIZES),) if step % 3 == 1 or rank == step % plan.world else ()


def gradients_of(plan, step, rank):
    """What ranks have in common weighs as much as what each has of its own."""
    draws = [torch.Generator().manual_seed(1000 * step + who) for who in (0, rank + 1)]
    gradients = [sum(torch.randn(size, generator=draw) for draw in draws) / 2 for size in sizes_of(plan)]
    for position in unused_of(plan, step, rank):
        gradients[position].zero_()
    return gradients


def digest(values):
    """Of a state's values, whatever order they stand in."""
    result = hashlib.sha256()
    for name in sorted(values):
        value = values[name]
        result.update(name.encode())
        result.update(value.contiguous().numpy().tobytes() if torch.is_tensor(value)
                      else repr(value).encode())
    return result.hexdigest()


def undelivered(values):
    """Digest of the residuals that are not zero."""
    return digest({name: value for name, value in values.items() if name.startswith("residual/")
                   and value.any()})


class Events:
    """Lines to the keeper of the run, and its acknowledgements."""

    def __init__(self, folder, rank):
        self._out = os.open(f"{folder}/events-{rank}", os.O_WRONLY | os.O_CLOEXEC)
        self._in = os.open(f"{folder}/acks-{rank}", os.O_RDWR | os.O_CLOEXEC)

    def tell(self, event, **more):
        os.write(self._out, (json.dumps({"event": event, "at": time.monotonic(), **more}) + "\n").encode())

    def await_ack(self):
        os.read(self._in, 1)


def starve(allowance):
    """Leaves so many bytes of memory, and takes what the allocators still have in store."""
    with open("/proc/self/statm", encoding="ascii") as sizes:
        used = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + allowance, resource.getrlimit(resource.RLIMIT_AS)[1]))
    hoard = []
    try:
        while True:
            hoard.append(bytearray(1 << 16))
    except MemoryError:
        starve.hoard = hoard  # until the process ends


class NoScaler:
    """A GradScaler that scales nothing: with it, a step that is not finite is left out as a whole."""

    def get_scale(self):
        return 1.0


class Striker:
    """Does the planned fault when its place comes."""

    def __init__(self, plan, events, rank, armed):
        self._plan, self._events = plan, events
        self._mine = armed and plan.victim == rank

    def at(self, place, step=None, bucket=None):
        plan = self._plan
        if not self._mine or place != plan.place or plan.fault == "overflow":
            return
        if (step is not None and step != plan.at_step) or (bucket is not None and bucket != plan.at_bucket):
            return
        self._mine = False
        if plan.fault in ("kill", "stop", "pause", "away"):
            threading.Thread(target=self._later, args=(signal.SIGKILL if plan.fault == "kill"
                                                       else signal.SIGSTOP,), daemon=True).start()
            if plan.delay_us == 0:
                time.sleep(1)  # the signal comes here
            return
        self._events.tell("fault")
        self._now(plan.fault, plan.amount)

    def overflows(self, step):
        """Whether this rank's gradient is NaN in this step."""
        if not self._mine or self._plan.fault != "overflow" or step != self._plan.at_step:
            return False
        self._mine = False
        self._events.tell("fault")
        return True

    def _later(self, what):
        time.sleep(self._plan.delay_us / 1e6)
        self._events.tell("fault")
        os.kill(os.getpid(), what)

    def tell_flip(self):
        """Whose bit was turned over, if any was."""
        if _C.campaign_flipped():
            self._events.tell("flipped", port=_C.campaign_flipped())

    def _now(self, fault, amount):
        if fault == "exception":
            raise RuntimeError("the user's own exception")
        if fault == "memory":
            starve(amount)
        elif fault == "disk":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (amount, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        elif fault == "flip":
            self._events.await_ack()  # the keeper looks who has which connection
            _C.campaign_flip(ctypes.c_long(amount))
        elif fault == "clock":
            _C.campaign_clock(ctypes.c_long(amount))
        elif fault == "loss":
            _C.campaign_lose(ctypes.c_long(amount))
        else:
            self._events.await_ack()  # the keeper's: links


class Rank:
    def __init__(self, plan, folder, rank, start, steps, armed, deadline):
        self.plan, self.folder, self.rank, self.start, self.steps = plan, folder, rank, start, steps
        self.deadline = deadline
        self.events = Events(folder, rank)
        self.striker = Striker(plan, self.events, rank, armed)
        self.applied = torch.zeros(sum(sizes_of(plan)), dtype=torch.float64)
        self.done = start
        self.synchronized = start  # steps whose means have come; applying one may fail
        self.handle = None
        self.optimizer = None  # an Adam, where a system freezes its variance
        self.optimizer_done = start  # the steps that it has taken part in
        self.left_out = set()  # steps that were not finite
        self.last = None  # digest of the state at the end of the last whole step
        self.last_undelivered = None

    def train(self):
        plan = self.plan
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1024
        self.model = DistributedDataParallel(Given(plan), bucket_cap_mb=0.001,
                                             find_unused_parameters=plan.way == "unused")
        for position, weight in enumerate(self.model.module.weights):
            weight.register_hook(lambda gradient, position=position: self._in_backward(gradient, position))
        if any(one and freezes_variance(one) for one in (plan.spec, plan.set_spec)):
            self.optimizer = torch.optim.Adam(self.model.parameters())
        self.events.tell("ready", pid=os.getpid())
        self.events.await_ack()
        self.striker.at("register")
        resumed_after_set = plan.set_spec is not None and self.start > STEP_OF_SET
        spec = plan.set_spec if resumed_after_set else plan.spec
        self._fit_optimizer(spec)
        self.handle = thinwire.register(self.model, spec, seed=plan.seed + 1, lanes=plan.lanes,
                                        deadline_seconds=self.deadline, optimizer=self.optimizer,
                                        checked_sums=plan.checked,
                                        grad_scaler=NoScaler() if plan.fault == "overflow" else None)
        if plan.way == "large":
            make_sockets_narrow()
        if self.start:
            self._load()
        for step in range(self.start, self.steps):
            self._step(step)
        self._finish()
        self.striker.at("close")
        self.handle.close()

    def _fit_optimizer(self, spec):
        """Gives the Adam the momentum that the system needs it to have."""
        for _, option, value in momentum_needs(spec):
            for group in self.optimizer.param_groups if self.optimizer and option else ():
                group["betas"] = (value, group["betas"][1])

    def _in_backward(self, gradient, position):
        self.striker.at("step", self.done, position)
        return gradient

    def _step(self, step):
        if self.plan.set_spec is not None and step == STEP_OF_SET:
            self.striker.at("set")
            self._fit_optimizer(self.plan.set_spec)
            self.handle.set(self.plan.set_spec)
        self.model.zero_grad(set_to_none=True)
        gradients = gradients_of(self.plan, step, self.rank)
        unused = unused_of(self.plan, step, self.rank)
        if self.striker.overflows(step):
            gradients[self.plan.at_bucket][0] = math.nan
        if self.plan.way == "accumulate":
            quarters = [gradient / 4 for gradient in gradients]
            with self.model.no_sync():
                self.model(quarters, unused).backward()
            gradients = [gradient - quarter for gradient, quarter in zip(gradients, quarters)]
        self.model(gradients, unused).backward()
        self.synchronized = step + 1
        # What nobody uses has none.
        mean = torch.cat([torch.zeros(size) if weight.grad is None else weight.grad
                          for size, weight in zip(sizes_of(self.plan), self.model.module.weights)]).double()
        if torch.isfinite(mean).all():
            self.applied += mean
        else:
            self.left_out.add(step)
        self.done = step + 1
        state = self.handle.state_dict()
        self.last = digest(state["values"])
        self.last_undelivered = undelivered(state["values"])
        # The variance is frozen in earnest. What becomes of the parameters changes no gradient, see Given.
        if self.optimizer is not None and step not in self.left_out:
            self.optimizer.step()
        self.optimizer_done = self.done
        if self.done % self.plan.every == 0 or self.done == self.steps:
            self.striker.at("save", step)
            self._save(state)

    def _path(self, step):
        return f"{self.folder}/state-{self.rank}-{step}"

    def _save(self, state):
        partial = self._path(self.done) + ".partial"
        # At once: torch ends the process where a file cannot take more.
        buffer = io.BytesIO()
        optimizer = self.optimizer and self.optimizer.state_dict()
        torch.save({"thinwire": state, "applied": self.applied, "step": self.done, "optimizer": optimizer},
                   buffer)
        with open(partial, "wb") as file:
            file.write(buffer.getvalue())
        os.rename(partial, self._path(self.done))

    def _load(self):
        self.striker.at("load")
        saved = torch.load(self._path(self.start))
        self.applied = saved["applied"]
        if self.optimizer is not None:
            self.optimizer.load_state_dict(saved["optimizer"])
        self.handle.load_state_dict(saved["thinwire"])
        if self.handle.step != self.start:
            raise RuntimeError(f"a state of step {self.start} was saved, "
                               f"and goes on at step {self.handle.step}")

    def _finish(self):
        given = sum(torch.cat(gradients_of(self.plan, step, self.rank)).double()
                    for step in range(self.steps) if step not in self.left_out)
        values = self.handle.state_dict()["values"]
        residual = torch.cat([values.get(f"residual/weights.{i}", torch.zeros(size))
                              for i, size in enumerate(sizes_of(self.plan))]).double()
        with open(f"{self.folder}/final-{self.rank}", "wb") as file:
            for array in (given, self.applied, residual):
                file.write(array.numpy().tobytes())
        self.striker.tell_flip()
        self.events.tell("final")

    def inspect(self):
        """After an error: the state must be that of the last whole step, or be refused."""
        if self.handle is None or self.last is None:
            return
        try:
            state = self.handle.state_dict()
        except Exception as error:
            self.events.tell("inspected", refused=True, why=str(error)[:200])
            return
        if self.handle.step == self.synchronized > self.done:
            self.events.tell("inspected", refused=True, why="the script has not applied the last means")
            return
        # A system that was set has what moves of the old one's state, and is another's.
        is_set = self.plan.set_spec is not None and self.done == STEP_OF_SET
        now = undelivered(state["values"]) if is_set else digest(state["values"])
        whole = now == (self.last_undelivered if is_set else self.last) and self.handle.step == self.done
        self.events.tell("inspected", step=self.handle.step, done=self.done, whole=whole)
        if whole and not is_set and self.optimizer_done == self.done:
            self._save(state)


STEP_OF_SET = 5


def run(plan, folder, rank, start, steps, armed, deadline):
    """Exit status of the rank. Leaves by an exception where a script would."""
    torch.set_num_threads(1)
    one = Rank(plan, folder, rank, start, steps, armed, deadline)
    try:
        one.train()
    except Exception as error:
        # As the interpreter does at the end of a script.
        sys.last_value = error
        traceback.print_exc()
        sys.stderr.flush()
        try:
            one.striker.tell_flip()
            one.inspect()
        except Exception as error:  # a full disk is still full
            one.events.tell("inspection failed", why=str(error)[:200])
        return 1
    return 0

"""Keeps one run: starts its ranks, makes the faults that come from outside, resumes,
and collects what happened."""
import atexit
import ctypes
import dataclasses
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Set

import network
import trainer
from plan import ON_LINKS, STEPS, Plan

#: Seconds: beyond the deadline a hang; until all are connected; for a job that must go on by itself.
HANG, CONNECT, GO_ON = 10.0, 90.0, 60.0
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # of prctl


class RankDone(SystemExit):
    """Ends a forked rank as a script ends; the command lets it through to the interpreter."""


@dataclasses.dataclass
class Tools:
    """What the command was given: programs, and what this machine can do."""

    gloo_library: Any  # of gloo_rank.cc
    mpi_rank: str
    program: str  # thinwire
    images: str  # data that it trains on
    namespaces: bool
    shim: str


@dataclasses.dataclass
class RankEnd:
    pid: int = 0
    status: Optional[int] = None  # exit status, or the negative signal; None: did not end by itself
    after: Optional[float] = None  # seconds from the fault to the end
    text: str = ""
    inspected: Optional[Dict[str, Any]] = None
    uninspected: Optional[str] = None
    final: bool = False
    flipped_port: int = 0  # at the other end of the connection on which a bit was turned over; 0: none was


@dataclasses.dataclass
class Phase:
    ranks: List[RankEnd]
    struck: bool = False
    # Ranks by local port, when a flip was armed.
    ports: Dict[int, int] = dataclasses.field(default_factory=dict)
    ports_before: Set[int] = dataclasses.field(default_factory=set)  # those of DDP's own connections
    hung: List[int] = dataclasses.field(default_factory=list)
    leaked: List[str] = dataclasses.field(default_factory=list)
    alone: bool = False  # the stopped rank was left, and whoever waits for it as a parent, mpirun
    launcher_stayed: bool = False  # mpirun, although all ranks had ended
    seconds: float = 0.0

    def ended_well(self) -> bool:
        stays = self.hung or self.launcher_stayed
        return not stays and all(one.final and one.status == 0 for one in self.ranks)


def newest_common(folder: str, world: int) -> int:
    """The newest step of which all ranks have a state; 0: none."""
    steps = [set() for _ in range(world)]
    for name in os.listdir(folder):
        if name.startswith("state-") and not name.endswith(".partial"):
            _, rank, step = name.split("-")
            steps[int(rank)].add(int(step))
    return max(set.intersection(*steps), default=0)


class Job:
    """One phase: the ranks from their start to their end."""

    def __init__(self, plan: Plan, tools: Tools, folder: str, start: int, steps: int, armed: bool):
        self.plan, self.tools, self.folder = plan, tools, folder
        self.start, self.steps, self.armed = start, steps, armed
        self.world = plan.world
        # Where nothing is to happen, a busy machine shall not look like a fault.
        self.deadline = plan.deadline if armed else 60.0
        self.ends = [RankEnd() for _ in range(plan.world)]
        self.phase = Phase(self.ends)
        self.links = network.Links() if armed and tools.namespaces and plan.fault in ON_LINKS else None
        self.fault_at: Optional[float] = None
        self.failed_at: List[float] = []  # when processes ended badly
        self.later: List[Any] = []  # (when, action)
        self.running: Dict[int, List[int]] = {}  # ranks by process
        self.streams: Dict[int, int] = {}  # ranks by what carries their events
        self.spoken: Dict[int, List[int]] = {}  # ranks by what they write for people
        self.rest: Dict[int, bytes] = {}
        self.ready = 0
        self.owner = os.getpid()

    def run(self) -> Phase:
        begin = time.monotonic()
        for rank in range(self.world):
            for kind in ("events", "acks"):
                if not os.path.exists(f"{self.folder}/{kind}-{rank}"):
                    os.mkfifo(f"{self.folder}/{kind}-{rank}")
            self.streams[os.open(f"{self.folder}/events-{rank}",
                                 os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)] = rank
        self.acks = [os.open(f"{self.folder}/acks-{rank}", os.O_RDWR | os.O_CLOEXEC)
                     for rank in range(self.world)]
        try:
            self._start_all()
            self._attend(begin)
        except BaseException:
            if os.getpid() == self.owner:  # else a forked rank, on its way out
                self._end_all()
            raise
        else:
            self._end_all()
            for descriptor in [*self.streams, *self.spoken, *self.acks]:
                os.close(descriptor)
        self.phase.seconds = time.monotonic() - begin
        return self.phase

    # --- Start ----------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        if self.plan.kind == "mpi":
            self._fork(list(range(self.world)), self._become_mpirun)
            return
        for rank in range(self.world):
            become = {"ddp": self._become_ddp, "gloo": self._become_gloo, "train": self._become_trainer}
            self._fork([rank], become[self.plan.kind])
        if self.plan.kind == "train":
            self.ready = self.world  # it tells nothing

    def _fork(self, ranks: List[int], become) -> None:
        """A process for the ranks, in a network of its own where links are needed."""
        entered, joined, spoken = os.pipe(), os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            end_with_parent()
            os.dup2(spoken[1], 1)
            os.dup2(spoken[1], 2)
            if self.links:
                network.enter_host()
                os.write(entered[1], b"e")
                os.read(joined[0], 1)
            for descriptor in (*entered, *joined, *spoken, *self.spoken, *self.streams, *self.acks):
                os.close(descriptor)
            become(ranks[0])
            os._exit(127)
        self.running[pid] = ranks
        for rank in ranks:
            self.ends[rank].pid = pid
        if self.links:
            os.read(entered[0], 1)
            self.links.join(ranks[0], pid)
            os.write(joined[1], b"j")
        for descriptor in (*entered, *joined, spoken[1]):
            os.close(descriptor)
        os.set_blocking(spoken[0], False)
        self.spoken[spoken[0]] = ranks

    def _environment(self, rank: int) -> Dict[str, str]:
        master = f"{network.SUBNET}.1" if self.links else "127.0.0.1"
        result = {
            "MASTER_ADDR": master, "MASTER_PORT": str(self.port()), "RANK": str(rank),
            "WORLD_SIZE": str(self.world), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1",
            "TMPDIR": f"{self.folder}/tmp", "LD_PRELOAD": self.tools.shim,
            "GLOO_SOCKET_IFNAME": "eth0" if self.links else "lo",
        }
        return {**{key: value for key, value in os.environ.items() if not key.startswith("CAMPAIGN_")},
                **result}

    def port(self) -> int:
        """Of the rendezvous; where runs share the machine's loopback, one of this process's own."""
        return 29500 if self.tools.namespaces else 20000 + self.owner % 20000

    def _become_ddp(self, rank: int) -> None:
        import ddp_rank

        os.environ.update(self._environment(rank))
        status = ddp_rank.run(self.plan, self.folder, rank, self.start, self.steps, self.armed, self.deadline)
        if rank == self.plan.number % self.world:
            raise RankDone(status)
        # The others skip what takes the interpreter most of a rank's time: clearing all modules.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(status)

    def _session_words(self) -> List[str]:
        words = {**self.plan.words(), "deadline": int(self.deadline), "folder": self.folder,
                 "start": self.start, "steps": self.steps, "seed": self.plan.seed + 1}
        if not self.armed:
            words["victim"] = -1
        return [self.tools.mpi_rank, *(f"{key}={value}" for key, value in words.items()
                                       if key not in ("kind", "set_spec", "lanes", "way"))]

    def _become_gloo(self, rank: int) -> None:
        os.environ.update(self._environment(rank))
        words = [word.encode() for word in self._session_words()]
        status = self.tools.gloo_library.campaign_gloo_rank(len(words),
                                                            (ctypes.c_char_p * len(words))(*words))
        # The end of a program in C++, destructors included.
        ctypes.CDLL(None).exit(status)

    def _become_trainer(self, rank: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        words = trainer.words(self.plan, self.tools.program, self.tools.images, self.folder, self.deadline)
        os.execve(words[0], words,
                  {key: value for key, value in self._environment(rank).items() if key != "LD_PRELOAD"})

    def _become_mpirun(self, _: int) -> None:
        environment = {**self._environment(0), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        for name in ("RANK", "LOCAL_RANK"):
            del environment[name]
        # Shared memory only, more ranks than cores.
        options = ("--oversubscribe --mca btl self,vader --mca btl_vader_single_copy_mechanism none --mca "
                   "pml ob1 --mca plm isolated")
        os.execvpe("mpirun",
                   ["mpirun", *options.split(), "-n", str(self.world), *self._session_words()], environment)

    # --- Attend ---------------------------------------------------------------------------------------------

    def _limit(self, begin: float) -> float:
        """Until when the job has to have ended."""
        if not self.phase.struck:
            return begin + CONNECT + (GO_ON if self.ready == self.world else 0.0)
        patience = self.plan.hold + self.plan.deadline + HANG
        if not self.goes_on():
            return self.fault_at + patience
        # Where a rank has failed all the same, the others have to end as after any fault.
        # Small sockets are slow: a job with large messages was seen to take 73 s undisturbed.
        go_on = GO_ON * (4 if self.plan.way == "large" else 1)
        return min([self.fault_at + go_on, *self.failed_at[:1]]) + patience

    def goes_on(self) -> bool:
        return self.plan.fault in ("pause", "outage", "slow", "loss", "clock", "flip", "memory", "overflow")

    def _attend(self, begin: float) -> None:
        while self.running:
            now = time.monotonic()
            for when, action in [one for one in self.later if one[0] <= now]:
                self.later.remove((when, action))
                action()
            if (self.plan.kind == "train" and self.armed and self.fault_at is None
                and trainer.is_due(self.plan, self.folder)):
                self.fault_at = now + self.plan.delay_us / 1e6
                self.later.append((self.fault_at, lambda: self._strike_trainer(self.plan.victim)))
            if now > self._limit(begin):
                if self.plan.kind == "mpi" and self.ready == self.world and self._ranks_have_ended():
                    self.phase.launcher_stayed = True
                    return
                self.phase.hung = sorted(rank for ranks in self.running.values()
                                         for rank in ranks if not self._frozen(rank))
                return
            if self.running and all(self._frozen(ranks[0]) for ranks in self.running.values()):
                return
            if self._is_stopped() and self.plan.kind == "mpi" and self._others_are_gone():
                self.phase.alone = True
                return
            self._wait_a_little()
            self._reap()

    def _is_stopped(self) -> bool:
        return self.armed and self.plan.fault == "stop" and self.phase.struck

    def _frozen(self, rank: int) -> bool:
        return self._is_stopped() and rank == self.plan.victim and self.plan.kind != "mpi"

    def _others_are_gone(self) -> bool:
        """Under mpirun, which reaps its ranks. A rank that is stopped after the others have left leaves
        nobody who could notice."""
        pids = [one.pid for rank, one in enumerate(self.ends) if rank != self.plan.victim]
        return not any(os.path.exists(f"/proc/{pid}") for pid in pids)

    def _ranks_have_ended(self) -> bool:
        return all(_state_of(one.pid) in (None, "Z") for one in self.ends)

    def _wait_a_little(self) -> None:
        ready, _, _ = select.select([*self.streams, *self.spoken], [], [], 0.02)
        heard = False
        for descriptor in ready:
            data = os.read(descriptor, 65536)
            heard = heard or bool(data)
            if descriptor in self.spoken:
                for rank in self.spoken[descriptor]:
                    self.ends[rank].text += data.decode(errors="replace")
                continue
            lines = (self.rest.get(descriptor, b"") + data).split(b"\n")
            self.rest[descriptor] = lines.pop()
            for line in lines:
                self._hear(self.streams[descriptor], json.loads(line))
        if not heard:
            time.sleep(0.01)  # what nobody writes to any more is always ready

    def _hear(self, rank: int, event: Dict[str, Any]) -> None:
        end, kind = self.ends[rank], event["event"]
        if kind == "ready":
            end.pid = event["pid"]
            self.ready += 1
            if self.ready == self.world:
                if self.plan.fault == "flip" and self.plan.kind == "ddp":
                    self.phase.ports_before = set(self._ports())
                for one in range(self.world):
                    self._acknowledge(one)
        elif kind == "fault":
            self.phase.struck = True
            self.fault_at = event["at"]
            self._strike(rank)
        elif kind == "inspected":
            end.inspected = event
        elif kind == "inspection failed":
            end.uninspected = event["why"]
        elif kind == "final":
            end.final = True
        elif kind == "flipped":
            end.flipped_port = event["port"]

    def _acknowledge(self, rank: int) -> None:
        os.write(self.acks[rank], b"a")

    def _strike(self, rank: int) -> None:
        plan, pid = self.plan, self.ends[rank].pid
        if plan.fault in ("pause", "away"):
            self.later.append((time.monotonic() + plan.hold, lambda: self._signal(pid, signal.SIGCONT)))
        if plan.fault == "flip":
            self.phase.ports = self._ports()
            self._acknowledge(rank)
        if plan.fault not in ON_LINKS:
            return
        if self.links is not None:
            if plan.fault == "slow":
                self.links.slow(rank, pid, plan.amount)
            else:
                self.links.cut(rank)
                if plan.fault == "outage":
                    self.later.append((time.monotonic() + plan.hold, lambda: self.links.restore(rank)))
        self._acknowledge(rank)

    def _strike_trainer(self, rank: int) -> None:
        plan, pid = self.plan, self.ends[rank].pid
        if self.ends[rank].status is not None:
            return
        self.phase.struck = True
        self.fault_at = time.monotonic()
        if plan.fault in ("kill", "stop", "pause", "away"):
            self._signal(pid, signal.SIGKILL if plan.fault == "kill" else signal.SIGSTOP)
        elif plan.fault == "disk":
            trainer.fill_disk(pid, plan.amount)
        self._strike(rank)

    def _ports(self) -> Dict[int, int]:
        """Ranks by the local ports of their connections; of ranks that share this machine's addresses."""
        if self.plan.kind not in ("ddp", "gloo"):
            return {}
        return {port: rank for rank, end in enumerate(self.ends) for port in network.local_ports(end.pid)}

    @staticmethod
    def _signal(pid: int, what: int) -> None:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            pass

    def _reap(self) -> None:
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            now = time.monotonic()
            if status != 0:
                self.failed_at.append(now)
            for rank in self.running.pop(pid, []):
                self.ends[rank].status = os.waitstatus_to_exitcode(status)
                if self.plan.kind == "train":
                    self.ends[rank].final = (status == 0
                                             and (rank > 0 or os.path.exists(f"{self.folder}/final.json")))
                self.ends[rank].after = now - self.fault_at if self.fault_at is not None else None

    # --- End ------------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        for pid in list(self.running):
            # mpirun ends what it has started.
            self._signal(pid, signal.SIGTERM if self.plan.kind == "mpi" else signal.SIGKILL)
        end = time.monotonic() + 5
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                if time.monotonic() > end or not self.running:
                    self._kill_children()
                time.sleep(0.01)
            self.running.pop(pid, None)
        self._wait_a_little()
        # What ranks left behind was given to this process.
        self.phase.leaked += [f"files: {name}" for name in self._files_left()]
        if self.tools.namespaces:
            self.phase.leaked += [f"socket: {name}" for name in network.open_sockets()]

    def _kill_children(self) -> None:
        """Of processes that outlive those that the job began with, the subreaper is the parent."""
        time.sleep(0.3)
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as children:
            for pid in map(int, children.read().split()):
                if _state_of(pid) not in (None, "Z"):
                    if pid not in self.running:
                        self.phase.leaked.append(f"process: {pid}")
                    self._signal(pid, signal.SIGKILL)

    def _files_left(self) -> List[str]:
        places = [f"{self.folder}/tmp"] + (["/dev/shm"] if self.tools.namespaces else [])
        found = [os.path.join(place, name) for place in places for name in os.listdir(place)]
        return [] if self.phase.launcher_stayed else found  # of mpirun, which was killed


def _state_of(pid: int) -> Optional[str]:
    """The letter of proc(5); Z: it has ended. None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def keep(plan: Plan, tools: Tools, folder: str) -> Dict[str, Any]:
    """The whole of a run: phases by name, the step resumed from, and where the result lies; see judge.py."""
    os.makedirs(f"{folder}/tmp")
    # Processes whose parent is gone are given to this one.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    if tools.namespaces:
        network.enter_own()
    start = 0
    if plan.place == "load":
        first = Job(plan, tools, folder, 0, plan.at_step, armed=False).run()
        if not first.ended_well():
            return {"struck": first, "resumed": None, "from": None,
                    "broken": "the job before the fault did not end"}
        start = newest_common(folder, plan.world)
    struck = Job(plan, tools, folder, start, STEPS, armed=True).run()
    result = {"struck": struck, "resumed": None, "from": None, "broken": None}
    if not struck.ended_well():
        result["from"] = trainer.newest(folder) if plan.kind == "train" else newest_common(folder, plan.world)
        for rank in range(plan.world):
            final = f"{folder}/final-{rank}"
            if os.path.exists(final):
                os.remove(final)
        result["resumed"] = Job(plan, tools, folder, result["from"], STEPS, armed=False).run()
    return result


def undisturbed(plan: Plan, tools: Tools, folder: str) -> Phase:
    """The same run without a fault. In namespaces that the caller has entered."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(f"{folder}/tmp")
    return Job(plan, tools, folder, 0, STEPS, armed=False).run()

"""What a process tells the others when an exception ends it."""
import datetime
import multiprocessing
import multiprocessing.util
import os
import re
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from thinwire import at_end
from thinwire.extension import _C

_SPARE_TAG = 2**31 - 2  # of a message that nobody sends

_watched: List[int] = []  # this process's number, once it is

#: Ranks of the job that this process, which ends, asks nothing more: gone, silent, or ending themselves.
unasked: Set[int] = set()


def watch_child(close: Callable[[], object]) -> None:
    """Has ``close`` called at the end of a child of multiprocessing, which knows nothing of atexit."""
    if multiprocessing.parent_process() is not None and _watched != [os.getpid()]:
        _watched[:] = [os.getpid()]
        multiprocessing.util.Finalize(None, close, exitpriority=10)


def error_of_process() -> Optional[BaseException]:
    """The exception that ends this process, if one does."""
    error: Optional[BaseException] = getattr(sys, "last_value", None) or sys.exc_info()[1]
    if isinstance(error, SystemExit):  # torch.multiprocessing has caught what was behind it
        return error.__context__ if error.code else None
    return error


class Part(NamedTuple):
    """This process's part in the job of one handle."""

    engine: _C.Engine
    #: The job's numbers of the ranks of its group.
    ranks: Sequence[int]


#: Ranks of the job, why, whether their processes live, and whether they have said so themselves.
_Verdict = Tuple[List[int], str, bool, bool]


def tell(error: BaseException, parts: Sequence[Part]) -> None:
    """That this process ends by ``error``. Where a rank that is gone is behind it, stderr says which.

    The other ranks of each part hear the same: one engine's error ends all of them.
    """
    text = (str(error).splitlines() or [""])[0]
    found = next(filter(None, map(_verdict, parts)), None)
    is_of_connection = _is_of_connection(error)
    if found is None and is_of_connection:
        # This process stays for a while, and others would wait for what it does not send any more.
        close_connections()
        found = _find_lost(parts, text)
    if found is not None:
        culprits, _, alive, failed = found
        unasked.update(() if alive or failed else set(culprits) - {_own_rank()})
        if dist.is_initialized() and dist.get_rank() > 0 and any(0 in part.ranks for part in parts):
            # Rank 0 hears the same, tells those in register and ends: torch 1.13 aborts a process whose
            # client of the store is open at that moment. Where its script catches that and goes on, those in
            # register hear of it at their deadline.
            unasked.add(0)
    if found is None and not is_of_connection and dist.is_initialized() and dist.get_rank() > 0:
        # Before rank 0 hears of it and ends, for the same reason. A store that is silent costs 5 s here.
        at_end.tell_of_error()
    for part in parts:
        part.engine.tell_end()
        if found is not None:
            part.engine.end_with(_within(found, part.ranks))
        elif is_of_connection:
            who = f"rank {dist.get_rank()} of the job" if dist.is_initialized() else "a rank"
            why = f"{who} has ended, since a connection of another group is closed: {text}"
            part.engine.end_with(([], why, False, False))
        else:
            part.engine.fail(f"{type(error).__name__}: {text}")


def _own_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else -1


def _verdict(part: Part) -> Optional[_Verdict]:
    """Whom the engine has blamed for its own failure, if it has."""
    culprits, reason, alive, failed = part.engine.verdict()
    return ([part.ranks[rank] for rank in culprits], reason, alive, failed) if culprits else None


def _find_lost(parts: Sequence[Part], text: str) -> Optional[_Verdict]:
    asked: Set[int] = set()
    for part in parts:
        if asked.issuperset(part.ranks):
            continue
        asked.update(part.ranks)
        lost = part.engine.blame_lost_ranks()
        if lost:
            if lost.splitlines()[0] not in text:
                who = f"rank {part.ranks.index(dist.get_rank())}: " if dist.is_initialized() else ""
                print(f"thinwire: {who}{lost[len(who) if lost.startswith(who) else 0:]}", file=sys.stderr,
                      flush=True)
            return _verdict(part)
    return None


def _within(found: _Verdict, ranks: Sequence[int]) -> _Verdict:
    """With the numbers of a group of these ranks."""
    culprits, reason, alive, failed = found
    mine = [ranks.index(rank) for rank in culprits if rank in ranks]
    if mine:
        return mine, reason, alive, failed
    who = ", ".join(str(rank) for rank in culprits)
    return [], f"rank {who} of the job, outside of this model's group: {reason}", False, False


class _Watch(threading.Thread):
    """Ends this process's waits in torch's own groups when other ranks have ended by an error.

    DDP sends buffers, and a script what it likes, by groups that have a limit of their own, of 30 minutes
    unless it is given. Whoever waits in one for a rank that is frozen would wait so long, and the deadline of
    ``register`` would be no limit for the job.
    """

    _PERIOD = 0.5
    _PATIENCE = 1.5  # in which this rank meets the error by itself, if it comes to its next exchange

    def __init__(self, engines: Callable[[], Sequence[_C.Engine]]) -> None:
        super().__init__(name="thinwire-watch", daemon=True)
        self._engines = engines

    def run(self) -> None:
        left_behind = 0.0
        while left_behind < self._PATIENCE:
            time.sleep(self._PERIOD)
            engines = self._engines()
            if not engines:
                with _watches_lock:
                    # One that was registered meanwhile has found this thread alive.
                    if not self._engines():
                        _watches.pop(os.getpid(), None)
                        return  # the next registration starts another
                continue
            is_left_behind = any(engine.is_left_behind() for engine in engines)
            del engines  # they end with their handles, also while this thread sleeps
            left_behind = left_behind + self._PERIOD if is_left_behind else 0.0
        close_connections()


_watches: Dict[int, _Watch] = {}  # by process: a forked one has none yet
_watches_lock = threading.Lock()


def watch(engines: Callable[[], Sequence[_C.Engine]]) -> None:
    """Has this process's waits ended as _Watch says. engines: those that live, at any time."""
    with _watches_lock:
        one = _watches.get(os.getpid())
        if one is None or not one.is_alive():
            one = _watches[os.getpid()] = _Watch(engines)
            one.start()


def _is_of_connection(error: BaseException) -> bool:
    """Whether it is one of a Gloo group's connections, which does not say to which rank."""
    words = r"gloo/|Connection (?:closed|reset) by peer|Broken pipe|pair closure|Timed out waiting \d+ms"
    return isinstance(error, RuntimeError) and re.search(words, str(error)) is not None


def close_connections() -> None:
    """Those of all Gloo groups that torch knows. Thinwire's own are not among them."""
    world = getattr(distributed_c10d, "_world", distributed_c10d)
    for group in list(getattr(world, "pg_map", None) or getattr(world, "_pg_map", {})):
        _close_connections(group)


def _close_connections(group: dist.ProcessGroup) -> None:
    """Gloo closes all connections of a group in which a wait has timed out."""
    get_backend = getattr(group, "_get_backend", None)
    try:
        backend: object = group if get_backend is None else get_backend(torch.device("cpu"))
        gloo = getattr(backend, "wrapped_pg", backend)  # of TORCH_DISTRIBUTED_DEBUG=DETAIL
        if not isinstance(gloo, dist.ProcessGroupGloo):
            return
        for peer in range(gloo.size()):
            if peer != gloo.rank():
                _give_up_wait(gloo, peer)
    except RuntimeError:  # it has no connections between hosts' memory, or the script has destroyed it
        pass


def _give_up_wait(gloo: Any, peer: int) -> None:  # torch's stubs give a ProcessGroupGloo no recv
    try:
        gloo.recv([torch.empty(1)], peer, _SPARE_TAG).wait(datetime.timedelta(milliseconds=1))
    except RuntimeError:
        pass  # it was meant to fail

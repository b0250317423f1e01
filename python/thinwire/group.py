"""Process groups of Thinwire's own beside DDP's: the same ranks, other connections.

DDP's own group must not be shared: Thinwire's messages carry tags that would mix with those of others.
``new_group`` would not do either: every rank of the job has to call it, also those outside of a sub-group.
"""
import contextlib
import datetime
import hashlib
import inspect
import json
import os
import sys
import time
from typing import (Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypedDict,
                    TypeVar, Union, cast)

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from thinwire.extension import _C

_opened: Dict[str, int] = {}

# The communicator's deadline ends a wait; a group's own limit, once it is open, must not end it sooner.
_GROUP_TIMEOUT = datetime.timedelta(hours=24)

# Longer than a rank takes to write what it has concluded, shorter than anybody would mind.
_COURTESY = datetime.timedelta(seconds=5)

# A host that computes more than it has cores for answers late, and is not gone.
_SLOW_HOST = datetime.timedelta(seconds=10)

# What c10d raises when its store does not answer: in some versions, and for some calls,
# Python's TimeoutError.
_STORE_ERRORS = (RuntimeError, OSError)


def _brief(error: BaseException) -> str:
    """One line of what c10d says; newer versions go on with C++ frames."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _store_client(store: dist.Store, timeout: datetime.timedelta) -> dist.Store:
    """A client of the same store with a connection of its own:
    another user's wait on it does not block ours. Ends where the store's host does not answer in time."""
    _C.require_store_answer(store, f"thinwire/hello/{dist.get_rank()}", timeout.total_seconds())
    if hasattr(store, "clone"):
        clone: dist.Store = store.clone()
        clone.set_timeout(timeout)
        return clone
    base = store
    while isinstance(base, dist.PrefixStore):
        base = base.underlying_store
    if isinstance(base, dist.TCPStore):
        return dist.TCPStore(base.host, base.port, is_master=False, wait_for_workers=False, timeout=timeout)
    return store


def _served_by_agent() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _attempt() -> str:
    """What sets a restart's keys apart where torchrun's agent keeps one store for all of them.

    Such a version of torch sets its own keys apart by a prefix, which a client of our own has not. Newer ones
    set nothing apart: their users must have a store opened for each restart. There the count must not be a
    part of keys, since each host counts its own restarts.
    """
    if not _served_by_agent():
        return ""
    # Versions differ in this alone, and none says which it does.
    with contextlib.suppress(OSError, TypeError):
        if "/worker/attempt_" in inspect.getsource(sys.modules["torch.distributed.rendezvous"]):
            return f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/"
    return ""


@contextlib.contextmanager
def _in_words(what: str) -> Iterator[None]:
    """Around all that is asked of the rendezvous store: c10d's errors name a socket or a key, and nobody."""
    try:
        yield
    except _STORE_ERRORS as error:
        server = "the agent that serves it" if _served_by_agent() else "rank 0, whose process serves it,"
        raise RuntimeError(f"register could not {what} the rendezvous store: "
                           f"{server} is gone or silent ({_brief(error)})") from None


_Found = TypeVar("_Found")
#: What has to be the same on all ranks, by name.
Choices = Mapping[str, Union[int, float, str, None]]


class _Conclusion(TypedDict, total=False):
    """``token`` where all ranks go on; else ``text``, why they do not,
    and how many ranks ``came`` to read it."""

    token: str
    text: str
    came: int
    missing: bool
    hash: str
    parameters: List[List[Union[str, int]]]


class _Keys:
    """Keys under a prefix. Nothing here waits for a key; every error says whose process does not answer."""

    def __init__(self, client: dist.Store, prefix: str):
        self._store = dist.PrefixStore(prefix, client)

    def set(self, key: str, value: str) -> None:
        with _in_words("write to"):
            self._store.set(key, value)

    def set_if_absent(self, key: str, value: str) -> str:
        """What stands there afterwards."""
        with _in_words("write to"):
            standing = self._store.compare_set(key, "", value).decode()
            # Wakes those that wait for it, which torch 1.13's compare_set does not.
            self._store.set(key, standing)
            return standing

    def add(self, key: str, number: int) -> int:
        with _in_words("write to"):
            return self._store.add(key, number)

    def get(self, key: str) -> Optional[str]:
        with _in_words("read from"):
            return None if _C.missing_keys(self._store, [key]) else self._store.get(key).decode()

    def missing(self, keys: List[str]) -> List[int]:
        """Places of the keys that nobody has set."""
        with _in_words("read from"):
            return _C.missing_keys(self._store, keys)


def _poll(ask: Callable[[], _Found]) -> _Found:
    """What `ask` gives, a few seconds later at most."""
    end = time.monotonic() + _COURTESY.total_seconds()
    while True:
        found = ask()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.02)


def _lengthen(group: "dist.ProcessGroupGloo") -> None:
    """``_GROUP_TIMEOUT`` for a Gloo group that was opened with a shorter limit, so that opening it ends."""
    if hasattr(group, "_set_default_timeout"):
        with contextlib.suppress(RuntimeError):  # versions whose Gloo groups cannot
            group._set_default_timeout(_GROUP_TIMEOUT)
            return
    _C.lengthen_gloo_timeout(group)


class Signature:
    """What ranks compare of the models that they register: names, sizes and types of parameters, in order;
    and a hash of their values, where ranks hold the same."""

    def __init__(self, parameters: Sequence[Tuple[str, torch.Tensor]], values: Optional[int] = None):
        self.parameters: List[List[Union[str, int]]] = [[name, parameter.numel(), str(parameter.dtype)]
                                                        for name, parameter in parameters]
        first = (f", the first {self.parameters[0][0]!r} of {self.parameters[0][1]} elements"
                 if parameters else "")
        self.summary = f"{len(self.parameters)} parameters{first}"
        self.hash = hashlib.sha256(json.dumps(self.parameters).encode()).hexdigest()
        self.values = values

    def difference(self, theirs: List[List[Union[str, int]]], rank: int) -> str:
        """Where this rank's model first differs from that of ``rank``."""
        for place, (own, other) in enumerate(zip(self.parameters, theirs)):
            if own != other:
                return (f"parameter {place} is {own[0]!r} of {own[1]} elements ({own[2]}) here and "
                        f"{other[0]!r} of {other[1]} elements ({other[2]}) on rank {rank}")
        return f"there are {len(self.parameters)} parameters here and {len(theirs)} on rank {rank}"


def _numbering(ranks: List[int]) -> str:
    """What a message adds that numbers ranks within `ranks`; nothing where these are the job's numbers."""
    if ranks == list(range(len(ranks))):
        return ""
    few = ", ".join(str(rank) for rank in ranks[:64]) + (", ..." if len(ranks) > 64 else "")
    return f" (ranks 0 to {len(ranks) - 1} of this message are ranks {few} of the job)"


def _host_of_store(ranks: List[int]) -> int:
    """The rank, within `ranks`, whose process serves the default store; -1: none of them."""
    if _served_by_agent():
        return -1
    return ranks.index(0) if 0 in ranks else -1


def timeout_of(group: dist.ProcessGroup) -> float:
    """Seconds that the operations of DDP's own ``group`` may take."""
    backend: object = group
    get_backend = getattr(group, "_get_backend", None)
    if get_backend is not None:
        for device in ("cpu", "cuda"):
            try:
                backend = get_backend(torch.device(device))
                break
            except RuntimeError:  # the group has none for this kind of device
                pass
    backend = getattr(backend, "wrapped_pg", backend)  # of TORCH_DISTRIBUTED_DEBUG=DETAIL
    options = getattr(backend, "options", None)
    timeout = getattr(options, "_timeout", None) or distributed_c10d.default_pg_timeout
    return min(timeout.total_seconds(), _C.longest_deadline_seconds)


def _sums_by(group: dist.ProcessGroup, device: Optional[torch.device]) -> Optional[str]:
    """The engine that sums what lies on ``device`` beside Gloo: that of DDP's own ``group``,
    if it works there."""
    if device is None or _C.cuda == "no":
        return None
    if _C.cuda == "emulated":
        return "gloo"
    if device.type != "cuda":
        return None
    name = group._get_backend(device).name() if hasattr(group, "_get_backend") else dist.get_backend(group)
    return "nccl" if name == "nccl" else None


@contextlib.contextmanager
def _nccl_errors_left_to_us() -> Iterator[None]:
    """For the construction of a group: its watchdog would end the process at an error,
    before that says which rank is gone."""
    old_name = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 2)
    name = "NCCL_ASYNC_ERROR_HANDLING" if old_name else "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _read(text: Optional[str]) -> Dict[str, Any]:
    """What a rank has written as JSON; empty where no build of Thinwire has written it."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _conclusion_in(text: str) -> _Conclusion:
    found = _read(text)
    refusal = {"came": int, "text": str}
    kinds = next((kinds for kinds in ({"token": str}, {**refusal, "missing": bool},
                                      {**refusal, "hash": str, "parameters": list})
                  if found.keys() == kinds.keys()), None)
    if kinds is None or not all(isinstance(found[name], kind) for name, kind in kinds.items()):
        raise RuntimeError("what ranks have concluded in the rendezvous store is not what this build of "
                           f"Thinwire writes: {text[:80]!r}. Install the same version on all hosts")
    return cast(_Conclusion, found)


def _name_of(ranks: Sequence[int]) -> str:
    return ",".join(str(rank) for rank in ranks)


def _next_prefix(name: str) -> str:
    """Of the keys of the next registration over the ranks of this name."""
    return f"thinwire/{_attempt()}{name}/{_opened.get(name, 0) + 1}"


def tell_of_error(error: BaseException) -> None:
    """For a process that ends by ``error``: ranks that wait in register for this one, over all ranks of the
    job, end with its text. Not collective; rank 0, which may serve the store, stays for some seconds until
    the others have read it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    what = (str(error).splitlines() or [""])[0]
    text = (f"rank {rank} has ended before it called register, by an error of its own: "
            f"{type(error).__name__}: {what}")
    with contextlib.suppress(*_STORE_ERRORS):  # whoever looks finds the store gone
        store = distributed_c10d._get_default_store()
        client = _store_client(store, _COURTESY)
        keys = _Keys(client, _next_prefix(_name_of(range(size))))
        if rank > 0:
            keys.set(str(rank), json.dumps({"ended": text}))
        elif keys.missing(["0"]):
            keys.set_if_absent("conclusion", json.dumps({"missing": True, "came": size - 1, "text": text}))
            if any(place not in keys.missing([str(one) for one in range(size)]) for place in range(1, size)):
                _poll(lambda: keys.add("heard", 0) > 0)


class PrivateGroups:
    """``groups``, ``sockets`` and ``stores``: one Gloo group, its connections,
    and the store where it finds out who is to blame, per lane.

    ``ranks``: the job's numbers of the group's ranks.
    ``number``: which registration over these ranks it is, from 1 on.
    ``device_group``: sums vectors on ``device`` for all lanes; None, where they go through the host.
    ``sums_by`` names its engine.
    ``numbering``: what a message adds that numbers ranks within the group.
    """

    def __init__(self, ranks: List[int], lanes: int, deadline_seconds: float, device: Optional[torch.device],
                 sums_by: Optional[str], signature: Signature, choices: Choices) -> None:
        self.sums_by = sums_by
        self.ranks = ranks
        self.rank = ranks.index(dist.get_rank())
        self.size = len(ranks)
        self.store_host = _host_of_store(ranks)
        self.numbering = _numbering(ranks)
        # Kept: where the default group is destroyed before us, its server would go with it.
        self._default_store = distributed_c10d._get_default_store()
        self._deadline = datetime.timedelta(seconds=deadline_seconds)
        self.groups: List[dist.ProcessGroupGloo] = []
        self.sockets: List[List[str]] = []
        self.stores: List[dist.Store] = []
        self.device_group: Union[dist.ProcessGroupGloo, dist.ProcessGroupNCCL, None] = None
        try:
            self._open(ranks, lanes, device, signature, {"lanes": lanes, "sums_by": sums_by, **choices})
        except BaseException:
            self.close()
            raise

    def _open(self, ranks: List[int], lanes: int, device: Optional[torch.device], signature: Signature,
              choices: Choices) -> None:
        with _in_words("reach"):
            # A wait that was given up may be answered later, and its client takes that for the next answer.
            # So one client waits, and another asks without waiting.
            patience = max(self._deadline / 4, _SLOW_HOST)
            waiting = _store_client(self._default_store, patience)
            waiting.set_timeout(self._deadline)
            client = _store_client(self._default_store, patience)
            client.set_timeout(self._deadline)
            self._limit_answers(client, patience)
        token = self._agree_on_token(ranks, waiting, client, choices, signature)
        with _in_words("reach"):
            self._limit_answers(client, self._deadline)
        prefix = f"thinwire/{token}"
        watch = _C.StartWatch(
            store=dist.PrefixStore(prefix, client), rank=self.rank, size=self.size,
            store_host=self.store_host,
            deadline_seconds=self._deadline.total_seconds(),
        )
        watch.begins()
        try:
            for lane in range(lanes):
                store: dist.Store = dist.PrefixStore(f"{prefix}/{lane}", client)
                store.set_timeout(self._deadline)
                before = _C.open_tcp_sockets()
                self.groups.append(self._open_lane(dist.PrefixStore(f"{prefix}/{lane}/gloo", waiting)))
                self.sockets.append(_C.tcp_sockets_since(before))
                self.stores.append(store)
            # A rank that is refused what it registers may close its connections while
            # another still opens them.
            connected = dist.PrefixStore(f"{prefix}/connected", waiting)
            connected.set(str(self.rank), "")
            connected.wait([str(rank) for rank in range(self.size)], self._deadline)
            # From now on an answer may be as late as an interruption of the network that ranks survive.
            limit = 2 * self._deadline + datetime.timedelta(seconds=10)
            self._limit_answers(client, limit)
            for store in self.stores:
                store.set_timeout(limit)
            if self.sums_by is not None and device is not None:
                self._open_device_group(f"{prefix}/device", device)
        except (*_STORE_ERRORS, ValueError) as error:
            raise RuntimeError(
                f"not all ranks opened their connections in register: {watch.blame()}{self.numbering}. "
                f"This rank's own error was: {_brief(error)}"
            ) from None
        finally:
            watch.ends()

    def _open_lane(self, store: dist.Store) -> "dist.ProcessGroupGloo":
        """A group of Gloo's. Connecting waits for every other rank, and has no limit but the group's own."""
        store.set_timeout(self._deadline)
        group = dist.ProcessGroupGloo(store, self.rank, self.size, timeout=self._deadline)
        _lengthen(group)
        return group

    def _open_device_group(self, prefix: str, device: torch.device) -> None:
        # NCCL's threads ask their store now and then, also while another user of the same client would wait.
        store = dist.PrefixStore(prefix, _store_client(self._default_store, self._deadline))
        store.set_timeout(self._deadline)
        if self.sums_by == "gloo":
            self.device_group = self._open_lane(store)
            return
        # Any: torch's types of these two lack what is used here, in one version or another.
        options: Any = dist.ProcessGroupNCCL.Options()
        group: Any
        # Later than ours, which tells who is gone, but it also bounds how long the group takes to end.
        options._timeout = max(4 * self._deadline, datetime.timedelta(minutes=1))
        with _nccl_errors_left_to_us():
            group = self.device_group = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        # It connects in its first operation, in which ranks that miss one wait without an end:
        # none may have failed before.
        with torch.cuda.device(device):
            one = torch.ones(1, device=device)
            store.set(f"ready/{self.rank}", "")
            store.wait([f"ready/{rank}" for rank in range(self.size)], self._deadline)
            work = group.allreduce([one])
            end = time.monotonic() + self._deadline.total_seconds()
            while not work.is_completed():
                if time.monotonic() > end:
                    raise RuntimeError("NCCL did not connect all ranks within "
                                       f"{self._deadline.total_seconds():.0f} s: "
                                       "compress_on='cpu' does without it")
                time.sleep(0.001)
            work.wait()

    def _agree_on_token(self, ranks: List[int], waiting: dist.Store, client: dist.Store, choices: Choices,
                        signature: Signature) -> str:
        """What sets these groups' keys apart from those of other registrations, jobs and restarts:
        drawn by the first rank.

        It also holds all ranks' choices and models against its own, and tells every rank the same of them: so
        each rank reads one key, however many there are. choices: what has to be the same on all ranks.
        """
        name = _name_of(ranks)
        prefix = _next_prefix(name)
        self.number = _opened[name] = _opened.get(name, 0) + 1
        store = dist.PrefixStore(prefix, waiting)
        own = {"job": os.environ.get("THINWIRE_JOB", ""), "model": signature.summary,
               "hash": signature.hash, "values": signature.values, **choices}
        asking = _Keys(client, prefix)
        if asking.get(str(self.rank)) is not None:
            raise RuntimeError(
                f"rank {ranks[self.rank]} finds in the rendezvous store what "
                "it wrote before it was started again, so ranks would connect to processes that have ended. "
                "Give each start a store of its own: with torchrun, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "
                "and give --standalone or --rdzv_backend c10d; with a FileStore, another file"
            )
        asking.set(str(self.rank), json.dumps(own))
        if self.rank == 0:
            own_conclusion = self._conclude(ranks, store, asking, own, list(choices), signature)
            agreed = asking.set_if_absent("conclusion", json.dumps(own_conclusion))
            conclusion = _conclusion_in(agreed)
            if "token" not in conclusion:
                # The store may end with this process.
                _poll(lambda: asking.add("heard", 0) >= conclusion["came"])
        else:
            conclusion = _conclusion_in(self._read_conclusion(ranks, store, asking))
            with contextlib.suppress(RuntimeError):  # rank 0 may be away with its error
                asking.add("heard", 1)
        if "token" in conclusion:
            return conclusion["token"]
        if "missing" in conclusion:
            raise RuntimeError(conclusion["text"])
        text = conclusion["text"]
        if signature.hash != conclusion["hash"]:
            text += (f" On this rank, {ranks[self.rank]}: "
                     f"{signature.difference(conclusion['parameters'], ranks[0])}.")
        raise ValueError(text)

    def _limit_answers(self, client: dist.Store, limit: datetime.timedelta) -> None:
        """From now on a request is an error when its answer takes longer.
        Older versions take this from the latest wait alone."""
        key = f"thinwire/hello/{self.rank}"
        client.set(key, "")
        client.wait([key], limit)

    def _conclude(
        self, ranks: List[int], store: dist.Store, asking: _Keys, own: Choices, choices: List[str],
        signature: Signature
    ) -> _Conclusion:
        """On the first rank: the token, or why there is none."""
        keys = [str(rank) for rank in range(self.size)]
        try:
            store.wait(keys, self._deadline)
        except _STORE_ERRORS as error:
            return self._missing(ranks, asking, error)
        found = [_read(asking.get(key)) for key in keys]
        ended = next((str(other["ended"]) for other in found if other.keys() == {"ended"}), None)
        if ended is not None:
            return {"missing": True, "came": self.size - 1, "text": ended}
        for rank, other in enumerate(found):
            refused = self._refused(ranks, rank, other, own, choices)
            if refused is not None:
                return {"came": self.size - 1, "text": refused, "hash": signature.hash,
                        "parameters": signature.parameters}
        return {"token": os.urandom(8).hex()}

    def _refused(self, ranks: List[int], rank: int, other: Choices, own: Choices,
                 choices: List[str]) -> Optional[str]:
        """Why the first rank, which this is, cannot work with that rank."""
        if other.keys() != own.keys():
            return (f"rank {ranks[rank]} runs another build of Thinwire than rank {ranks[0]}: "
                    "what it wrote to the rendezvous store is not what this build writes. "
                    "Install the same version on all hosts")
        for choice in choices:
            if other[choice] != own[choice]:
                remedy = " compress_on, kind of device and build of Thinwire" if choice == "sums_by" else ""
                return (f"{choice}={own[choice]} on rank {ranks[0]}, "
                        f"{choice}={other[choice]} on rank {ranks[rank]}: give all ranks the same{remedy}")
        if other["job"] and own["job"] and other["job"] != own["job"]:
            return (f"rank {ranks[rank]} belongs "
                    f"to another job than rank {ranks[0]} (THINWIRE_JOB={other['job']} and {own['job']}): "
                    "two jobs were started at one MASTER_PORT, give each its own")
        if other["hash"] != own["hash"]:
            return (f"rank {ranks[rank]} registers a model of {other['model']}, "
                    f"where rank {ranks[0]} registers one of {own['model']}: "
                    "register the same models in the same order on all ranks.")
        if other["values"] != own["values"]:
            return (f"the parameters of the model that rank {ranks[rank]} registers have other values "
                    f"than on rank {ranks[0]}: register models in the same order on all ranks, and change "
                    "parameters on all ranks alike. check_replicas_every=0 compares no values")
        return None

    def _read_conclusion(self, ranks: List[int], store: dist.Store, asking: _Keys) -> str:
        """What the first rank has concluded, or another in its place where it does not come."""
        with contextlib.suppress(*_STORE_ERRORS):
            store.wait(["conclusion"], self._deadline)
        # The first rank's deadline may end a moment later than this one's.
        conclusion = _poll(lambda: asking.get("conclusion"))
        # One rank asks for all who is missing: each asking would be as many requests as
        # the square of the ranks.
        if conclusion is None and asking.add("asks who is missing", 1) > 1:
            conclusion = _poll(lambda: asking.get("conclusion"))
        if conclusion is None:
            conclusion = asking.set_if_absent("conclusion", json.dumps(self._missing(ranks, asking, None)))
        return conclusion

    def _missing(self, ranks: List[int], asking: _Keys, error: Optional[BaseException]) -> _Conclusion:
        """The conclusion where not all have come within the deadline."""
        missing = asking.missing([str(rank) for rank in range(self.size)])
        why = f" ({_brief(error)})" if error is not None else ""
        who = (", ".join(str(ranks[place]) for place in missing)
               or f"none any more, but rank {ranks[0]} did not go on{why}")
        text = (
            f"not all ranks registered the same model within {self._deadline.total_seconds():.0f} s, "
            f"missing: {who}. Every rank of the model's process group has to call register, "
            "for the same models in the same order. Look whether the missing ranks' processes live"
        )
        return {"missing": True,
                "came": self.size - 1 - len([place for place in missing if place > 0]), "text": text}

    def hand_over(self) -> None:
        """The engine owns the groups from now on: it ends their connections before others may do without the
        store that its process serves."""
        self.groups = []

    def close(self) -> None:
        self.groups = []
        self.stores = []
        if self.sums_by == "nccl" and self.device_group is not None:
            # Every sum was waited for; left to its destructor,
            # newer versions warn about a group that the user does not know.
            for name in ("abort", "_abort"):
                if hasattr(self.device_group, name):
                    getattr(self.device_group, name)()
                    break
        self.device_group = None


def open_private(
    group: dist.ProcessGroup, lanes: int, deadline_seconds: float, device: Optional[torch.device] = None,
    parameters: Sequence[Tuple[str, torch.Tensor]] = (), choices: Optional[Choices] = None,
    values: Optional[int] = None,
) -> PrivateGroups:
    """Groups of the ranks of ``group``, for gradients that all lie on ``device`` and are compressed there.
    Collective over those ranks alone.

    parameters: of the model that is registered, the same on all ranks. values: a hash of what they hold,
    where that has to be the same. choices: what else has to be the same, by name.

    Raises RuntimeError that names the ranks that do not come, or leave meanwhile, within the deadline and a
    few seconds; ValueError, at once, when ranks differ in what they register.
    """
    if hasattr(dist, "get_process_group_ranks"):
        ranks = list(dist.get_process_group_ranks(group))
    elif group == distributed_c10d._get_default_group():
        ranks = list(range(dist.get_world_size()))
    else:
        table: Dict[int, int] = distributed_c10d._pg_group_ranks[group]
        ranks = sorted(table, key=lambda rank: table[rank])
    return PrivateGroups(ranks, lanes, deadline_seconds, device, _sums_by(group, device),
                         Signature(parameters, values), choices or {})

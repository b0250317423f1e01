"""Process groups of Thinwire's own beside DDP's: the same ranks, other connections.

DDP's own group must not be shared: Thinwire's messages carry tags that would mix with those of others. ``new_group`` would not
do either: every rank of the job has to call it, also those outside of a sub-group.
"""
import contextlib
import datetime
import hashlib
import io
import json
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from thinwire import _C

_opened: Dict[str, int] = {}

# The communicator's deadline ends a wait; a group's own limit, once it is open, must not end it sooner.
_GROUP_TIMEOUT = datetime.timedelta(hours=24)

# Longer than a rank takes to write what it has concluded, shorter than anybody would mind.
_COURTESY = datetime.timedelta(seconds=5)


def _brief(error: BaseException) -> str:
    """One line of what c10d says; newer versions go on with C++ frames."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _store_client(store: dist.Store, timeout: datetime.timedelta) -> dist.Store:
    """A client of the same store with a connection of its own: another user's wait on it does not block ours."""
    if hasattr(store, "clone"):
        clone = store.clone()
        clone.set_timeout(timeout)
        return clone
    base = store
    while isinstance(base, dist.PrefixStore):
        base = base.underlying_store
    if isinstance(base, dist.TCPStore):
        return dist.TCPStore(base.host, base.port, is_master=False, wait_for_workers=False, timeout=timeout)
    return store


def _await_keys(asking: dist.Store, keys: List[str]) -> bool:
    """Waits for the keys, a few seconds at most, by asking again and again; whether they are there."""
    end = time.monotonic() + _COURTESY.total_seconds()
    while _C.missing_keys(asking, keys):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _lengthen(group: Any) -> None:
    """``_GROUP_TIMEOUT`` for a Gloo group that was opened with a shorter limit, so that opening it ends."""
    if hasattr(group, "_set_default_timeout"):
        with contextlib.suppress(RuntimeError):  # versions whose Gloo groups cannot
            group._set_default_timeout(_GROUP_TIMEOUT)
            return
    _C.lengthen_gloo_timeout(group)


class Signature:
    """What ranks compare of the models that they register: names, sizes and types of parameters, in order."""

    def __init__(self, parameters: Sequence[Tuple[str, torch.Tensor]]):
        self.parameters = [[name, parameter.numel(), str(parameter.dtype)] for name, parameter in parameters]
        first = f", the first {self.parameters[0][0]!r} of {self.parameters[0][1]} elements" if parameters else ""
        self.summary = f"{len(self.parameters)} parameters{first}"
        self.hash = hashlib.sha256(json.dumps(self.parameters).encode()).hexdigest()

    def difference(self, theirs: List[List[Any]], rank: int) -> str:
        """Where this rank's model first differs from that of ``rank``."""
        for place, (own, other) in enumerate(zip(self.parameters, theirs)):
            if own != other:
                return (f"parameter {place} is {own[0]!r} of {own[1]} elements ({own[2]}) here and {other[0]!r} of {other[1]} elements "
                        f"({other[2]}) on rank {rank}")
        return f"there are {len(self.parameters)} parameters here and {len(theirs)} on rank {rank}"


def _host_of_store(ranks: List[int]) -> int:
    """The rank, within `ranks`, whose process serves the default store; -1: none of them."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return -1
    return ranks.index(0) if 0 in ranks else -1


def timeout_of(group: Any) -> float:
    """Seconds that the operations of DDP's own ``group`` may take."""
    backend = group
    if hasattr(group, "_get_backend"):
        backend = group._get_backend(torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # of TORCH_DISTRIBUTED_DEBUG=DETAIL
    options = getattr(backend, "options", None)
    timeout = getattr(options, "_timeout", None) or distributed_c10d.default_pg_timeout
    return min(timeout.total_seconds(), _C.longest_deadline_seconds)


def _sums_by(group: Any, device: Optional[torch.device]) -> Optional[str]:
    """The engine that sums what lies on ``device`` beside Gloo: that of DDP's own ``group``, if it works there."""
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
    """For the construction of a group: its watchdog would end the process at an error, before that says which rank is gone."""
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


class PrivateGroups:
    """``groups``, ``sockets`` and ``stores``: one Gloo group, its connections, and the store where it finds out who is to blame, per lane.

    ``device_group``: sums vectors on ``device`` for all lanes; None, where they go through the host. ``sums_by`` names its engine.
    """

    def __init__(self, ranks: List[int], lanes: int, deadline_seconds: float, device: Optional[torch.device], sums_by: Optional[str],
                 signature: Signature, choices: Dict[str, Any]):
        self.sums_by = sums_by
        self.rank = ranks.index(dist.get_rank())
        self.size = len(ranks)
        self.store_host = _host_of_store(ranks)
        # Kept: where the default group is destroyed before us, its server would go with it.
        self._default_store = distributed_c10d._get_default_store()
        self._deadline = datetime.timedelta(seconds=deadline_seconds)
        self.groups: List[Any] = []
        self.sockets: List[List[str]] = []
        self.stores: List[dist.Store] = []
        self.device_group: Any = None
        try:
            self._open(ranks, lanes, device, signature, {"lanes": lanes, "sums_by": sums_by, **choices})
        except BaseException:
            self.close()
            raise

    def _open(self, ranks: List[int], lanes: int, device: Optional[torch.device], signature: Signature, choices: Dict[str, Any]) -> None:
        with self._naming_the_host("reach the rendezvous store"):
            # A wait that was given up may be answered later, and its client takes that for the next answer. So one client waits,
            # and another asks without waiting.
            waiting = _store_client(self._default_store, self._deadline)
            client = _store_client(self._default_store, self._deadline)
            self._limit_answers(client, max(self._deadline / 4, _COURTESY))
        token = self._agree_on_token(ranks, waiting, client, choices, signature)
        with self._naming_the_host("reach the rendezvous store"):
            self._limit_answers(client, self._deadline)
        prefix = f"thinwire/{token}"
        watch = _C.StartWatch(
            store=dist.PrefixStore(prefix, client), rank=self.rank, size=self.size, store_host=self.store_host,
            deadline_seconds=self._deadline.total_seconds(),
        )
        watch.begins()
        try:
            for lane in range(lanes):
                store = dist.PrefixStore(f"{prefix}/{lane}", client)
                store.set_timeout(self._deadline)
                before = _C.open_tcp_sockets()
                self.groups.append(self._open_lane(dist.PrefixStore(f"{prefix}/{lane}/gloo", waiting)))
                self.sockets.append(_C.tcp_sockets_since(before))
                self.stores.append(store)
            # A rank that is refused what it registers may close its connections while another still opens them.
            connected = dist.PrefixStore(f"{prefix}/connected", waiting)
            connected.set(str(self.rank), "")
            connected.wait([str(rank) for rank in range(self.size)], self._deadline)
            # From now on an answer may be as late as an interruption of the network that ranks survive.
            limit = 2 * self._deadline + datetime.timedelta(seconds=10)
            self._limit_answers(client, limit)
            for store in self.stores:
                store.set_timeout(limit)
            if self.sums_by is not None:
                self._open_device_group(f"{prefix}/device", device)
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"not all ranks opened their connections in register: {watch.blame()}. Ranks are those of the model's process group; "
                f"this rank's own error was: {_brief(error)}"
            ) from None
        finally:
            watch.ends()

    def _open_lane(self, store: dist.Store) -> Any:
        """A group of Gloo's. Connecting waits for every other rank, and has no limit but the group's own."""
        store.set_timeout(self._deadline)
        group = dist.ProcessGroupGloo(store, self.rank, self.size, timeout=self._deadline)
        _lengthen(group)
        return group

    @contextlib.contextmanager
    def _naming_the_host(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            host = f"rank {self.store_host}, whose process serves it, is gone or silent" if self.store_host >= 0 else "its server is gone or silent"
            raise RuntimeError(f"register could not {what}: {host} ({_brief(error)})") from None

    def _open_device_group(self, prefix: str, device: torch.device) -> None:
        # NCCL's threads ask their store now and then, also while another user of the same client would wait.
        store = dist.PrefixStore(prefix, _store_client(self._default_store, self._deadline))
        store.set_timeout(self._deadline)
        if self.sums_by == "gloo":
            self.device_group = self._open_lane(store)
            return
        options = dist.ProcessGroupNCCL.Options()
        # Later than ours, which tells who is gone, but it also bounds how long the group takes to end.
        options._timeout = max(4 * self._deadline, datetime.timedelta(minutes=1))
        with _nccl_errors_left_to_us():
            self.device_group = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        # It connects in its first operation, in which ranks that miss one wait without an end: none may have failed before.
        with torch.cuda.device(device):
            one = torch.ones(1, device=device)
            store.set(f"ready/{self.rank}", "")
            store.wait([f"ready/{rank}" for rank in range(self.size)], self._deadline)
            work = self.device_group.allreduce([one])
            end = time.monotonic() + self._deadline.total_seconds()
            while not work.is_completed():
                if time.monotonic() > end:
                    raise RuntimeError(f"NCCL did not connect all ranks within {self._deadline.total_seconds():.0f} s: compress_on='cpu' does without it")
                time.sleep(0.001)
            work.wait()

    def _agree_on_token(self, ranks: List[int], waiting: dist.Store, client: dist.Store, choices: Dict[str, Any],
                        signature: Signature) -> str:
        """What sets these groups' keys apart from those of other registrations, jobs and restarts: drawn by the first rank.

        It also holds all ranks' choices and models against its own, and tells every rank the same of them: so each rank reads
        one key, however many there are. choices: what has to be the same on all ranks.
        """
        name = ",".join(str(rank) for rank in ranks)
        number = _opened[name] = _opened.get(name, 0) + 1
        store = dist.PrefixStore(f"thinwire/{name}/{number}", waiting)
        own = {"job": os.environ.get("THINWIRE_JOB", ""), "model": signature.summary, "hash": signature.hash, **choices}
        with self._naming_the_host("write to the rendezvous store"):
            asking = dist.PrefixStore(f"thinwire/{name}/{number}", client)
            asking.set(str(self.rank), json.dumps(own))
        if self.rank == 0:
            conclusion = self._conclude(ranks, store, asking, own, list(choices), signature)
            with self._naming_the_host("write to the rendezvous store"):
                asking.set("conclusion", json.dumps(conclusion))
                if "token" not in conclusion:
                    _await_keys(asking, [f"heard/{rank}" for rank in conclusion["came"]])
        else:
            conclusion = self._read_conclusion(ranks, store, asking)
            with contextlib.suppress(RuntimeError):  # rank 0 may be away with its error
                asking.set(f"heard/{self.rank}", "")
        if "token" in conclusion:
            return conclusion["token"]
        if "missing" in conclusion:
            raise RuntimeError(conclusion["text"])
        text = conclusion["text"]
        if signature.hash != conclusion["hash"]:
            text += f" On this rank, {ranks[self.rank]}: {signature.difference(conclusion['parameters'], ranks[0])}."
        raise ValueError(text)

    def _limit_answers(self, client: dist.Store, limit: datetime.timedelta) -> None:
        """From now on a request is an error when its answer takes longer. Older versions take this from the latest wait alone."""
        key = f"thinwire/hello/{self.rank}"
        client.set(key, "")
        client.wait([key], limit)

    def _conclude(
        self, ranks: List[int], store: dist.Store, asking: dist.Store, own: Dict[str, Any], choices: List[str], signature: Signature
    ) -> Dict[str, Any]:
        """On the first rank: the token, or why there is none."""
        keys = [str(rank) for rank in range(self.size)]
        try:
            store.wait(keys, self._deadline)
        except RuntimeError as error:
            with self._naming_the_host("ask the rendezvous store which rank is missing"):
                missing = _C.missing_keys(asking, keys)
            came = [rank for rank in range(1, self.size) if rank not in missing]
            return {"missing": True, "came": came, "text": self._missing(ranks, missing, error)}
        for rank, key in enumerate(keys):
            refused = self._refused(ranks, rank, json.loads(asking.get(key)), own, choices)
            if refused is not None:
                return {"came": list(range(1, self.size)), "text": refused, "hash": signature.hash, "parameters": signature.parameters}
        return {"token": os.urandom(8).hex()}

    def _refused(self, ranks: List[int], rank: int, other: Dict[str, Any], own: Dict[str, Any], choices: List[str]) -> Optional[str]:
        """Why the first rank, which this is, cannot work with that rank."""
        for choice in choices:
            if other[choice] != own[choice]:
                remedy = " compress_on, kind of device and build of Thinwire" if choice == "sums_by" else ""
                return f"{choice}={own[choice]} on rank {ranks[0]}, {choice}={other[choice]} on rank {ranks[rank]}: give all ranks the same{remedy}"
        if other["job"] and own["job"] and other["job"] != own["job"]:
            return (f"rank {ranks[rank]} belongs to another job than rank {ranks[0]} (THINWIRE_JOB={other['job']} and {own['job']}): "
                    "two jobs were started at one MASTER_PORT, give each its own")
        if other["hash"] != own["hash"]:
            return (f"rank {ranks[rank]} registers a model of {other['model']}, where rank {ranks[0]} registers one of {own['model']}: "
                    "register the same models in the same order on all ranks.")
        return None

    def _read_conclusion(self, ranks: List[int], store: dist.Store, asking: dist.Store) -> Dict[str, Any]:
        try:
            store.wait(["conclusion"], self._deadline)
        except RuntimeError as error:
            with self._naming_the_host("ask the rendezvous store which rank is missing"):
                # The first rank's deadline may end a moment later than this one's.
                if not _await_keys(asking, ["conclusion"]):
                    missing = _C.missing_keys(asking, [str(rank) for rank in range(self.size)])
                    return {"missing": True, "text": self._missing(ranks, missing, error)}
        with self._naming_the_host("read from the rendezvous store"):
            return json.loads(asking.get("conclusion"))

    def _missing(self, ranks: List[int], missing: List[int], error: RuntimeError) -> str:
        who = ", ".join(str(ranks[place]) for place in missing) or f"none any more, but rank {ranks[0]} did not go on ({_brief(error)})"
        return (
            f"not all ranks registered the same model within {self._deadline.total_seconds():.0f} s, missing: {who}. Every rank of the "
            "model's process group has to call register, for the same models in the same order"
        )

    def gather(self, value: Any) -> List[Any]:
        """Every rank's ``value``, in order of ranks. Collective; between steps."""
        if not self.groups:
            raise RuntimeError("Thinwire's connections were closed: register the model again")
        buffer = io.BytesIO()
        torch.save(value, buffer)
        own = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        group = self.groups[0]
        self._wait(group.allgather([sizes], [torch.tensor([own.numel()])]))
        longest = int(max(size.item() for size in sizes))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: own.numel()] = own
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._wait(group.allgather([parts], [padded]))
        return [
            torch.load(io.BytesIO(part[: int(size.item())].numpy().tobytes()), weights_only=True)
            for part, size in zip(parts, sizes)
        ]

    def _wait(self, work: Any) -> None:
        try:
            work.wait(self._deadline)
        except RuntimeError as error:
            raise RuntimeError(
                f"not all ranks called state_dict(consolidate=True) within {self._deadline.total_seconds():.0f} s, or one is gone: {_brief(error)}"
            ) from None

    def close(self) -> None:
        self.groups = []
        self.stores = []
        if self.sums_by == "nccl" and self.device_group is not None:
            # Every sum was waited for; left to its destructor, newer versions warn about a group that the user does not know.
            for name in ("abort", "_abort"):
                if hasattr(self.device_group, name):
                    getattr(self.device_group, name)()
                    break
        self.device_group = None


def open_private(
    group: Any, lanes: int, deadline_seconds: float, device: Optional[torch.device] = None, parameters: Sequence[Tuple[str, torch.Tensor]] = (),
    choices: Optional[Dict[str, Any]] = None,
) -> PrivateGroups:
    """Groups of the ranks of ``group``, for gradients that all lie on ``device`` and are compressed there. Collective over those ranks alone.

    parameters: of the model that is registered, the same on all ranks. choices: what else has to be the same, by name. Raises RuntimeError that names the ranks that do not come, or leave
    meanwhile, within the deadline and a few seconds; ValueError, at once, when ranks differ in what they register.
    """
    if hasattr(dist, "get_process_group_ranks"):
        ranks = list(dist.get_process_group_ranks(group))
    elif group == distributed_c10d._get_default_group():
        ranks = list(range(dist.get_world_size()))
    else:
        table = distributed_c10d._pg_group_ranks[group]
        ranks = sorted(table, key=table.get)
    return PrivateGroups(ranks, lanes, deadline_seconds, device, _sums_by(group, device), Signature(parameters), choices or {})

"""Process groups of Thinwire's own beside DDP's: the same ranks, other connections.

DDP's own group must not be shared: Thinwire's messages carry tags that would mix with those of others. ``new_group`` would not
do either: every rank of the job has to call it, also those outside of a sub-group.
"""
import contextlib
import datetime
import io
import json
import os
import time
from typing import Any, Dict, Iterator, List, Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from thinwire import _C

_opened: Dict[str, int] = {}

# The communicator's deadline ends a wait; a group's own limit must not end it sooner.
_GROUP_TIMEOUT = datetime.timedelta(hours=24)


def _missing(store: Any, keys: List[str]) -> List[int]:
    """Places of the keys that nobody has set."""
    if hasattr(store, "check"):
        return [place for place, key in enumerate(keys) if not store.check([key])]
    # Older versions. Longer than any round trip: an answer that comes after its wait has ended would be taken for the next one's.
    limit = datetime.timedelta(seconds=1)
    missing: List[int] = []
    for place, key in enumerate(keys):
        try:
            store.wait([key], limit)
        except RuntimeError:
            missing.append(place)
    return missing


def _store_client(store: dist.Store) -> dist.Store:
    """A client of the same store with a connection of its own: another user's wait on it does not block ours."""
    if hasattr(store, "clone"):
        return store.clone()
    base = store
    while isinstance(base, dist.PrefixStore):
        base = base.underlying_store
    if isinstance(base, dist.TCPStore):
        return dist.TCPStore(base.host, base.port, is_master=False, wait_for_workers=False)
    return store


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

    def __init__(self, ranks: List[int], lanes: int, deadline_seconds: float, device: Optional[torch.device], sums_by: Optional[str]):
        self.sums_by = sums_by
        self.rank = ranks.index(dist.get_rank())
        self.size = len(ranks)
        self.store_host = _host_of_store(ranks)
        # Kept: where the default group is destroyed before us, its server would go with it.
        self._default_store = distributed_c10d._get_default_store()
        client = _store_client(self._default_store)
        self._deadline = datetime.timedelta(seconds=deadline_seconds)
        token = self._agree_on_token(ranks, {"lanes": lanes, "sums_by": sums_by})
        self.groups: List[Any] = []
        self.sockets: List[List[str]] = []
        self.stores: List[dist.Store] = []
        for lane in range(lanes):
            prefix = f"thinwire/{token}/{lane}"
            store = dist.PrefixStore(prefix, client)
            store.set_timeout(self._deadline)
            before = _C.open_tcp_sockets()
            self.groups.append(dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), self.rank, self.size, timeout=_GROUP_TIMEOUT))
            self.sockets.append(_C.tcp_sockets_since(before))
            self.stores.append(store)
        self.device_group: Any = None
        # A rank that is refused what it registers may close its connections while another still opens them.
        connected = dist.PrefixStore(f"thinwire/{token}/connected", client)
        connected.set(str(self.rank), "")
        connected.wait([str(rank) for rank in range(self.size)], self._deadline)
        if sums_by is not None:
            self._open_device_group(f"thinwire/{token}/device", device)

    def _open_device_group(self, prefix: str, device: torch.device) -> None:
        # NCCL's threads ask their store now and then, also while another user of the same client would wait.
        store = dist.PrefixStore(prefix, _store_client(self._default_store))
        store.set_timeout(self._deadline)
        if self.sums_by == "gloo":
            self.device_group = dist.ProcessGroupGloo(store, self.rank, self.size, timeout=_GROUP_TIMEOUT)
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

    def _agree_on_token(self, ranks: List[int], choices: Dict[str, Any]) -> str:
        """What sets these groups' keys apart from those of other registrations, jobs and restarts: drawn by the first rank.

        choices: what has to be the same on all ranks.
        """
        name = ",".join(str(rank) for rank in ranks)
        number = _opened[name] = _opened.get(name, 0) + 1
        store = dist.PrefixStore(f"thinwire/{name}/{number}", self._default_store)
        store.set(str(self.rank), json.dumps({"token": os.urandom(8).hex(), **choices}))
        keys = [str(rank) for rank in range(self.size)]
        try:
            store.wait(keys, self._deadline)
        except RuntimeError as error:
            missing = [ranks[rank] for rank in _missing(store, keys)]
            raise RuntimeError(
                f"not all ranks registered the same model within {self._deadline.total_seconds():.0f} s, missing: "
                f"{', '.join(str(rank) for rank in missing) or 'none any more'}. Every rank of the model's process group has to call "
                "register, for the same models in the same order"
            ) from error
        everyones = [json.loads(store.get(key)) for key in keys]
        for rank, one in enumerate(everyones):
            for name in choices:
                if one[name] != everyones[0][name]:
                    remedy = "" if name == "lanes" else " compress_on, kind of device and build of Thinwire"
                    raise ValueError(f"{name}={everyones[0][name]} on rank 0, {name}={one[name]} on rank {rank}: give all ranks the same{remedy}")
        return everyones[0]["token"]

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
                f"not all ranks called state_dict(consolidate=True) within {self._deadline.total_seconds():.0f} s, or one is gone: {error}"
            ) from error

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


def open_private(group: Any, lanes: int, deadline_seconds: float, device: Optional[torch.device] = None) -> PrivateGroups:
    """Groups of the ranks of ``group``, for gradients that all lie on ``device`` and are compressed there. Collective over those ranks alone."""
    if hasattr(dist, "get_process_group_ranks"):
        ranks = list(dist.get_process_group_ranks(group))
    elif group == distributed_c10d._get_default_group():
        ranks = list(range(dist.get_world_size()))
    else:
        table = distributed_c10d._pg_group_ranks[group]
        ranks = sorted(table, key=table.get)
    return PrivateGroups(ranks, lanes, deadline_seconds, device, _sums_by(group, device))

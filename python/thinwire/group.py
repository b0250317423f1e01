"""Process groups of Thinwire's own beside DDP's: the same ranks, other connections.

DDP's own group must not be shared: Thinwire's messages carry tags that would mix with those of others.
``new_group`` would not do either: every rank of the job has to call it, also those outside of a sub-group.
"""
import contextlib
import datetime
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from thinwire.agreement import (STORE_ERRORS, Agreement, Choices, Signature, brief, in_words, served_by_agent,
                                store_client)
from thinwire.extension import _C

# The communicator's deadline ends a wait; a group's own limit, once it is open, must not end it sooner.
_GROUP_TIMEOUT = datetime.timedelta(hours=24)

# A host that computes more than it has cores for answers late, and is not gone.
_SLOW_HOST = datetime.timedelta(seconds=20)


def _lengthen(group: "dist.ProcessGroupGloo") -> None:
    """``_GROUP_TIMEOUT`` for a Gloo group that was opened with a shorter limit, so that opening it ends."""
    if hasattr(group, "_set_default_timeout"):
        with contextlib.suppress(RuntimeError):  # versions whose Gloo groups cannot
            group._set_default_timeout(_GROUP_TIMEOUT)
            return
    _C.lengthen_gloo_timeout(group)


def _numbering(ranks: List[int]) -> str:
    """What a message adds that numbers ranks within `ranks`; nothing where these are the job's numbers."""
    if ranks == list(range(len(ranks))):
        return ""
    few = ", ".join(str(rank) for rank in ranks[:64]) + (", ..." if len(ranks) > 64 else "")
    return f" (ranks 0 to {len(ranks) - 1} of this message are ranks {few} of the job)"


def _host_of_store(ranks: List[int]) -> int:
    """The rank, within `ranks`, whose process serves the default store; -1: none of them."""
    if served_by_agent():
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
        self._devices: List[Any] = []  # while groups are opened: those of all of them, see _gloo_devices
        try:
            self._open(ranks, lanes, device, signature, {"lanes": lanes, "sums_by": sums_by, **choices})
        except BaseException:
            self.close()
            raise

    def _open(self, ranks: List[int], lanes: int, device: Optional[torch.device], signature: Signature,
              choices: Choices) -> None:
        with in_words("reach"):
            # A wait that was given up may be answered later, and its client takes that for the next answer.
            # So one client waits, and another asks without waiting.
            patience = max(self._deadline / 4, _SLOW_HOST)
            waiting = store_client(self._default_store, patience)
            waiting.set_timeout(self._deadline)
            client = store_client(self._default_store, patience)
            client.set_timeout(self._deadline)
        token = self._agree_on_token(ranks, waiting, client, choices, signature)
        with in_words("reach"):
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
            for store in self.stores:  # or it could stop unseen until its board's first beat
                _C.write_first_note(store, self.rank, self.store_host)
            connected.set(str(self.rank), "")
            connected.wait([str(rank) for rank in range(self.size)], self._deadline)
            # From now on an answer may be as late as an interruption of the network that ranks survive.
            limit = 2 * self._deadline + datetime.timedelta(seconds=10)
            self._limit_answers(client, limit)
            for store in self.stores:
                store.set_timeout(limit)
            if self.sums_by is not None and device is not None:
                self._open_device_group(f"{prefix}/device", device)
        except (*STORE_ERRORS, ValueError) as error:
            raise RuntimeError(
                f"not all ranks opened their connections in register: {watch.blame()}{self.numbering}. "
                f"This rank's own error was: {brief(error)}"
            ) from None
        finally:
            watch.ends()
            self._devices = []  # each ends with the last group that is of it

    def _open_lane(self, store: dist.Store) -> "dist.ProcessGroupGloo":
        """A group of Gloo's. Connecting waits for every other rank, and has no limit but the group's own."""
        store.set_timeout(self._deadline)
        # Any: torch's types have neither of these.
        gloo: Any = dist.ProcessGroupGloo
        if not self._devices:
            self._devices = _gloo_devices(gloo)
        options = gloo._Options()
        options._devices, options._timeout = self._devices, self._deadline
        options._threads = 2 * len(self._devices)  # as many as torch takes
        group: dist.ProcessGroupGloo = gloo(store, self.rank, self.size, options)
        _lengthen(group)
        return group

    def _open_device_group(self, prefix: str, device: torch.device) -> None:
        # NCCL's threads ask their store now and then, also while another user of the same client would wait.
        store = dist.PrefixStore(prefix, store_client(self._default_store, self._deadline))
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
        agreement = Agreement(ranks, self.rank, self._deadline, waiting, client)
        self.number = agreement.number
        return agreement.token(signature, choices)

    def _limit_answers(self, client: dist.Store, limit: datetime.timedelta) -> None:
        """From now on a request is an error when its answer takes longer.
        Older versions take this from the latest wait alone."""
        key = f"thinwire/hello/{self.rank}"
        client.set(key, "")
        client.wait([key], limit)

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


def _gloo_devices(gloo: Any) -> List[Any]:
    """Each has a thread that waits for its sockets, and the sockets of all lanes are of the same devices:
    one such thread for each lane would take cores from training, where ranks share them (up to 4 % of a step
    of DDP with two groups of its own)."""
    names = os.environ.get("GLOO_SOCKET_IFNAME")  # as torch takes it for groups of its own
    if not names:
        return [gloo.create_default_device()]
    return [gloo.create_device(interface=name) for name in names.split(",")]


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

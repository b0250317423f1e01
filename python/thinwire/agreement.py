"""What ranks agree on before they register a model, by keys of the rendezvous store.

Nothing here waits without a limit, and every error says whose process does not answer.
"""
import contextlib
import datetime
import hashlib
import inspect
import json
import os
import sys
import time
from typing import (Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, TypedDict,
                    TypeVar, Union, cast)

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from thinwire import parting
from thinwire.extension import _C

_opened: Dict[str, int] = {}

#: What a registration over all ranks has ended with: each reads it there, and nobody needs to be told of it.
_concluded: Set[str] = set()

# Longer than a rank takes to write what it has concluded, shorter than anybody would mind.
_COURTESY = datetime.timedelta(seconds=5)

# What c10d raises when its store does not answer: in some versions, and for some calls,
# Python's TimeoutError.
STORE_ERRORS = (RuntimeError, OSError)


def brief(error: BaseException) -> str:
    """One line of what c10d says; newer versions go on with C++ frames."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def store_client(store: dist.Store, timeout: datetime.timedelta) -> dist.Store:
    """A client of the same store with a connection of its own, which has been answered:
    another user's wait on it does not block ours. Raises RuntimeError where the store's host does not answer
    within ``timeout``, which is the client's own limit, too."""
    return _C.store_client(store, f"thinwire/hello/{dist.get_rank()}", timeout.total_seconds())


def served_by_agent() -> bool:
    """Whether torchrun's agent serves the rendezvous store, and not the process of rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _attempt() -> str:
    """What sets a restart's keys apart where torchrun's agent keeps one store for all of them.

    Such a version of torch sets its own keys apart by a prefix, which a client of our own has not. Newer ones
    set nothing apart: their users must have a store opened for each restart. There the count must not be a
    part of keys, since each host counts its own restarts.
    """
    if not served_by_agent():
        return ""
    # Versions differ in this alone, and none says which it does.
    with contextlib.suppress(OSError, TypeError):
        if "/worker/attempt_" in inspect.getsource(sys.modules["torch.distributed.rendezvous"]):
            return f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/"
    return ""


@contextlib.contextmanager
def in_words(what: str) -> Iterator[None]:
    """Around all that is asked of the rendezvous store: c10d's errors name a socket or a key, and nobody."""
    try:
        yield
    except STORE_ERRORS as error:
        if not served_by_agent():
            parting.unasked.add(0)
        server = "the agent that serves it" if served_by_agent() else "rank 0, whose process serves it,"
        raise RuntimeError(f"register could not {what} the rendezvous store: "
                           f"{server} is gone or silent ({brief(error)})") from None


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


class Keys:
    """Keys under a prefix. Nothing here waits for a key; every error says whose process does not answer."""

    def __init__(self, client: dist.Store, prefix: str):
        self._store = dist.PrefixStore(prefix, client)

    def set(self, key: str, value: str) -> None:
        with in_words("write to"):
            self._store.set(key, value)

    def set_if_absent(self, key: str, value: str) -> str:
        """What stands there afterwards."""
        with in_words("write to"):
            standing = self._store.compare_set(key, "", value).decode()
            # Wakes those that wait for it, which torch 1.13's compare_set does not.
            self._store.set(key, standing)
            return standing

    def add(self, key: str, number: int) -> int:
        with in_words("write to"):
            return self._store.add(key, number)

    def get(self, key: str) -> Optional[str]:
        with in_words("read from"):
            return None if _C.missing_keys(self._store, [key]) else self._store.get(key).decode()

    def missing(self, keys: List[str]) -> List[int]:
        """Places of the keys that nobody has set."""
        with in_words("read from"):
            return _C.missing_keys(self._store, keys)


def _poll(ask: Callable[[], _Found]) -> _Found:
    """What `ask` gives, a few seconds later at most."""
    end = time.monotonic() + _COURTESY.total_seconds()
    while True:
        found = ask()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.02)


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
    if (kinds is None or not all(isinstance(found[name], kind) for name, kind in kinds.items())
        or not all(map(_is_description, found.get("parameters", [])))):
        raise RuntimeError("what ranks have concluded in the rendezvous store is not what this build of "
                           f"Thinwire writes: {text[:80]!r}. Install the same version on all hosts")
    return cast(_Conclusion, found)


def _is_description(parameter: object) -> bool:
    """Whether it is one of Signature.parameters."""
    return (isinstance(parameter, list) and len(parameter) == 3
            and all(isinstance(value, kind) for value, kind in zip(parameter, (str, int, str))))


def _name_of(ranks: Sequence[int]) -> str:
    return ",".join(str(rank) for rank in ranks)


def _next_prefix(name: str) -> str:
    """Of the keys of the next registration over the ranks of this name."""
    return f"thinwire/{_attempt()}{name}/{_opened.get(name, 0) + 1}"


def _some_wait(keys: Keys, size: int) -> bool:
    """Whether a rank other than 0 has come to register: not those that ended without it, and wrote so."""
    missing = keys.missing([str(rank) for rank in range(size)])
    came = [rank for rank in range(1, size) if rank not in missing]
    return any("ended" not in _read(keys.get(str(rank))) for rank in came)


def tell_of_error(error: BaseException) -> None:
    """For a process that ends by ``error``: ranks that wait in register for this one, over all ranks of the
    job, end with its text. Not collective; rank 0, which may serve the store, stays for some seconds until
    the others have read it."""
    if str(error) in _concluded:
        return
    rank, size = dist.get_rank(), dist.get_world_size()
    what = (str(error).splitlines() or [""])[0]
    text = (f"rank {rank} has ended before it called register, which every rank has to call. It ended by an "
            f"error of its own: {type(error).__name__}: {what}")
    with contextlib.suppress(*STORE_ERRORS):  # whoever looks finds the store gone
        store = distributed_c10d._get_default_store()
        client = store_client(store, _COURTESY)
        keys = Keys(client, _next_prefix(_name_of(range(size))))
        if rank > 0:
            keys.set(str(rank), json.dumps({"ended": text}))
        elif keys.missing(["0"]):
            keys.set_if_absent("conclusion", json.dumps({"missing": True, "came": size - 1, "text": text}))
            if _some_wait(keys, size):
                _poll(lambda: keys.add("heard", 0) > 0)


class Agreement:
    """One registration over ``ranks``, of which this process is number ``rank``.

    ``number``: which registration over these ranks it is, from 1 on.
    ``waiting``: the client of the store that waits. ``client``: another one, which asks.
    """

    def __init__(self, ranks: List[int], rank: int, deadline: datetime.timedelta, waiting: dist.Store,
                 client: dist.Store) -> None:
        self._ranks = ranks
        self._rank = rank
        self._deadline = deadline
        name = _name_of(ranks)
        prefix = _next_prefix(name)
        self.number = _opened[name] = _opened.get(name, 0) + 1
        self._store = dist.PrefixStore(prefix, waiting)
        self._keys = Keys(client, prefix)

    def token(self, signature: Signature, choices: Choices) -> str:
        """What sets these groups' keys apart from those of other registrations, jobs and restarts:
        drawn by the first rank.

        It also holds all ranks' choices and models against its own, and tells every rank the same of them: so
        each rank reads one key, however many there are. choices: what has to be the same on all ranks.
        """
        own = {"job": os.environ.get("THINWIRE_JOB", ""), "model": signature.summary,
               "hash": signature.hash, "values": signature.values, **choices}
        if self._keys.get(str(self._rank)) is not None:
            raise RuntimeError(
                f"rank {self._ranks[self._rank]} finds in the rendezvous store what "
                "it wrote before it was started again, so ranks would connect to processes that have ended. "
                "Give each start a store of its own: with torchrun, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "
                "and give --standalone or --rdzv_backend c10d; with a FileStore, another file"
            )
        self._keys.set(str(self._rank), json.dumps(own))
        if self._rank == 0:
            own_conclusion = self._conclude(own, list(choices), signature)
            agreed = self._keys.set_if_absent("conclusion", json.dumps(own_conclusion))
            conclusion = _conclusion_in(agreed)
            if "token" not in conclusion:
                # The store may end with this process.
                _poll(lambda: self._keys.add("heard", 0) >= conclusion["came"])
        else:
            conclusion = _conclusion_in(self._read_conclusion())
            with contextlib.suppress(RuntimeError):  # rank 0 may be away with its error
                self._keys.add("heard", 1)
        if "token" in conclusion:
            return conclusion["token"]
        if "missing" in conclusion:
            self._note_conclusion(conclusion["text"])
            raise RuntimeError(conclusion["text"])
        text = conclusion["text"]
        if signature.hash != conclusion["hash"]:
            text += (f" On this rank, {self._ranks[self._rank]}: "
                     f"{signature.difference(conclusion['parameters'], self._ranks[0])}.")
        self._note_conclusion(text)
        raise ValueError(text)

    def _note_conclusion(self, text: str) -> None:
        # Of a part of the ranks, others may wait for this one in a registration over all.
        if len(self._ranks) == dist.get_world_size():
            _concluded.add(text)

    def _conclude(self, own: Choices, choices: List[str], signature: Signature) -> _Conclusion:
        """On the first rank: the token, or why there is none."""
        keys = [str(rank) for rank in range(len(self._ranks))]
        try:
            self._store.wait(keys, self._deadline)
        except STORE_ERRORS as error:
            return self._missing(error)
        found = [_read(self._keys.get(key)) for key in keys]
        ended = next((str(other["ended"]) for other in found if other.keys() == {"ended"}), None)
        if ended is not None:
            return {"missing": True, "came": len(self._ranks) - 1, "text": ended}
        for rank, other in enumerate(found):
            refused = self._refused(rank, other, own, choices)
            if refused is not None:
                return {"came": len(self._ranks) - 1, "text": refused, "hash": signature.hash,
                        "parameters": signature.parameters}
        return {"token": os.urandom(8).hex()}

    def _refused(self, rank: int, other: Choices, own: Choices, choices: List[str]) -> Optional[str]:
        """Why the first rank, which this is, cannot work with that rank."""
        first, its = self._ranks[0], self._ranks[rank]
        if other.keys() != own.keys():
            return (f"rank {its} runs another build of Thinwire than rank {first}: "
                    "what it wrote to the rendezvous store is not what this build writes. "
                    "Install the same version on all hosts")
        for choice in choices:
            if other[choice] != own[choice]:
                remedy = " compress_on, kind of device and build of Thinwire" if choice == "sums_by" else ""
                return (f"{choice}={own[choice]} on rank {first}, "
                        f"{choice}={other[choice]} on rank {its}: give all ranks the same{remedy}")
        if other["job"] and own["job"] and other["job"] != own["job"]:
            return (f"rank {its} belongs "
                    f"to another job than rank {first} (THINWIRE_JOB={other['job']} and {own['job']}): "
                    "two jobs were started at one MASTER_PORT, give each its own")
        if other["hash"] != own["hash"]:
            return (f"rank {its} registers a model of {other['model']}, "
                    f"where rank {first} registers one of {own['model']}: "
                    "register the same models in the same order on all ranks.")
        if other["values"] != own["values"]:
            return (f"the parameters of the model that rank {its} registers have other values "
                    f"than on rank {first}: register models in the same order on all ranks, and change "
                    "parameters on all ranks alike. check_replicas_every=0 compares no values")
        return None

    def _read_conclusion(self) -> str:
        """What the first rank has concluded, or another in its place where it does not come."""
        with contextlib.suppress(*STORE_ERRORS):
            self._store.wait(["conclusion"], self._deadline)
        # The first rank's deadline may end a moment later than this one's.
        conclusion = _poll(lambda: self._keys.get("conclusion"))
        # One rank asks for all who is missing: each asking would be as many requests as
        # the square of the ranks.
        if conclusion is None and self._keys.add("asks who is missing", 1) > 1:
            conclusion = _poll(lambda: self._keys.get("conclusion"))
        if conclusion is None:
            conclusion = self._keys.set_if_absent("conclusion", json.dumps(self._missing(None)))
        return conclusion

    def _missing(self, error: Optional[BaseException]) -> _Conclusion:
        """The conclusion where not all have come within the deadline."""
        missing = self._keys.missing([str(rank) for rank in range(len(self._ranks))])
        why = f" ({brief(error)})" if error is not None else ""
        who = (", ".join(str(self._ranks[place]) for place in missing)
               or f"none any more, but rank {self._ranks[0]} did not go on{why}")
        text = (
            f"not all ranks registered the same model within {self._deadline.total_seconds():.0f} s, "
            f"missing: {who}. Every rank of the model's process group has to call register, "
            "for the same models in the same order. Look whether the missing ranks' processes live"
        )
        return {"missing": True,
                "came": len(self._ranks) - 1 - len([place for place in missing if place > 0]), "text": text}

"""What the adapters for training frameworks share: finding the model,
saving and loading the state of all ranks, ending.

A framework saves rank 0's state only, and every rank has its own. So either every rank writes a file into the
framework's folder (``save``, ``load``), or rank 0 gets everybody's state for the framework's one file
(``state_dict``, ``load_state_dict``). Both keep the states as they are: as many ranks go on bit for bit,
another number of them conserves the residual.
"""
import contextlib
import io
import json
import logging
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire import state as saved_state
from thinwire.ddp import Handle, register
from thinwire.extension import _C, join_spec
from thinwire.interface import CommonOptions
from thinwire.variance import STEP_IS_PUT_BACK
from thinwire.wrappers import ddp_within, refuse_other_wrappers

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("thinwire")

#: Of the errors that ranks tell each other.
_LONGEST_ERROR = 1000
_told_alone = False


def _ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _refuse_unconnected(remedy: str) -> None:
    """Of one rank. Frameworks leave processes that a launcher has started to themselves, where they were not
    told to connect them."""
    started = os.environ.get("WORLD_SIZE", "")
    if started.isdecimal() and int(started) > 1:
        raise TypeError(f"{started} processes were started (WORLD_SIZE), and the framework has not connected "
                        f"them: each would train a model of its own. {remedy[:1].upper()}{remedy[1:]}")


def _tell_alone() -> None:
    global _told_alone
    if not _told_alone:
        _told_alone = True
        log.warning("Thinwire: there is one process, so nothing is synchronized and nothing compressed")


def _torch_optimizer(optimizer: object) -> Optional[torch.optim.Optimizer]:
    """The optimizer below a framework's wrapper."""
    for name in ("optimizer", "_optimizer"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, torch.optim.Optimizer):
            return _torch_optimizer(inner)
    # What is no optimizer, register refuses where it needs one.
    return cast(Optional[torch.optim.Optimizer], optimizer)


def refuse_clipping(spec: str, limit: float) -> None:
    """ValueError for a system whose mean is to reach the optimizer as it is delivered."""
    for system in _C.unclipped_systems(spec):
        raise ValueError(f"the framework clips gradients at {limit:g}, and what {system} delivers is to "
                         "reach the optimizer as it is: turn clipping off, or take another spec than "
                         f"{spec!r}")


class Synchronization:
    """A model that a framework has wrapped, synchronized by ``handle``; None where there is one process.

    Methods are for the thread that trains, between steps.
    Those that save and load are for all ranks together.
    """

    def __init__(self, model: object, spec: str, rows: Optional[str] = None, *, remedy: str,
                 require_state: bool = True, optimizer: object = None, clipped_at: Optional[float] = None,
                 **options: "Unpack[CommonOptions]") -> None:
        """Collective. remedy: what to do where the framework has not wrapped the model. require_state:
        whether loading a checkpoint without a state of Thinwire is an error. clipped_at: where
        the framework clips gradients, if it does. options: those of ``register``.
        Raises what that raises, and TypeError where several processes were started and are not connected."""
        self.handle: Optional[Handle] = None
        self._require_state = require_state
        self._group: Optional[dist.ProcessGroup] = None
        refuse_other_wrappers(model)
        if _ranks() == 1:
            _refuse_unconnected(remedy)
            _tell_alone()
            return
        wrapped = ddp_within(model)
        if wrapped is None:
            raise TypeError(f"the model, a {type(model).__name__}, "
                            f"is not wrapped in DistributedDataParallel: {remedy}")
        if clipped_at is not None and clipped_at > 0:
            refuse_clipping(join_spec(spec, rows), clipped_at)
        own = _torch_optimizer(optimizer)
        if hasattr(optimizer, "_optimizer_original_step_method"):  # Accelerate's, with a loss scale
            setattr(own, STEP_IS_PUT_BACK, True)
        self.handle = register(wrapped, spec, rows, optimizer=own, **options)

    @property
    def model(self) -> Optional[DistributedDataParallel]:
        """None when it is gone, too: nothing here keeps it."""
        return None if self.handle is None else self.handle._model()

    def is_over(self) -> bool:
        """Whether nothing is synchronized any more; False with one process."""
        return self.handle is not None and (self.handle._is_closed or self.handle._model() is None)

    def scalars(self) -> Dict[str, float]:
        """What the last step cost, for a logger; empty before the first, after the end,
        and with one process."""
        return {} if self.handle is None or self.is_over() else self.handle.scalars()

    def close(self) -> None:
        """Ends the handle. The state can still be saved."""
        if self.handle is not None and not self.handle._is_closed:
            self.handle.close()

    # --- One file per rank ----------------------------------------------------------------------------------

    def save(self, folder: str, name: str = "thinwire") -> None:
        """This rank's file in ``folder``. Files of a run with another number of ranks
        that was saved there go."""
        os.makedirs(folder, exist_ok=True)
        rank, ranks = (dist.get_rank(), _ranks()) if self.handle is not None else (0, 1)
        for number, paths in _files(folder, name).items():
            if number != ranks:
                for path in paths.values():
                    with contextlib.suppress(FileNotFoundError):  # another rank was faster
                        os.remove(path)
        _write({"state": None if self.handle is None else self.handle.state_dict()},
               os.path.join(folder, f"{name}.rank_{rank}_of_{ranks}.pt"))

    def load(self, folder: str, name: str = "thinwire") -> None:
        """What ``save`` of as many ranks, or of any other number of them, has written."""
        states: Optional[List[Any]] = None
        error = None
        try:
            states = self._read(folder, name)
        except Exception as caught:  # whatever it is: a rank that raised it alone would leave others waiting
            error = _first_line(caught)
        self._take(states, error)

    def _read(self, folder: str, name: str) -> Optional[List[Any]]:
        found = _files(folder, name)
        if not found:
            self._tell_missing(f"{folder} has no state of Thinwire ({name}.rank_*.pt): it was saved without "
                               "Thinwire, or not by all ranks")
            return None
        if len(found) > 1:
            several = " and of ".join(str(number) for number in sorted(found))
            raise ValueError(f"{folder} has states of Thinwire of {several} ranks: "
                             "delete those that are not of the last save")
        (saved_ranks, paths), = found.items()
        wanted = ([dist.get_rank()] if self.handle is not None and saved_ranks == _ranks()
                  else list(range(saved_ranks)))
        missing = [rank for rank in wanted if rank not in paths]
        if missing:
            raise ValueError(
                f"{folder} lacks {name}.rank_{missing[0]}_of_{saved_ranks}.pt, "
                f"the state of rank {missing[0]}. Every rank writes one: bring those of all hosts together, "
                "or resume from another checkpoint"
            )
        saved = [_read(paths[rank]) for rank in wanted]
        states = [one.get("state") if isinstance(one, Mapping) else one for one in saved]
        return None if states == [None] else states

    # --- One file for all -----------------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """All ranks' states on rank 0, for a file that it writes;
        for torch.distributed.checkpoint on all. Collective."""
        asked = saved_state.asked_by_dcp()
        if asked:
            return saved_state.pack([]) if self.handle is None else self.handle._for_dcp(asked)
        if self.handle is None:
            return {"ranks": 1, "states": None}
        buffer = io.BytesIO()
        torch.save(self.handle.state_dict(), buffer)
        parts = self._gather(buffer.getvalue())
        return {"ranks": _ranks(),
                "states": [torch.load(io.BytesIO(part), weights_only=True) for part in parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What ``state_dict`` gave on rank 0, or torch.distributed.checkpoint. Collective."""
        error = None
        try:
            state = saved_state.unpack(state)
        except ValueError as damage:
            state, error = {"states": None}, str(damage)
        if isinstance(state, list):  # empty: saved by one process
            state = {"states": state or None}
        states = state.get("states") if isinstance(state, Mapping) else []
        if states is not None and not states:
            error = "this is no state of Thinwire that rank 0 saved: load the file that the framework wrote"
        self._take(states, error)

    def missing(self, where: str) -> None:
        """A checkpoint without a state is loaded. Collective."""
        error = None
        try:
            self._tell_missing(where)
        except ValueError as caught:
            error = str(caught)
        self._take(None, error)

    # --- Both -----------------------------------------------------------------------------------------------

    def _tell_missing(self, what: str) -> None:
        if self.handle is None:
            return
        if self._require_state:
            raise ValueError(
                f"{what}. "
                "require_state=False goes on from it, with residuals that begin at zero"
            )
        if dist.get_rank() == 0:
            log.warning("Thinwire: %s: residuals begin at zero", what)

    def _take(self, states: Optional[List[Any]], error: Optional[str]) -> None:
        """Loads on all ranks or on none. None: there is nothing to load."""
        if self.handle is None:
            if error is not None:
                raise ValueError(error)
            if states:
                log.warning("Thinwire: there is one process now, "
                            "so what %d ranks had not delivered yet is dropped", len(states))
            return
        given: Any = states[0] if states is not None and len(states) == 1 else states
        step = None
        try:
            if given is not None and error is None:
                step = saved_state.for_rank(given, dist.get_rank(), _ranks())["values"].get("step")
        except Exception as caught:  # as in load
            error = _first_line(caught)
        self._agree(error, step)
        if given is not None:
            self.handle.load_state_dict(given)

    def _agree(self, error: Optional[str], step: object) -> None:
        """Raises ValueError on all ranks where one has an error, or a state of another step."""
        assert self.handle is not None
        mine = json.dumps([error and error[:_LONGEST_ERROR], step]).encode()
        everyones = [json.loads(one)
                     for one in self.handle._engine.gather("what ranks load", mine, 16 * _LONGEST_ERROR)]
        for rank, (theirs, _) in enumerate(everyones):
            if theirs is not None:
                raise ValueError(f"rank {rank} cannot load its state of Thinwire: {theirs}")
        for rank, (_, other) in enumerate(everyones):
            if other != everyones[0][1]:
                raise ValueError(
                    f"ranks 0 and {rank} have states of Thinwire of different steps, {everyones[0][1]} and "
                    f"{other}: give all the same checkpoint, one that was saved to its end"
                )

    def _gather(self, mine: bytes) -> List[bytes]:
        """Everyone's on rank 0, and nothing on the others. On its own connections,
        so that it works when the handle is closed."""
        if self._group is None and "gloo" not in dist.get_backend():
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        ranks = _ranks()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
        dist.all_gather(lengths, torch.tensor([len(mine)]), group=self._group)
        assert self.handle is not None
        longest = self.handle._longest_state()
        for rank, length in enumerate(lengths):
            if not 0 < int(length) <= longest:
                raise RuntimeError(f"rank {rank} announces a state of {int(length)} bytes, "
                                   f"and {longest} are the most")
        padded = torch.zeros(max(int(length) for length in lengths), dtype=torch.uint8)
        padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        parts = [torch.empty_like(padded) for _ in range(ranks)] if dist.get_rank() == 0 else None
        dist.gather(padded, parts, dst=0, group=self._group)
        return [part[: int(length)].numpy().tobytes() for part, length in zip(parts or [], lengths)]


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _write(value: object, path: str) -> None:
    """The whole file is there, or the one before, whenever the process or the machine stops."""
    with open(path + ".new", "wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _read(path: str) -> object:
    with open(path, "rb") as file:
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch says of each kind of damage something else
            raise ValueError(f"{path} is damaged ({type(error).__name__}: {_first_line(error)}): "
                             "resume from another checkpoint") from error


def _files(folder: str, name: str) -> Dict[int, Dict[int, str]]:
    """Paths of states in ``folder``, by number of ranks and rank."""
    found: Dict[int, Dict[int, str]] = {}
    for file in os.listdir(folder) if os.path.isdir(folder) else []:
        match = re.fullmatch(re.escape(name) + r"\.rank_(\d+)_of_(\d+)\.pt", file)
        if match:
            found.setdefault(int(match[2]), {})[int(match[1])] = os.path.join(folder, file)
    return found

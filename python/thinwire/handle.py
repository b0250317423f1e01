"""What ``register`` returns: the engine behind a model's hook, and its settings, reports and state."""
import atexit
import contextlib
import io
import sys
import weakref
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire import group as private_group
from thinwire import parting
from thinwire import state as saved_state
from thinwire.changes import ChangeLog
from thinwire.extension import _C, join_spec, readable, told_of_scheme
from thinwire.hook import (
    BufferWaits, CopiedHandle, HookState, StepsOfHook, copy_without_hook, costs_of, hook, hooked_models,
    scalars_of, sums_used_map, uncompiled_call,
)
from thinwire.interface import EngineReport, GradScaler, Report, Writer
from thinwire.largest import Largest
from thinwire.loss_scale import LossScale
from thinwire.replicas import ReplicaCheck
from thinwire.variance import FitsOptimizer
from thinwire.wrappers import named_parameters, was_trained

# In order of registration, which is the same on all ranks: closing waits for the others.
_live: List["weakref.ref[Handle]"] = []
# Handles end with their models, and engines when nobody uses them any more: the watch may, at that moment.
_engines: List["weakref.ref[_C.Engine]"] = []


def _remember(reference: "weakref.ref[Handle]") -> None:
    _live.append(reference)
    parting.watch_child(_close_all)
    parting.watch(_live_engines)


def _live_engines() -> List[_C.Engine]:
    return [engine for engine in (reference() for reference in list(_engines)) if engine is not None]


def _forget_engine(reference: "weakref.ref[_C.Engine]") -> None:
    if reference in _engines:
        _engines.remove(reference)


def _forget(reference: "weakref.ref[Handle]") -> None:
    if reference in _live:
        _live.remove(reference)


class Handle(StepsOfHook, FitsOptimizer):
    """What ``register`` returns. Lives as long as the model;
    methods are for the thread that trains, between steps."""

    #: Whether each rank gets its part of a mean alone.
    _reduce_scatter = False
    #: Whether what ranks keep equal is equal already when the handle is made.
    _begins_equal = True
    #: Whether the engine is given the gradients of all parameters, not those of a shard.
    _has_whole_gradients = True

    def __init__(
        self, model: DistributedDataParallel, parameters: List[Tuple[str, torch.nn.Parameter]], spec: str,
        seed: int, threads: int, lanes: int, deadline_seconds: float, step_limit_seconds: Optional[float],
        optimizer: Optional[torch.optim.Optimizer], grad_scaler: Optional[GradScaler], compress_on: str,
        check_replicas_every: int, checked_sums: bool, ranks_per_host: int = 1,
    ) -> None:
        self._model = weakref.ref(model)
        self._call = uncompiled_call()
        self._replicas = ReplicaCheck(self._replicated(model), check_replicas_every)
        self._optimizer = optimizer
        self._momentum_needs: List[Tuple[str, str, float]] = []
        self._loss_scale = None if grad_scaler is None else LossScale(grad_scaler)
        self._scale = None
        self._is_closed = False
        self._ran = ""
        self._trained_by_ddp = model not in hooked_models and was_trained(model)
        self._variance_is_held = self._variance_is_frozen = False
        self._writer = None
        self._every = 1
        self._logged = 0
        self._watchers = []
        self._last_index = None
        self._refusal = None
        self._deadline = deadline_seconds
        self._buckets_may_be_missing = bool(getattr(model, "skip_all_reduce_unused_params", False))
        self._shapes = {name: parameter.shape for name, parameter in parameters}
        # Those that were frozen after wrapping are still in DDP's buckets, and have state.
        self._frozen_shapes = {name: parameter.shape for name, parameter in self._in_buckets(model)
                               if name not in self._shapes}
        devices = {parameter.device for _, parameter in parameters} if compress_on == "device" else set()
        device = devices.pop() if len(devices) == 1 else None
        compares = self._begins_equal and check_replicas_every > 0
        values = _C.hash_tensors(list(self._replicated(model)()), 0) if compares else None
        self._private = private_group.open_private(
            self._group_of(model), lanes, deadline_seconds, device, parameters,
            {"check_replicas_every": check_replicas_every, "deadline_seconds": deadline_seconds,
             "step_limit_seconds": step_limit_seconds, "checked_sums": checked_sums,
             "grad_scaler": grad_scaler is not None, "ranks_per_host": ranks_per_host}, values)
        try:
            self._engine = self._start_engine(model, deadline_seconds, step_limit_seconds or 0, spec, seed,
                                              threads, compress_on, checked_sums, ranks_per_host)
        except BaseException:
            self._private.close()
            raise
        _engines.append(weakref.ref(self._engine, _forget_engine))
        self._rank, self._world_size = self._private.rank, self._private.size
        self._registration, self._numbering = self._private.number, self._private.numbering
        self._ranks_per_host = ranks_per_host
        self._changes = ChangeLog(self._engine, self._rank)
        # Forgotten when the handle ends.
        self._reference = weakref.ref(self, _forget)
        _remember(self._reference)
        try:
            self._fit_to_optimizer(self._engine.spec())
            self._take_hook(model)
        except (ValueError, RuntimeError):
            self.close()
            raise
        if self._loss_scale is not None and any(parameter.is_cuda for _, parameter in parameters):
            self._loss_scale.watch(model)

    def _start_engine(self, model: DistributedDataParallel, deadline: float, step_limit: float, spec: str,
                      seed: int, threads: int,
                      compress_on: str, checked_sums: bool, ranks_per_host: int) -> _C.Engine:
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise ValueError(f"seed={seed!r}: a whole number from 0 to 2**64 - 1 is needed")
        if self._optimizer is not None and not hasattr(self._optimizer, "param_groups"):
            raise ValueError(f"optimizer={self._optimizer!r}: a torch.optim.Optimizer is needed")
        on_device = compress_on == "device" and any(one.is_cuda for _, one in self._in_buckets(model))
        if checked_sums and on_device:
            raise ValueError("checked_sums=True: sums on CUDA devices carry no checksums, "
                             "give compress_on='cpu' as well")
        engine = _C.Engine(
            groups=self._private.groups,
            sockets=self._private.sockets,
            stores=self._private.stores,
            device_group=self._private.device_group,
            store_host=self._private.store_host,
            deadline_seconds=deadline,
            step_limit_seconds=step_limit,
            spec=spec,
            seed=seed,
            threads=threads,
            devices_compress=compress_on == "device",
            reduce_scatter=self._reduce_scatter,
            ranks_per_host=ranks_per_host,
            means_together=self._sums_used_map(model),
            checked_sums=checked_sums,
            numbering=self._private.numbering,
            # One that was frozen after it was wrapped is still in DDP's buckets.
            parameters=list(self._in_buckets(model)),
        )
        self._private.hand_over()
        return engine

    # --- What a handle of sharded models has in place of DDP's ----------------------------------------------

    def _group_of(self, model: DistributedDataParallel) -> dist.ProcessGroup:
        """Whose ranks exchange gradients."""
        group: dist.ProcessGroup = model.process_group
        return group

    def _sums_used_map(self, model: DistributedDataParallel) -> bool:
        return sums_used_map(model)

    def _largest(self, own: Sequence[int]) -> Largest:
        model = self._model()
        assert model is not None
        devices = {parameter.device for parameter in model.parameters()}
        device = next((one for one in devices if one.type == "cuda"), torch.device("cpu"))
        return Largest(own, self._group_of(model), device)

    def _in_buckets(self, model: DistributedDataParallel) -> Iterable[Tuple[str, torch.Tensor]]:
        """All that may be in a bucket, by name."""
        return named_parameters(model)

    def _replicated(self, model: DistributedDataParallel) -> Callable[[], Sequence[torch.Tensor]]:
        """What the ranks of the group keep equal."""
        parameters = [parameter for _, parameter in named_parameters(model)]
        return lambda: parameters

    def _take_hook(self, model: DistributedDataParallel) -> None:
        state = hooked_models.get(model)
        try:
            if state is None:
                state = HookState()
                takes_hook: Any = model  # the types that torch 1.13 gives for DDP lack the method
                takes_hook.register_comm_hook(state, hook)
                hooked_models[model] = state
            elif state.handle is not None and not state.handle._is_closed:
                raise RuntimeError("it is that of a handle which is not closed")
        except RuntimeError as error:
            remedy = ("handle.set(spec) of the handle that register returned changes the system"
                      if model in hooked_models else "leave out your own register_comm_hook")
            raise RuntimeError("the model has a communication hook already, and DDP takes one: "
                               f"{remedy} ({error})") from error
        state.handle = self
        state.on_host = all(one.device.type == "cpu" for one in model.parameters())
        # For auto, which may come later, too.
        if getattr(model, "broadcast_buffers", False) and next(model.buffers(), None) is not None:
            self._waits = BufferWaits(model)

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return (f"<thinwire.{type(self).__name__} of {readable(self.spec)!r}, rank {self._rank} of "
                f"{self._world_size}, step {self.step}{state}>")

    @property
    def spec(self) -> str:
        """What runs from the next step on: all options with their values."""
        return self._engine.spec()

    @property
    def step(self) -> int:
        """Steps that were synchronized: backward passes outside of ``no_sync()``."""
        return self._engine.step()

    def set(self, spec: str, rows: Optional[str] = None) -> None:
        """Another system from the next step on. On all ranks, between the same two steps.

        The old system's residuals become the new one's; one that keeps none delivers them in the next step.
        Raises ValueError for a bad spec, which changes nothing.
        """
        joined = join_spec(spec, rows)
        self._fit_to_optimizer(joined)
        for watcher in self._watchers:
            watcher.system_changes()
        self._engine.set_spec(joined)

    def explain(self) -> str:
        """What the system has decided by itself and why, a line for each decision, by steps;
        and in the last line what ran in the last step, or runs in the next one.

        Of ``auto``: which system it chose at which step, and how long a step took with each. Of ``guard``:
        which buckets another system got, and what was measured last. Begins anew with buckets that DDP makes
        anew, with a loaded state and with another system. Not collective; between steps.
        """
        lines = self._decided().splitlines()
        coming = readable(self.spec)
        buckets = self._costs()["buckets"]
        if not self._ran or not buckets:
            return "\n".join([*lines, f"no step was made yet; the next one, {self.step}, runs {coming}"])
        schemes = Counter(bucket["scheme"] for bucket in buckets if bucket["scheme"])
        ran = readable(self._ran)
        took = ", ".join(f"{told_of_scheme(scheme, ran)} in {count} of {len(buckets)} buckets"
                         for scheme, count in schemes.most_common())
        lines.append(f"the last step, {max(bucket['step'] for bucket in buckets)}, ran {ran}"
                     + (f": {took}" if took else ""))
        if self._world_size > 1 and self._ranks_per_host == self._world_size:
            lines.append(f"nothing was compressed: with ranks_per_host={self._ranks_per_host} all ranks are "
                         "on one host, which adds gradients up as they are")
        return "\n".join(lines + ([f"the next one runs {coming}"] if coming != ran else []))

    def _decided(self) -> str:
        """What the system itself says."""
        return self._engine.explain()

    def changes(self) -> List[Tuple[int, str]]:
        """What systems have changed by themselves since ``register``: steps and reasons.

        The same on all ranks; with ``ranks_per_host`` on those of one place. Rank 0 logs each when the next
        step begins, by the logger ``thinwire`` at level INFO. A writer that was given to ``log_to`` and has
        ``add_text`` gets them as well. Not collective; between steps.
        """
        self._collect_changes()
        return self._changes.all()

    def report(self) -> Report:
        """What synchronization cost this rank. Not collective; can be written as JSON.

        ``spec``, with all options; ``system``, the same without what has its default; ``rank``,
        ``world_size``, ``step``; ``changes``, as ``changes()`` gives them; ``engines``,
        which move ``frames`` and sum what lies on devices (``device_sums``; None where that goes through the
        host); ``buckets``, one per DDP bucket for the last step, each with the names of its ``parameters``
        and the device that it was ``compressed_on``; ``last_step``, sums over those; ``total``, sums over all
        steps; ``finite`` there says whether all were. Bytes are this rank's, seconds wall-clock times of a
        lane's thread: those of two lanes overlap, so sums can be longer than a step.
        """
        report = self._costs()
        for bucket, more in zip(report["buckets"], self._engine.buckets()):
            bucket["parameters"], bucket["compressed_on"] = more["parameters"], more["compressed_on"]
        return {
            "spec": self.spec,
            "system": readable(self.spec),
            "rank": self._rank,
            "world_size": self._world_size,
            "step": self.step,
            "engines": {"frames": "gloo", "device_sums": self._private.sums_by},
            "changes": self.changes(),
            **report,
        }

    def _costs(self) -> EngineReport:
        return costs_of(self._engine)

    def scalars(self) -> Dict[str, float]:
        """What the last step cost this rank, as ``log_to`` writes it: by name, ``thinwire/...``. Not
        collective. Empty before the first step, also where a state was loaded."""
        costs = self._costs()
        return scalars_of(costs) if costs["last_step"]["seconds_total"] > 0 else {}

    def log_to(self, writer: Optional[Writer], every: int = 1) -> None:
        """Writes scalars of every ``every``-th step to a TensorBoard SummaryWriter, or anything with its
        ``add_scalar(tag, value, step)``, when the next step begins; so the last step is not written.
        ``None`` ends it. Give it to one rank only."""
        if every < 1:
            raise ValueError(f"every={every!r}: a whole number from 1 is needed")
        if writer is not None and not callable(getattr(writer, "add_scalar", None)):
            raise ValueError(f"writer={writer!r} has no add_scalar(tag, value, step): "
                             "give a torch.utils.tensorboard.SummaryWriter, or None")
        self._writer, self._every = writer, every

    def state_dict(self, consolidate: bool = False) -> Dict[str, Any]:
        """What training must not lose at a restart: residuals and the systems' own state,
        keyed by parameter name, and the step.

        Each rank has its own: save all of them, ``torch.save(handle.state_dict(), f"thinwire.{rank}.pt")``.
        With ``consolidate=True`` (collective) every rank gets the same one, sums over ranks, to be saved
        once; a run resumed from it goes on correctly, though not bit for bit. ValueError with
        ``ranks_per_host``, where a rank's state is of its part alone.

        RuntimeError within backward, once a bucket of it is under way: a state is of the end of a step.

        ``torch.distributed.checkpoint`` saves and loads the handle itself,
        ``save({"thinwire": handle}, ...)``: it gets all ranks' states (collective),
        and as many ranks go on bit for bit.
        """
        asked = saved_state.asked_by_dcp()
        if asked:
            return self._for_dcp(asked)
        state = self._own_state()
        return dict(saved_state.merge(self._states_of_ranks(state)) if consolidate else state)

    def _for_dcp(self, asked: str) -> Dict[str, bytes]:
        return saved_state.pack([] if asked == "load" else self._states_of_ranks(self._own_state()))

    def _saved_scale(self) -> Optional[float]:
        """A whole number where it is one, None for 1: torch 1.13 reads no floats with weights_only."""
        if self._scale is None or self._scale == 1.0:
            return None
        return int(self._scale) if self._scale.is_integer() else self._scale

    def _own_state(self) -> saved_state.State:
        self._require_no_backward("state_dict")
        return {
            "format": saved_state.FORMAT,
            "rank": self._rank,
            "world_size": self._world_size,
            "loss_scale": self._saved_scale(),
            "parameters": {name: shape.numel() for name, shape in self._shapes_in_buckets().items()},
            "values": self._engine.state(),
        }

    def _states_of_ranks(self, mine: saved_state.State) -> List[saved_state.State]:
        """Everyone's, on every rank. Collective."""
        # Without the scale, which all have in common: torch 1.13 reads no float where it trusts nobody.
        buffer = io.BytesIO()
        torch.save({**mine, "loss_scale": None}, buffer)
        everyones = self._engine.gather("ranks' states", buffer.getvalue(), self._longest_state())
        return [cast(saved_state.State, {**torch.load(io.BytesIO(part), weights_only=True),
                                         "loss_scale": self._saved_scale()}) for part in everyones]

    def _longest_state(self) -> int:
        """Bytes that no rank's saved state exceeds: systems keep a few values for each of the gradient's."""
        elements = sum(shape.numel() for shape in (*self._shapes.values(), *self._frozen_shapes.values()))
        return 16 * 4 * elements + (16 << 20)

    def load_state_dict(self, state: saved_state.Given, strict: bool = True) -> None:
        """Takes over what ``state_dict`` gave, on all ranks before the same step.

        state: this rank's own of a run with as many ranks, which goes on bit for bit; or a consolidated one;
            or a list of all ranks' states. The latter two fit any number of ranks:
            residuals are split so that their sum is kept.
        strict: parameters that the model has and the state has not, or the other way round, are errors.
            Otherwise the former begin without a residual and the latter's values are dropped.

        Raises ValueError for a state of another rank or number of ranks, of other parameters or shapes, and
        RuntimeError for one of the same spec and another seed, and within backward; nothing has changed then.
        """
        self._take_over(saved_state.for_rank(saved_state.unpack(state), self._rank, self._world_size), strict)

    def _take_over(self, own: saved_state.State, strict: bool) -> None:
        self._require_no_backward("load_state_dict")
        self._collect_changes()  # a state begins with none
        shapes = {**self._shapes,
                  **{name: shape for name, shape in self._frozen_shapes.items() if name in own["parameters"]}}
        self._engine.load_state(saved_state.fit(own, shapes, strict))
        self._replicas.after_load()
        # The next step makes it the one that is in use here.
        self._scale = 1.0 if own["loss_scale"] is None else float(own["loss_scale"])
        self._logged = self.step  # what the report says is of before
        self._ran = ""

    def _shapes_in_buckets(self) -> Dict[str, torch.Size]:
        in_buckets = {name for bucket in self._engine.buckets() for name in bucket["parameters"]}
        return {**self._shapes,
                **{name: shape for name, shape in self._frozen_shapes.items() if name in in_buckets}}

    def __reduce__(self) -> Tuple[Callable[[], CopiedHandle], Tuple[()]]:
        # Newer versions of torch keep a hook's state among what a copy or a pickle of the model takes along.
        return copy_without_hook, ()

    def close(self) -> None:
        """Ends the threads and connections; a later step is an error until ``register`` is called again.
        Happens by itself at exit.

        ``state_dict()`` still gives the state of the last step.
        """
        self._is_closed = True
        if self._loss_scale is not None:
            self._loss_scale.unwatch()
        if self._waits is not None:
            self._waits.remove()
        _forget(self._reference)
        # Within `finally`, an exception is what closes it.
        self._engine.close(sys.exc_info()[1] is None)
        _forget_engine(weakref.ref(self._engine))
        self._private.close()
        for watcher in list(self._watchers):
            watcher.handle_closed()


@atexit.register
def _close_all() -> None:
    # What has ended this process, where an exception has: the others hear of it, and are not waited for.
    error = parting.error_of_process()
    handles = [handle for handle in (reference() for reference in list(_live)) if handle is not None]
    with contextlib.ExitStack() as stack:  # each is closed, whatever is raised
        for engine in _live_engines():
            stack.callback(engine.close, error is None)
        for handle in reversed(handles):
            stack.callback(handle.close)
        if error is not None:
            parting.tell(error, [parting.Part(handle._engine, handle._private.ranks) for handle in handles])

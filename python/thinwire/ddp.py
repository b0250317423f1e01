"""The hook on DistributedDataParallel: ``register`` and the handle that it returns."""
import atexit
import functools
import io
import json
import warnings
import weakref
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, NoReturn, Optional, Sequence,
                    Tuple, Union, cast)

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire import _C
from thinwire import group as private_group
from thinwire import state as saved_state
from thinwire import variance
from thinwire.changes import ChangeLog
from thinwire.interface import EngineReport, GradScaler, Report, Writer
from thinwire.loss_scale import LossScale
from thinwire.replicas import ReplicaCheck
from thinwire.wrappers import ddp_within, named_parameters, refuse_other_reducers, refuse_other_wrappers

if TYPE_CHECKING:
    from thinwire.html_report import HtmlReport

# In order of registration, which is the same on all ranks: closing waits for the others.
_live: List["weakref.ref[Handle]"] = []


# What torch calls with every bucket: it takes one hook for the life of a model.
_hooked: "weakref.WeakKeyDictionary[DistributedDataParallel, HookState]" = weakref.WeakKeyDictionary()


def _forget(reference: "weakref.ref[Handle]") -> None:
    if reference in _live:
        _live.remove(reference)


def systems() -> List[Dict[str, str]]:
    """Every system and baseline: ``name``, ``summary``,
    ``paper`` and ``formula`` of the bytes that a rank sends."""
    return _C.systems()


def join_spec(spec: str, rows: Optional[str]) -> str:
    """One spec for both kinds of gradients: ``rows`` for those of sparse embeddings,
    ``spec`` for all others."""
    if "," not in spec and "rows=" not in spec and "dense=" not in spec:
        return f"rows={rows or 'zen'},dense={spec}"
    if rows is not None:
        raise ValueError(f"spec {spec!r} names systems for rows and for dense gradients itself: "
                         f"leave out rows={rows!r}")
    return spec


def _require_arguments(
    model: object, spec: object, threads: object, lanes: object, limits: Mapping[str, Optional[float]],
    compress_on: object,
    check_replicas_every: object,
) -> None:
    """What ``register`` says of arguments that cannot be."""
    refuse_other_wrappers(model)
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"register takes a DistributedDataParallel model, not {type(model).__name__}: wrap it first, "
            "thinwire.register(DistributedDataParallel(model), ...)"
        )
    refuse_other_reducers(model)
    require_options(spec, threads, lanes, limits, compress_on, check_replicas_every)


def require_options(spec: Any, threads: Any, lanes: Any, limits: Mapping[str, Any], compress_on: Any,
                    check_replicas_every: Any) -> None:
    """What is said of options that cannot be."""
    if not isinstance(spec, str):
        raise TypeError(f"spec={spec!r}: the name of a system with its options is needed, "
                        "such as 'casq:bits=2'")
    for name, value in (("threads", threads), ("lanes", lanes)):
        if not isinstance(value, int) or not 1 <= value <= 64:
            raise ValueError(f"{name}={value!r}: a whole number from 1 to 64 is needed")
    if compress_on not in ("device", "cpu"):
        raise ValueError(f"compress_on={compress_on!r}: 'device' or 'cpu' is needed")
    if not isinstance(check_replicas_every, int) or check_replicas_every < 0:
        raise ValueError(f"check_replicas_every={check_replicas_every!r}: a whole number of steps is needed, "
                         "0 for never")
    for name, value in limits.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value!r}: more than 0 is needed")


def _trained_parameters(model: DistributedDataParallel) -> List[Tuple[str, torch.nn.Parameter]]:
    """Those that have gradients, by name."""
    parameters = [(name, parameter) for name, parameter in named_parameters(model) if parameter.requires_grad]
    for name, parameter in parameters:
        if parameter.device.type not in ("cpu", "cuda"):
            raise ValueError(f"parameter {name} is on {parameter.device}: "
                             "only gradients in host memory or on CUDA devices can be synchronized")
    if any(parameter.is_cuda for _, parameter in parameters):
        warnings.warn("Thinwire's way to CUDA devices and back is experimental: it has not run on a GPU yet",
                      stacklevel=3)
    return parameters


def register(
    model: DistributedDataParallel,
    spec: str,
    rows: Optional[str] = None,
    *,
    seed: int = 1,
    threads: int = 1,
    lanes: int = 2,
    deadline_seconds: Optional[float] = None,
    step_limit_seconds: Optional[float] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
    grad_scaler: Optional[GradScaler] = None,
    compress_on: str = "device",
    check_replicas_every: int = 1000,
) -> "Handle":
    """Synchronizes the gradients of ``model`` by the system ``spec`` from now on.
    Collective over DDP's ranks.

    model: wrapped in DistributedDataParallel, without another communication hook; torch.compile may be around
        it or within. Parameters are in host memory or on CUDA devices. Devices compress their own gradients
        where Thinwire was built with CUDA. Otherwise gradients go through pinned host memory to the CPU,
        while backward goes on. DDP's own group may be Gloo's or NCCL's.
    spec: as on the command line, ``casq:bits=2`` or ``top_k:ratio=0.01+zen``; ``systems()`` lists them.
    rows: the system for row-sparse gradients, those of ``nn.Embedding(sparse=True)``;
        ``zen``, which is exact, unless given.
    seed: of everything random; the same on all ranks.
    threads: CPU threads that compress, per lane.
    lanes: buckets that are under way at the same time: while one waits for the network another is compressed.
        Each has connections of its own.
    deadline_seconds: how long a rank waits while no byte moves, because another rank is busy by itself or the
        network is interrupted. Unless given, the timeout of the model's process group. A rank that ends is
        named at once, a frozen one after a minute at most.
    step_limit_seconds: of all waits of one step, also while bytes move. Unless given an hour, or twice a
        longer deadline. Both limits are the same on all ranks.
    optimizer: where systems with an option lr_after, and marsit:eta_s=theorem, read the learning rate, of the
        first parameter group. Those that freeze Adam's variance (one_bit_adam, zero_one_adam) need it:
        torch.optim.Adam or AdamW, whose ``step`` then leaves the second moment as it is in the steps in which
        they say so. Register before the first step.
    grad_scaler: the GradScaler, where one is used. Residuals then follow its scale.
    compress_on: ``"device"``, where the gradients are if Thinwire can work there, or ``"cpu"``.
        The same on all ranks.
    check_replicas_every: after so many steps ranks compare a hash of all parameters that DDP keeps equal,
        before any gradient of the step is sent. They also do so in the first step, and in the first after
        ``load_state_dict``. 0: never. Buffers are not compared. The same on all ranks.

    Gradients of float32, float16 and bfloat16 go through the system, others are averaged as they are. Where a
    rank has inf or NaN, the bucket's mean has NaN on all ranks and the step is undone: state becomes what it
    was before, and the optimizer must leave the step out, as a GradScaler does. So is a step that fails or
    whose backward raises. What no rank used loses nothing.

    A copy of the model (``copy.deepcopy``, ``AveragedModel``, ``torch.save(model)``)
    is plain DDP without a hook.

    Raises TypeError for what is not a DDP model. Raises ValueError for a bad spec or option, for DDP's own
    mixed_precision, and for options of torch.compile that leave the hook out. When ranks register different
    models, every rank raises ValueError at once. Raises RuntimeError when the model has a hook already. When
    a rank does not come, or ends meanwhile, the others raise RuntimeError with its number, within the
    deadline and a few seconds. When ranks differ in spec or options, the first step raises RuntimeError on
    every rank.
    """
    model = ddp_within(model) or model
    if deadline_seconds is None:  # of what is no DDP model it does not matter
        deadline_seconds = (private_group.timeout_of(model.process_group)
                            if isinstance(model, DistributedDataParallel) else 1.0)
    limits = {"deadline_seconds": deadline_seconds, "step_limit_seconds": step_limit_seconds}
    _require_arguments(model, spec, threads, lanes, limits, compress_on, check_replicas_every)
    parameters = _trained_parameters(model)
    return Handle(
        model, parameters, join_spec(spec, rows), seed, threads, lanes, deadline_seconds, step_limit_seconds,
        optimizer, grad_scaler, compress_on, check_replicas_every,
    )


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _uncompiled_call() -> Callable[..., Any]:
    """``_call``, which torch.compile leaves alone. Where a compiled function calls backward, torch would
    compile what backward calls, too, and again with each bucket."""
    disable: Callable[[Callable[..., Any]], Callable[..., Any]] = getattr(
        getattr(torch, "compiler", None), "disable", lambda function: function
    )
    return disable(_call)


class HookState:
    """What DDP gives ``_hook`` with every bucket. A handle that was closed can make room for another."""

    def __init__(self) -> None:
        self.handle: Optional["Handle"] = None
        self.call = _uncompiled_call()

    def handle_for(self, bucket: dist.GradBucket) -> "Handle":
        assert self.handle is not None
        return self.handle

    def __reduce__(self) -> Tuple[Callable[[], "CopiedHandle"], Tuple[()]]:
        # Newer versions of torch keep a hook's state among what a copy or a pickle of the model takes along.
        return _copy_without_hook, ()


class CopiedHandle:
    """What a copy of a registered model, or of its handle, has in the handle's place.
    The copy's gradients go by plain DDP."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(
            "this is a copy of a Thinwire handle, which synchronizes nothing: "
            "a copy of a registered model is plain DDP until thinwire.register is called for it"
        )


def _copy_without_hook() -> CopiedHandle:
    return CopiedHandle()


class Handle:
    """What ``register`` returns. Lives as long as the model;
    methods are for the thread that trains, between steps."""

    #: Whether each rank gets its part of a mean alone.
    _reduce_scatter = False

    def __init__(
        self, model: DistributedDataParallel, parameters: List[Tuple[str, torch.nn.Parameter]], spec: str,
        seed: int, threads: int, lanes: int, deadline_seconds: float, step_limit_seconds: Optional[float],
        optimizer: Optional[torch.optim.Optimizer], grad_scaler: Optional[GradScaler], compress_on: str,
        check_replicas_every: int,
    ) -> None:
        self._model = weakref.ref(model)
        self._call = _uncompiled_call()
        self._replicas = ReplicaCheck(self._replicated(model), check_replicas_every)
        self._optimizer = optimizer
        self._loss_scale = None if grad_scaler is None else LossScale(grad_scaler)
        self._scale: Optional[float] = None
        self._is_closed = False
        self._variance_is_held = False
        self._variance_is_frozen = False  # in the step whose means the parameters have
        self._writer: Optional[Writer] = None
        self._every = 1
        self._logged = 0
        self._watchers: "List[HtmlReport]" = []  # each is told when something happens
        self._last_index: Optional[int] = None
        self._refusal: Optional[str] = None  # why this backward synchronizes nothing
        self._buckets_may_be_missing = bool(getattr(model, "skip_all_reduce_unused_params", False))
        self._shapes = {name: parameter.shape for name, parameter in parameters}
        # Those that were frozen after wrapping are still in DDP's buckets, and have state.
        self._frozen_shapes = {name: parameter.shape for name, parameter in self._in_buckets(model)
                               if name not in self._shapes}
        devices = {parameter.device for _, parameter in parameters} if compress_on == "device" else set()
        device = devices.pop() if len(devices) == 1 else None
        self._private = private_group.open_private(
            self._group_of(model), lanes, deadline_seconds, device, parameters,
            {"check_replicas_every": check_replicas_every, "deadline_seconds": deadline_seconds,
             "step_limit_seconds": step_limit_seconds},
        )
        try:
            self._engine = self._start_engine(model, deadline_seconds, step_limit_seconds or 0, spec, seed,
                                              threads, compress_on)
        except BaseException:
            self._private.close()
            raise
        self._rank = self._private.rank
        self._world_size = self._private.size
        self._changes = ChangeLog(self._engine, self._rank)
        # Forgotten when the handle ends.
        self._reference = weakref.ref(self, _forget)
        _live.append(self._reference)
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
                      compress_on: str) -> _C.Engine:
        return _C.Engine(
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
            # One that was frozen after it was wrapped is still in DDP's buckets.
            parameters=list(self._in_buckets(model)),
        )

    # --- What a handle of sharded models has in place of DDP's ----------------------------------------------

    def _group_of(self, model: DistributedDataParallel) -> dist.ProcessGroup:
        """Whose ranks exchange gradients."""
        group: dist.ProcessGroup = model.process_group
        return group

    def _in_buckets(self, model: DistributedDataParallel) -> Iterable[Tuple[str, torch.Tensor]]:
        """All that may be in a bucket, by name."""
        return named_parameters(model)

    def _replicated(self, model: DistributedDataParallel) -> Callable[[], Sequence[torch.Tensor]]:
        """What the ranks of the group keep equal."""
        parameters = [parameter for _, parameter in named_parameters(model)]
        return lambda: parameters

    def _take_hook(self, model: DistributedDataParallel) -> None:
        state = _hooked.get(model)
        try:
            if state is None:
                state = HookState()
                takes_hook: Any = model  # the types that torch 1.13 gives for DDP lack the method
                takes_hook.register_comm_hook(state, _hook)
                _hooked[model] = state
            elif state.handle is not None and not state.handle._is_closed:
                raise RuntimeError("it is that of a handle which is not closed")
        except RuntimeError as error:
            raise RuntimeError(
                "the model has a communication hook already, and DDP takes one: "
                f"handle.set(spec) of the handle that register returned changes the system ({error})"
            ) from error
        state.handle = self

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

    def _fit_to_optimizer(self, spec: str) -> None:
        """Sees to it that the optimizer asks whether its variance is frozen, where ``spec`` freezes it.
        ValueError where it has none, and for a mean of signs under a loss scale,
        by which the scaler would divide them."""
        if (self._loss_scale is not None and self._loss_scale.is_enabled() and "demo" in spec
            and "sign=off" not in spec):
            raise ValueError(f"spec {spec!r} delivers signs, which a GradScaler would divide by its scale: "
                             "give sign=off, or no grad_scaler")
        if not _C.freezes_variance(spec):
            return
        optimizer = variance.require_adam(self._optimizer, spec)
        if not self._variance_is_held:
            own = weakref.ref(self)  # the optimizer may live longer

            def is_frozen() -> Optional[bool]:
                handle = own()
                return None if handle is None or handle._is_closed else handle._variance_is_frozen

            variance.hold(optimizer, is_frozen)
            self._variance_is_held = True

    def explain(self) -> str:
        """What the system has decided by itself and why, a line for each decision;
        empty for systems that decide nothing.

        Of ``auto``: which system it chose at which step, and how long a step took with each. Of ``guard``:
        which buckets another system got, and what was measured last. Begins anew with buckets that DDP makes
        anew, with a loaded state and with another system. Not collective; between steps.
        """
        return self._engine.explain()

    def changes(self) -> List[Tuple[int, str]]:
        """What systems have changed by themselves since ``register``: steps and reasons.

        The same on all ranks. Rank 0 logs each when the next step begins, by the logger ``thinwire`` at level
        INFO. A writer that was given to ``log_to`` and has ``add_text`` gets them as well. Not
        collective; between steps.
        """
        return self._changes.all(self._writer)

    def report(self) -> Report:
        """What synchronization cost this rank. Not collective; can be written as JSON.

        ``spec``, ``rank``, ``world_size``, ``step``; ``changes``, as ``changes()`` gives them; ``engines``,
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
            "rank": self._rank,
            "world_size": self._world_size,
            "step": self.step,
            "engines": {"frames": "gloo", "device_sums": self._private.sums_by},
            "changes": self.changes(),
            **report,
        }

    def _costs(self) -> EngineReport:
        return cast(EngineReport, json.loads(self._engine.report()))

    def scalars(self) -> Dict[str, float]:
        """What the last step cost this rank, as ``log_to`` writes it: by name, ``thinwire/...``. Not
        collective. Empty before the first step."""
        return scalars_of(self._costs()) if self.step > 0 else {}

    def log_to(self, writer: Optional[Writer], every: int = 1) -> None:
        """Writes scalars of every ``every``-th step to a TensorBoard SummaryWriter, or anything with its
        ``add_scalar(tag, value, step)``, when the next step begins; so the last step is not written.
        ``None`` ends it. Give it to one rank only."""
        if every < 1:
            raise ValueError(f"every={every!r}: a whole number from 1 is needed")
        self._writer, self._every = writer, every

    def state_dict(self, consolidate: bool = False) -> Dict[str, Any]:
        """What training must not lose at a restart: residuals and the systems' own state,
        keyed by parameter name, and the step.

        Each rank has its own: save all of them, ``torch.save(handle.state_dict(), f"thinwire.{rank}.pt")``.
        With ``consolidate=True`` (collective) every rank gets the same one, sums over ranks, to be saved
        once; a run resumed from it goes on correctly, though not bit for bit.

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

    def _own_state(self) -> saved_state.State:
        return {
            "format": saved_state.FORMAT,
            "rank": self._rank,
            "world_size": self._world_size,
            "loss_scale": self._scale,
            "parameters": {name: shape.numel() for name, shape in self._shapes_in_buckets().items()},
            "values": self._engine.state(),
        }

    def _states_of_ranks(self, mine: saved_state.State) -> List[Dict[str, Any]]:
        """Everyone's, on every rank. Collective."""
        # Without the scale, which all have in common: torch 1.13 reads no float where it trusts nobody.
        buffer = io.BytesIO()
        torch.save({**mine, "loss_scale": None}, buffer)
        everyones = self._engine.gather("ranks' states", buffer.getvalue(), self._longest_state())
        return [{**torch.load(io.BytesIO(part), weights_only=True), "loss_scale": self._scale}
                for part in everyones]

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
        RuntimeError for one of the same spec and another seed; nothing has changed then.
        """
        self._take_over(saved_state.for_rank(saved_state.unpack(state), self._rank, self._world_size), strict)

    def _take_over(self, own: saved_state.State, strict: bool) -> None:
        self._changes.collect(self._writer)  # a state begins with none
        shapes = {**self._shapes,
                  **{name: shape for name, shape in self._frozen_shapes.items() if name in own["parameters"]}}
        self._engine.load_state(saved_state.fit(own, shapes, strict))
        self._replicas.after_load()
        self._scale = own["loss_scale"]
        self._logged = self.step  # what the report says is of before

    def _shapes_in_buckets(self) -> Dict[str, torch.Size]:
        in_buckets = {name for bucket in self._engine.buckets() for name in bucket["parameters"]}
        return {**self._shapes,
                **{name: shape for name, shape in self._frozen_shapes.items() if name in in_buckets}}

    def __reduce__(self) -> Tuple[Callable[[], CopiedHandle], Tuple[()]]:
        # Newer versions of torch keep a hook's state among what a copy or a pickle of the model takes along.
        return _copy_without_hook, ()

    def close(self) -> None:
        """Ends the threads and connections; a later step is an error until ``register`` is called again.
        Happens by itself at exit.

        ``state_dict()`` still gives the state of the last step.
        """
        self._is_closed = True
        if self._loss_scale is not None:
            self._loss_scale.unwatch()
        _forget(self._reference)
        self._engine.close()
        self._private.close()
        for watcher in list(self._watchers):
            watcher.handle_closed()

    # --- Called by the hook ---------------------------------------------------------------------------------

    def _begins(self, index: int) -> bool:
        """Whether the bucket is the first of its step: the first ones may be missing."""
        begins = self._last_index is None or index <= self._last_index
        self._last_index = index
        return begins

    def _try_to_begin_step(self) -> None:
        """Where it fails, all buckets of this backward end with the error,
        and nothing has been synchronized."""
        try:
            self._begin_step()
            self._refusal = None
        except Exception as error:
            self._refusal = (str(error) or type(error).__name__).splitlines()[0]

    def _begin_step(self) -> None:
        model = self._model()
        assert model is not None  # it has called the hook
        if not getattr(model, "_divide_by_initial_world_size", True):
            raise RuntimeError("join(divide_by_initial_world_size=False) is not possible with a "
                               "communication hook: means are over all ranks")
        self._replicas.before_step(self.step, model, self._engine)
        self._variance_is_frozen = self._variance_is_held and self._engine.variance_is_frozen()
        if self._optimizer is not None:
            self._engine.set_learning_rate(self._optimizer.param_groups[0]["lr"])
        if self._loss_scale is not None:
            scale = self._loss_scale.read()
            if self._scale is not None and scale != self._scale:
                self._engine.scale_state(scale / self._scale)
            self._scale = scale
        self._changes.collect(self._writer)
        if self._writer is not None:
            step = self.step
            if step != self._logged and step % self._every == 0:
                self._log(self._writer, step)

    def _expect_end(self) -> bool:
        """Sees to it that the engine learns of the end of this backward. False outside of backward, where
        Join stands in for a rank that has no inputs left: there a step ends with its last bucket.

        Callbacks run when backward is done, in the order in which they were queued, those queued by others
        last: the first comes before the one in which DDP waits for the means and gives them to the
        parameters, the second after it. Where backward raises, neither.
        """
        before = self._gradients()

        def all_submitted() -> None:
            for watcher in self._watchers:
                watcher.backward_ended()
            self._engine.last_bucket_was_submitted()
            queue(functools.partial(self._call, finished))

        def finished() -> None:
            for watcher in self._watchers:
                watcher.means_came()
            self._last_index = None
            self._engine.end_backward(self._unused(before))

        queue = torch.autograd.Variable._execution_engine.queue_callback
        try:
            queue(functools.partial(self._call, all_submitted))
        except RuntimeError:
            return False
        return True

    def _gradients(self) -> Dict[str, Tuple[torch.nn.Parameter, Optional[int]]]:
        """Of parameters that may be unused on all ranks: how often the gradient was written so far;
        None where there is none."""
        model = self._model()
        assert model is not None
        if not (model.find_unused_parameters or getattr(model, "static_graph", False)):
            return {}
        return {
            name: (parameter, None if parameter.grad is None else parameter.grad._version)
            for name, parameter in named_parameters(model)
        }

    def _unused(self, before: Dict[str, Tuple[torch.nn.Parameter, Optional[int]]]) -> List[str]:
        """The parameters to which DDP has not given their means, since no rank used them."""
        # A gradient that is a part of the bucket has the mean whether DDP gives it or not.
        in_bucket = getattr(self._model(), "gradient_as_bucket_view", False)
        unused = []
        for name, (parameter, version) in before.items():
            gradient = parameter.grad
            if gradient is None:
                unused.append(name)
            elif (version is not None and not in_bucket and not gradient.is_sparse
                  and gradient._version == version):
                unused.append(name)
        return unused

    def _log(self, writer: Writer, step: int) -> None:
        self._logged = step
        for name, value in scalars_of(self._costs()).items():
            writer.add_scalar(name, value, step)


def scalars_of(report: EngineReport) -> Dict[str, float]:
    """What a logger shows of a step."""
    last = report["last_step"]
    scalars: Dict[str, float] = {
        f"thinwire/{key}": last[key]
        for key in ("wire_bytes_sent", "raw_bytes", "seconds_compress", "seconds_wait", "seconds_decompress",
                    "seconds_total")
    }
    if last["wire_bytes_sent"]:
        scalars["thinwire/compression"] = last["raw_bytes"] / last["wire_bytes_sent"]
    return scalars


def _hook(hooked: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = hooked.call(_synchronize, hooked, bucket)
    return future


def _synchronize(hooked: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if isinstance(bucket, tuple):  # DDP's other reducer gives a gradient and its parameter
        raise RuntimeError('torch._dynamo.config.optimize_ddp = "python_reducer" has no buckets: '
                           'set it to "ddp_optimizer", torch\'s default, '
                           "before DistributedDataParallel(model)")
    state = hooked.handle_for(bucket)
    gradient = bucket.buffer()
    # With devices a future's completion is of the stream that completes it,
    # and who waits for it waits on a stream as well.
    on_cpu = gradient.device.type == "cpu"
    devices: Optional[List[Union[int, str, torch.device]]] = None if on_cpu else [gradient.device]
    if devices and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "backward is being captured into a CUDA graph, which cannot hold messages to other ranks: "
            "capture forward and the loss only, or train without graphs"
        )
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    ready: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    ready.set_result(gradient)
    index = bucket.index()
    begins = state._begins(index)
    for watcher in state._watchers:
        watcher.bucket_came(index, begins)
    if begins:
        state._try_to_begin_step()
    if state._refusal is not None:
        _C.fail_future(future, state._refusal)
        return future
    last = bucket.is_last()
    # Where DDP leaves out buckets that no rank used, the last one may be among them.
    awaits_end = (last or state._buckets_may_be_missing) and state._expect_end()
    state._engine.submit(index, last, awaits_end, gradient, bucket.parameters(), future, ready)
    return future


@atexit.register
def _close_all() -> None:
    for reference in list(_live):
        handle = reference()
        if handle is not None:
            handle.close()

"""What DistributedDataParallel calls with every bucket, and what a handle does then."""
import functools
import json
import math
import time
import warnings
import weakref
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NoReturn, Optional, Sequence, Tuple,
                    Type, TypeVar, Union, cast)

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from thinwire.changes import ChangeLog
from thinwire.extension import _C
from thinwire.interface import EngineReport, Writer
from thinwire.largest import Largest
from thinwire.loss_scale import LossScale
from thinwire.replicas import RefusedByAll, ReplicaCheck
from thinwire.variance import group_of, steps_taken
from thinwire.wrappers import named_parameters

if TYPE_CHECKING:
    from thinwire.handle import Handle
    from thinwire.html_report import HtmlReport

_T = TypeVar("_T")

# Ranks that are late for their first backward by more than this are not asked in which order they have
# registered their models. The engine waits for them, as long as its deadline.
_PATIENCE_SECONDS = 10.0
# Of an optimizer that moves the model hardly anybody makes so many means for one step.
_MOST_FROZEN_UNASKED = 8

# Dynamo, which may trace a hook on forward, takes this for a constant.
is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

# What torch calls with every bucket: it takes one hook for the life of a model.
hooked_models: "weakref.WeakKeyDictionary[DistributedDataParallel, HookState]" = weakref.WeakKeyDictionary()


def _call(function: Callable[..., _T], *arguments: object) -> _T:
    return function(*arguments)


def uncompiled_call() -> Callable[..., Any]:
    """``_call``, which torch.compile leaves alone. Where a compiled function calls backward, torch would
    compile what backward calls, too, and again with each bucket."""
    disable: Callable[[Callable[..., Any]], Callable[..., Any]] = getattr(
        getattr(torch, "compiler", None), "disable", lambda function: function
    )
    return disable(_call)


def sums_used_map(model: torch.nn.Module) -> bool:
    """Whether DDP sums by its own group which parameters were used, and waits for that among the means."""
    own = vars(model)
    return bool(own.get("find_unused_parameters") or own.get("static_graph"))


class HookState:
    """What DDP gives ``hook`` with every bucket. A handle that was closed can make room for another."""

    def __init__(self) -> None:
        self.handle: Optional["Handle"] = None
        self.on_host = False  # all gradients, for certain
        self.call = uncompiled_call()

    def handle_for(self, bucket: dist.GradBucket) -> "Handle":
        assert self.handle is not None
        return self.handle

    def __reduce__(self) -> Tuple[Callable[[], "CopiedHandle"], Tuple[()]]:
        # Newer versions of torch keep a hook's state among what a copy or a pickle of the model takes along.
        return copy_without_hook, ()


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


def copy_without_hook() -> CopiedHandle:
    return CopiedHandle()


class BufferWaits:
    """How long this rank waits in forward: there DDP sends rank 0's buffers, such as BatchNorm's, before the
    model inside begins. A hook on DDP's forward of which a copy or a pickle takes nothing along.
    The model inside has a hook while its forward is awaited, and none when it runs: users copy it,
    save it and script it."""

    def __init__(self, model: Optional[DistributedDataParallel] = None) -> None:
        self._seconds = 0.0
        self._began = 0.0
        self._awaited: Optional[RemovableHandle] = None
        self._hook = None if model is None else model.register_forward_pre_hook(self)

    def __call__(self, model: torch.nn.Module, inputs: Tuple[object, ...]) -> None:
        if self._hook is None or is_compiling():
            return
        self._stop()  # of a forward that raised before the model inside began
        self._awaited = cast(DistributedDataParallel, model).module.register_forward_pre_hook(self._begins)
        self._began = time.perf_counter()

    def _begins(self, module: torch.nn.Module, inputs: Tuple[object, ...]) -> None:
        if self._awaited is not None:
            self._seconds += time.perf_counter() - self._began
        self._stop()

    def _stop(self) -> None:
        if self._awaited is not None:
            self._awaited.remove()
            self._awaited = None

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def remove(self) -> None:
        self._stop()
        if self._hook is not None:
            self._hook.remove()

    def __reduce__(self) -> "Tuple[Type[BufferWaits], Tuple[()]]":
        return BufferWaits, ()


class StepsOfHook:
    """What a handle does with the buckets of a step, for which the hook calls it."""

    _model: "weakref.ref[DistributedDataParallel]"
    _engine: _C.Engine
    _call: Callable[..., Any]
    _replicas: ReplicaCheck
    _changes: ChangeLog
    _optimizer: Optional[torch.optim.Optimizer]
    _rate_group: Optional[int] = None  # its group whose rate is the model's
    _loss_scale: Optional[LossScale]
    _waits: Optional[BufferWaits] = None
    _scale: Optional[float]
    _is_closed: bool
    _ran: str  # the spec of the last step; empty: there was none
    _trained_by_ddp: bool  # in this process, before it was registered
    _variance_is_held: bool
    _variance_is_frozen: bool  # in the step whose means the parameters have
    _frozen_unasked: int = 0  # such steps since the optimizer last asked
    _writer: Optional[Writer]
    _every: int
    _logged: int
    _watchers: "List[HtmlReport]"  # each is told when something happens
    _last_index: Optional[int]
    _refusal: Optional[str]  # why this backward synchronizes nothing
    _refused_by_all = False  # and whether a later one may
    _deadline: float
    _rank: int
    _registration: int  # its number
    _numbering: str  # see PrivateGroups
    _registrations: Optional[Largest] = None  # that of all ranks, on its way
    _is_registered_alike = False
    _buckets_may_be_missing: bool

    def _has_begun(self) -> bool:
        """Whether a step has begun whose backward has not come to its end: it runs, or has failed."""
        return self._last_index is not None

    def _require_no_backward(self, call: str) -> None:
        """RuntimeError while a step is under way: ranks are at different places of it."""
        if not self._has_begun():
            return
        try:
            torch.autograd.Variable._execution_engine.queue_callback(_nothing)
        except RuntimeError:  # outside of backward nothing can be queued for its end
            return
        raise RuntimeError(f"{call}() within backward, whose step is under way: "
                           "call it when backward has returned")

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
            self._refused_by_all = isinstance(error, RefusedByAll)
            if not self._refused_by_all:
                # The others wait for what this rank does not send.
                self._engine.fail(self._refusal)

    def _begin_step(self) -> None:
        model = self._model()
        assert model is not None  # it has called the hook
        self._require_registered_alike()
        # Of its own attributes: torch makes an error of each that is missing, in every step.
        if not vars(model).get("_divide_by_initial_world_size", True):
            raise RefusedByAll("join(divide_by_initial_world_size=False) is not possible with a "
                               "communication hook: means are over all ranks")
        self._replicas.before_step(self._engine.step(), model, self._engine, self._numbering)
        self._variance_is_frozen = self._variance_is_held and self._engine.variance_is_frozen()
        self._frozen_unasked += self._variance_is_frozen
        if self._frozen_unasked == _MOST_FROZEN_UNASKED:
            warnings.warn(f"{_MOST_FROZEN_UNASKED} steps were synchronized in which Adam's variance stands "
                          "still, and the optimizer that was given took none of them: if another one moves "
                          "the model now, close() the handle and register again with that one",
                          RuntimeWarning, stacklevel=2)
        if self._optimizer is not None:
            if self._rate_group is None:
                self._rate_group = group_of(self._optimizer, model)
            self._engine.set_learning_rate(self._optimizer.param_groups[self._rate_group]["lr"])
        scale = 1.0 if self._loss_scale is None else self._loss_scale.read()
        if self._scale is not None and scale != self._scale:
            self._engine.scale_state(scale / self._scale)
        self._scale = scale
        self._engine.set_loss_scale(scale)
        if self._waits is not None:
            self._engine.set_waited(self._waits.take())
        spec = self._engine.spec()
        if not self._ran and self._engine.step() == 0 and "feedback=on" in spec:
            self._warn_of_a_forgotten_state(model)
        self._ran = spec
        self._collect_changes()
        self._write(self._log)

    def _warn_of_a_forgotten_state(self, model: DistributedDataParallel) -> None:
        """Before the first step of all: an optimizer that has taken some is of a run that goes on, unless
        plain DDP took them."""
        steps = 0 if self._optimizer is None else steps_taken(self._optimizer, model)
        if steps == 0 or self._trained_by_ddp or self._rank != 0:
            return
        warnings.warn(f"the optimizer has taken {steps} steps and this handle none. Where another handle "
                      "synchronized them, call handle.load_state_dict(...) with its state before the first "
                      "backward: without it the residuals are lost. Where plain DDP did, nothing is lost",
                      RuntimeWarning, stacklevel=2)

    def _largest(self, own: Sequence[int]) -> Largest:
        """By the group in which the model's ranks exchange gradients without Thinwire."""
        raise NotImplementedError

    def _require_registered_alike(self) -> None:
        """RefusedByAll where ranks registered their models in another order.

        Engines of the n-th registration are connected with each other. The model's own group says which model
        they stand for: there backward comes to models in the same order on all ranks, as torch demands. Equal
        models, or shards of them, are not told apart by anything else.
        """
        if self._is_registered_alike:
            return
        number = self._registration
        patience = 0.0
        try:
            if self._registrations is None:
                patience = min(self._deadline, _PATIENCE_SECONDS)
                self._registrations = self._largest((number, -number))
            if not self._registrations.wait_for(patience):
                return
            last, first = self._registrations.wait()
        except RuntimeError:  # a rank is gone: the engine says which
            return
        if last != -first:
            other = last if number == -first else -first
            raise RefusedByAll(
                f"this rank registered the model of this backward as its number {number}, and another rank "
                f"as its number {other}: give models to thinwire.register, or to thinwire.fully_shard, "
                "in the same order on all ranks"
            )
        self._is_registered_alike, self._registrations = True, None

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
            unused = self._unused(before)
            if not self._engine.is_finite():
                self._spoil_gradients(unused)
            self._engine.end_backward(unused)

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
        if not sums_used_map(model):
            return {}
        return {
            name: (parameter, None if parameter.grad is None else parameter.grad._version)
            for name, parameter in named_parameters(model)
        }

    def _unused(self, before: Dict[str, Tuple[torch.nn.Parameter, Optional[int]]]) -> List[str]:
        """The parameters to which DDP has not given their means, since no rank used them."""
        if not before:
            return []
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

    def _spoil_gradients(self, unused: List[str]) -> None:
        """The step does not count, so no residual is what delivered these means: where one bucket has NaN,
        all get it. Otherwise an optimizer of the other buckets' parameters alone would apply theirs, and
        they would come a second time."""
        model = self._model()
        assert model is not None
        with torch.no_grad():
            for name, parameter in named_parameters(model):
                gradient = parameter.grad
                if parameter.requires_grad and gradient is not None and name not in unused:
                    (gradient._values() if gradient.is_sparse else gradient).fill_(float("nan"))

    def _collect_changes(self) -> None:
        self._changes.collect()
        self._write(self._changes.write_to)

    def _log(self, writer: Writer) -> None:
        step = self._engine.step()
        if step == self._logged or step % self._every != 0:
            return
        self._logged = step
        for name, value in scalars_of(costs_of(self._engine)).items():
            writer.add_scalar(name, value, step)

    def _write(self, write: Callable[[Writer], None]) -> None:
        """Has ``write`` write to the writer, if there is one. A writer that raises, as on a full disk, gets
        nothing more: that is no reason to end a step for which other ranks wait."""
        if self._writer is None:
            return
        try:
            write(self._writer)
        except Exception as error:
            self._writer = None
            warnings.warn(f"Thinwire writes nothing more: the writer of log_to raised {error!r}",
                          stacklevel=2)


def _nothing() -> None:
    """For a callback that is of no use but to see whether it can be queued."""


def costs_of(engine: _C.Engine) -> EngineReport:
    """What an engine's steps have cost this rank."""
    return cast(EngineReport, json.loads(engine.report()))


def _known(values: Iterable[Optional[float]]) -> List[float]:
    return [value for value in values if value is not None]


def scalars_of(report: EngineReport) -> Dict[str, float]:
    """What a logger shows of a step. ``finite`` is 1, or 0 where a gradient was not. Where none was measured
    in this step, ``relative_error``, the largest of all buckets, and ``cosine``, the smallest, are absent.
    ``residual_norm``, over all buckets, is absent where none tells its own or the step does not count."""
    last = report["last_step"]
    scalars: Dict[str, float] = {
        f"thinwire/{key}": last[key]
        for key in ("wire_bytes_sent", "raw_bytes", "seconds_compress", "seconds_wait", "seconds_decompress",
                    "seconds_total")
    }
    if last["wire_bytes_sent"]:
        scalars["thinwire/compression"] = last["raw_bytes"] / last["wire_bytes_sent"]
    scalars["thinwire/finite"] = float(last["finite"])
    errors = _known(bucket["relative_error"] for bucket in report["buckets"])
    if errors:
        scalars["thinwire/relative_error"] = max(errors)
    cosines = _known(bucket["cosine"] for bucket in report["buckets"])
    if cosines:
        scalars["thinwire/cosine"] = min(cosines)
    norms = _known(bucket["residual_norm"] for bucket in report["buckets"])
    if norms and last["finite"]:  # otherwise all residuals are those of the step before
        scalars["thinwire/residual_norm"] = math.hypot(*norms)
    return scalars


def hook(hooked: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = hooked.call(synchronize, hooked, bucket)
    return future


def synchronize(hooked: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if isinstance(bucket, tuple):  # DDP's other reducer gives a gradient and its parameter
        raise RuntimeError('torch._dynamo.config.optimize_ddp = "python_reducer" has no buckets: '
                           'set it to "ddp_optimizer", torch\'s default, '
                           "before DistributedDataParallel(model)")
    future = _future_of(hooked, bucket)
    index = bucket.index()
    try:
        state = hooked.handle_for(bucket)
    except Exception as error:  # raised here, it would leave DDP unable to go through another step
        _C.fail_future(future, (str(error) or type(error).__name__).splitlines()[0])
        return future
    begins = state._begins(index)
    for watcher in state._watchers:
        watcher.bucket_came(index, begins)
    if begins:
        state._try_to_begin_step()
    if state._refusal is not None:
        _C.fail_future(future, state._refusal)
        return future
    # Where DDP leaves out buckets that no rank used, the last one may be among them.
    awaits_end = (state._buckets_may_be_missing or bucket.is_last()) and state._expect_end()
    state._engine.submit_bucket(bucket, awaits_end, future)
    return future


def _future_of(hooked: HookState, bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":
    """That of its mean. With devices a future's completion is of the stream that completes it, and who waits
    for it waits on a stream as well."""
    device = None if hooked.on_host else bucket.buffer().device
    if device is None or device.type == "cpu":
        # Without the work of torch's class around it, which takes as long as all else here.
        return cast("torch.futures.Future[torch.Tensor]", torch._C.Future([]))
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "backward is being captured into a CUDA graph, which cannot hold messages to other ranks: "
            "capture forward and the loss only, or train without graphs"
        )
    return torch.futures.Future(devices=[device])

"""A training under DistributedDataParallel as one page that a browser opens from disk: ``HtmlReport``."""
import atexit
import os
import time
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple, Type, TypedDict, TypeVar, Union

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire import html_page
from thinwire.ddp import Handle
from thinwire.hook import is_compiling
from thinwire.interface import Report
from thinwire.wrappers import named_parameters

_MOST_STEPS = 2000  # of which single values are kept
_MOST_SAMPLES = 32  # of the layers' norms
_MOST_RUNS = 100
_EXPLAIN_EVERY = 64


@dataclass
class BucketSums:
    """Of one bucket over steps; seconds, but for the first two."""

    steps: int = 0
    bytes_sent: int = 0
    backward: float = 0.0
    compress: float = 0.0
    wire: float = 0.0
    wait: float = 0.0
    decompress: float = 0.0


@dataclass
class Run:
    """Steps in a row that had one system."""

    first: int
    last: int
    spec: str
    schemes: Tuple[str, ...]
    wall: float  # seconds when its first step ended
    is_set: bool  # by the script, and not a choice of the system
    steps: int = 0
    skipped: int = 0
    seconds: float = 0.0
    bytes_sent: int = 0
    timed: int = 0  # steps whose parts are known
    parts: Dict[str, float] = field(default_factory=dict)
    layout: List[Tuple[str, ...]] = field(default_factory=list)
    layout_since: int = 0
    buckets: Dict[int, BucketSums] = field(default_factory=dict)


_T = TypeVar("_T")
#: A parameter's elements, and the norms of its residual and gradient where it has them.
Norms = Tuple[int, Optional[float], Optional[float]]


class _Called(TypedDict):
    call: int
    wall: float
    seconds: float
    loss: Optional[float]


class Entry(_Called, total=False):
    """What the history keeps of a call of ``step()``; the rest where gradients were synchronized."""

    step: int
    waiting: Optional[float]
    skipped: bool


class Sample(TypedDict):
    """Norms of all layers after a step."""

    step: int
    layers: Dict[str, Norms]


class _ForwardEnded:
    """A hook on forward of which a copy or a pickle of the model takes nothing along."""

    def __init__(self, report: Optional["HtmlReport"] = None) -> None:
        self._report = None if report is None else weakref.ref(report)

    def __call__(self, *_: object) -> None:
        report = None if is_compiling() or self._report is None else self._report()
        if report is not None:
            report._forward_ended = time.perf_counter()

    def __reduce__(self) -> "Tuple[Type[_ForwardEnded], Tuple[()]]":
        return _ForwardEnded, ()


def _thinned(values: List[_T], most: int) -> bool:
    """Whether every second one was dropped, since there were more than ``most``."""
    if len(values) <= most:
        return False
    del values[1::2]
    return True


def _number_of(loss: object) -> float:
    """Raises TypeError for what is no number, and ValueError for several."""
    needed = "a number is needed, or a tensor with one value"
    if isinstance(loss, torch.Tensor):
        if loss.numel() != 1:
            raise ValueError(f"loss is a tensor of shape {tuple(loss.shape)}: {needed}, such as its mean()")
        return float(loss.detach())
    number: Any = loss
    if isinstance(loss, (str, bytes)) or not hasattr(loss, "__float__"):
        raise TypeError(f"loss={loss!r}: {needed}")
    return float(number)


@dataclass
class MeasuredError:
    """Of a bucket's mean: |mean - exact mean| / |exact mean|, where the stage guard has measured it."""

    times: int = 0
    step: int = 0  # the last of them
    last: float = 0.0
    largest: float = 0.0

    def add(self, step: int, error: float) -> None:
        self.times, self.step, self.last = self.times + 1, step, error
        self.largest = max(self.largest, error)


class HtmlReport:
    """Records what each step cost and writes it as one HTML page: where its time went by bucket, which system
    ran and why, what each layer has not delivered yet, and the loss.

    Usage: ``report = thinwire.HtmlReport(handle, "report.html")``, ``report.step(loss=loss)`` after every
    ``optimizer.step()``, and ``report.close()`` at the end. Or
    ``with thinwire.HtmlReport(handle, "report.html") as report:`` around the training.

    Every rank may do the same: rank 0 records and writes, on all others nothing happens. Nothing of it is
    collective. The memory that it takes does not grow with the number of steps.
    """

    def __init__(self, handle: Handle, path: "Union[str, os.PathLike[str]]", *,
                 layers_every: int = 100) -> None:
        """path: the file, which is written whole or not at all.
        layers_every: after so many steps, and more often in the beginning, the norms of each layer's residual
            and gradient are taken. That copies the systems' state once. 0: never.

        Raises TypeError for what is not a handle of a model under DistributedDataParallel, ValueError for a
        bad number, and FileNotFoundError where there is no folder for the file.
        """
        if not callable(getattr(handle, "report", None)):
            raise TypeError("HtmlReport takes the handle that thinwire.register returned, "
                            f"not {type(handle).__name__}: register the model first. "
                            "With one process a framework's adapter has none")
        model = handle._model() if isinstance(handle, Handle) else None
        if model is not None and not isinstance(model, DistributedDataParallel):
            raise TypeError("HtmlReport is of a model under DistributedDataParallel, "
                            f"not of a {type(model).__name__} whose parameters are sharded: "
                            "handle.report() and handle.log_to() tell of that one")
        if not isinstance(layers_every, int) or layers_every < 0:
            raise ValueError(f"layers_every={layers_every!r}: a whole number of steps is needed, 0 for never")
        self._path = os.path.abspath(os.fspath(path))
        # What stands in for a handle while thinwire.plan tries a script synchronizes nothing.
        self._is_open = isinstance(handle, Handle) and handle._rank == 0
        self._handle = weakref.ref(handle)
        self._layers_every = layers_every
        self._began = self._step_began = time.perf_counter()
        self._forward_ended: Optional[float] = None
        self._clear_clock()
        self._is_set = self._needs_writing = False
        self._spec = ""
        self._stride = 1
        self._next_sample = 1
        self.steps = 0  # calls of step()
        self.history: List[Entry] = []
        self.runs: List[Run] = []
        self.forgotten_runs = 0
        self.skipped: List[int] = []
        self.skipped_steps = 0
        self.forward_was_seen = True
        self.explanations: List[Tuple[str, str]] = []  # (spec, what the system said last)
        self.samples: List[Sample] = []
        self.errors: Dict[Tuple[str, ...], MeasuredError] = {}  # of buckets, by their parameters
        self.report: Report = handle.report()
        self._last_sent = self.report["total"]["wire_bytes_sent"]
        if self._is_open:
            self._begin(handle)

    def _begin(self, handle: Handle) -> None:
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"path={self._path!r}: there is no folder {folder}, make it first")
        if handle._is_closed:
            raise RuntimeError("the handle is closed, and there is nothing to record: "
                               "register the model again")
        model = handle._model()
        assert model is not None  # DDP's hook keeps the handle as long as the model
        self.is_on_device = any(parameter.is_cuda for parameter in model.parameters())
        self._forward_hook = model.register_forward_hook(_ForwardEnded(self))
        handle._watchers.append(self)
        atexit.register(self._close_at_exit)

    # --- Called by the handle -------------------------------------------------------------------------------

    def _clear_clock(self) -> None:
        self._bucket_times: List[Tuple[int, float]] = []
        self._backward_began: Optional[float] = None
        self._backward_end: Optional[float] = None
        self._means_time: Optional[float] = None

    def bucket_came(self, index: int, begins: bool) -> None:
        """DDP's hook was given a bucket; the first one of its step where it ``begins``."""
        now = time.perf_counter()
        if begins:
            self._clear_clock()
            ended = self._forward_ended
            self.forward_was_seen = ended is not None and ended >= self._step_began
            self._backward_began = ended if self.forward_was_seen else now
            self._spec = self._require_handle().spec
        self._bucket_times.append((index, now))

    def backward_ended(self) -> None:
        """All gradients are computed."""
        if self._backward_end is None:
            self._backward_end = time.perf_counter()

    def means_came(self) -> None:
        """DDP has the means of all buckets."""
        self._means_time = time.perf_counter()

    def system_changes(self) -> None:
        """The script gives the handle another spec."""
        self._explain()
        self._is_set = True

    def handle_closed(self) -> None:
        """Nothing comes any more."""
        self._close(look=False)

    # --- Recording ------------------------------------------------------------------------------------------

    def step(self, loss: Union[float, torch.Tensor, None] = None) -> None:
        """Records a step: once after every ``optimizer.step()``, also after one that was left out.

        loss: this rank's, a number or a tensor with one value. One on a device is waited for.
        """
        if not self._is_open:
            return
        now = time.perf_counter()
        report = self._require_handle().report()
        number = report["step"] - 1
        value = None if loss is None else _number_of(loss)
        self.steps += 1
        self._needs_writing = True
        entry: Entry = {"call": self.steps, "wall": now - self._began, "seconds": now - self._step_began,
                        "loss": value}
        if self._bucket_times:
            self._add_synchronized(entry, report, number, now)
        if (self.steps - 1) % self._stride == 0:
            self.history.append(entry)
            if _thinned(self.history, _MOST_STEPS):
                self._stride *= 2
        self.report = report
        if self._layers_every and self.steps >= self._next_sample and report["last_step"]["finite"]:
            self._sample()
            self._next_sample = min(2 * self.steps, self.steps + self._layers_every)
        self._clear_clock()
        self._step_began = time.perf_counter()

    def resume(self) -> None:
        """What happened since the last ``step()``, an evaluation or a checkpoint,
        is not of the next step's time."""
        self._step_began = time.perf_counter()

    def _add_synchronized(self, entry: Entry, report: Report, number: int, now: float) -> None:
        """Adds a step whose gradients were synchronized, and to ``entry`` what the history keeps of it."""
        run = self._run_of(report, number)
        finite = report["last_step"]["finite"]
        sent = report["total"]["wire_bytes_sent"]
        run.last = number
        run.steps += 1
        run.skipped += not finite
        run.seconds += now - self._step_began
        run.bytes_sent += sent - self._last_sent
        self._last_sent = sent
        for bucket in report["buckets"]:
            error = bucket["relative_error"]
            if error is not None and bucket["step"] == number:
                parameters = tuple(bucket["parameters"])
                self.errors.setdefault(parameters, MeasuredError()).add(number, error)
        if not finite:
            self.skipped_steps += 1
            self.skipped.append(number)
            del self.skipped[:-_MOST_RUNS]
        parts = self._parts(now)
        if parts:
            run.timed += 1
            for name, seconds in parts.items():
                run.parts[name] = run.parts.get(name, 0.0) + seconds
            self._add_buckets(run, report)
        if run.steps % _EXPLAIN_EVERY == 0:
            self._explain()
        entry["step"], entry["waiting"], entry["skipped"] = number, parts.get("waiting"), not finite

    def _parts(self, now: float) -> Dict[str, float]:
        """The step's seconds one after the other; empty where a part is not known,
        as in Join for a rank without inputs."""
        began, end, means = self._backward_began, self._backward_end, self._means_time
        if began is None or end is None or means is None:
            return {}
        return {"forward": began - self._step_began, "backward": end - began, "waiting": means - end,
                "rest": now - means}

    def _run_of(self, report: Report, number: int) -> Run:
        """The run that the step goes on with, or a new one."""
        schemes = tuple(sorted({bucket["scheme"] for bucket in report["buckets"] if bucket["scheme"]}))
        key = (self._spec, schemes)
        # Its number is not above the last one's where a state of an earlier step was loaded.
        if (not self.runs or key != (self.runs[-1].spec, self.runs[-1].schemes)
            or number <= self.runs[-1].last):
            is_set = self._is_set and bool(self.runs) and self.runs[-1].spec != self._spec
            self.runs.append(Run(number, number, *key, time.perf_counter() - self._began, is_set))
            self._is_set = False
            self.forgotten_runs += len(self.runs) > _MOST_RUNS
            del self.runs[:-_MOST_RUNS]
            self._explain()
        return self.runs[-1]

    def _add_buckets(self, run: Run, report: Report) -> None:
        layout = [tuple(bucket["parameters"]) for bucket in report["buckets"]]
        if layout != run.layout:  # DDP makes other buckets in its second step
            run.layout, run.layout_since, run.buckets = layout, run.last, {}
        before = self._bucket_times[0][1] if self._backward_began is None else self._backward_began
        backward = {}
        for index, came in self._bucket_times:
            backward[index], before = came - before, came
        for index, bucket in enumerate(report["buckets"]):
            if index not in backward:  # no rank used it
                continue
            sums = run.buckets.setdefault(index, BucketSums())
            sums.steps += 1
            sums.bytes_sent += bucket["wire_bytes_sent"]
            sums.backward += backward[index]
            sums.compress += bucket["seconds_compress"]
            sums.wire += bucket["seconds_communicate"] - bucket["seconds_wait"]
            sums.wait += bucket["seconds_wait"]
            sums.decompress += bucket["seconds_decompress"]

    def _sample(self) -> None:
        """Norms by parameter. Waits until the systems have copied their state."""
        handle = self._handle()
        model = None if handle is None else handle._model()
        if handle is None or model is None:
            return
        # scale: by which a GradScaler divides gradients.
        values, scale = handle._engine.state(), handle._scale or 1.0
        layers: Dict[str, Norms] = {}
        for name, parameter in named_parameters(model):
            if not parameter.requires_grad:
                continue
            residual, gradient = values.get("residual/" + name), parameter.grad
            if gradient is not None and gradient.is_sparse:
                gradient = gradient.coalesce().values()
            layers[name] = (parameter.numel(), residual.double().norm().item() / scale
                            if isinstance(residual, torch.Tensor) else None,
                            None if gradient is None else gradient.detach().double().norm().item())
        self.samples.append({"step": handle.step - 1, "layers": layers})
        _thinned(self.samples, _MOST_SAMPLES)

    def _has_gradients(self) -> bool:
        """Not after ``zero_grad``: a sample of step(), with gradients, says more than a newer one without."""
        handle = self._handle()
        model = None if handle is None else handle._model()
        gradients = [] if model is None else [one.grad for one in model.parameters()]
        return any(one is not None and (one.is_sparse or bool(one.any())) for one in gradients)

    def _explain(self) -> None:
        handle = self._handle()
        words = "" if handle is None else handle._decided()
        if handle is None or not words:
            return
        spec = self._spec or handle.spec
        if self.explanations and self.explanations[-1][0] == spec:
            self.explanations.pop()
        self.explanations.append((spec, words))
        del self.explanations[:-_MOST_RUNS]

    def _require_handle(self) -> Handle:
        handle = self._handle()
        if handle is None:
            raise RuntimeError("the model is gone, and its handle with it: close the HtmlReport before")
        return handle

    # --- Writing --------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes the page as it is now; call it as often as you like, between steps.
        Raises OSError where that fails."""
        if self._is_open:
            self._write(look=True)

    def close(self) -> None:
        """Writes the page and records no more. Happens by itself at ``handle.close()`` and at exit,
        where errors are warnings."""
        if self._is_open:
            self._is_open = False
            self._detach()
            self._write(look=True)

    def __enter__(self) -> "HtmlReport":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._close(look=False)

    def _write(self, look: bool) -> None:
        """look: also at what only the engine knows. Not where a step may have been broken off:
        its threads may wait for others."""
        handle = self._handle()
        if look and handle is not None and not handle._is_closed and self.runs:
            self._explain()
            newest = self.samples[-1]["step"] if self.samples else -1
            if (self._layers_every and self.report["last_step"]["finite"] and handle.step - 1 > newest
                and (not self.samples or self._has_gradients())):
                self._sample()
        text = html_page.page(self)
        temporary = f"{self._path}.{os.getpid()}.new"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, self._path)
        except OSError:
            if os.path.exists(temporary):
                os.remove(temporary)
            raise
        self._needs_writing = False

    def _close(self, look: bool) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._detach()
        if not self._needs_writing:
            return
        try:
            self._write(look)
        except OSError as error:
            warnings.warn(f"the report {self._path} could not be written: {error}", stacklevel=3)

    def _close_at_exit(self) -> None:
        self._close(look=False)

    def _detach(self) -> None:
        atexit.unregister(self._close_at_exit)
        self._forward_hook.remove()
        handle = self._handle()
        if handle is not None and self in handle._watchers:
            handle._watchers.remove(self)

"""Hugging Face's Accelerate: one line after ``accelerator.prepare``.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    thinwire.accelerate.register(accelerator, model, "auto")
"""
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, cast

import torch

try:
    from accelerate import Accelerator
except ImportError as error:
    raise ImportError(f"thinwire.accelerate needs Accelerate ({error}): pip install accelerate") from error

from thinwire.adapter import Synchronization, log
from thinwire.interface import AdapterOptions
from thinwire.wrappers import ddp_within

if TYPE_CHECKING:
    from typing_extensions import Unpack

_REMEDY = (
    "give what accelerator.prepare(model) returned. Without GPUs Accelerate wraps it, and synchronizes, "
    "only by Accelerator(cpu=True) or under accelerate launch --cpu"
)


def register(
    accelerator: Accelerator, model: torch.nn.Module, spec: str = "auto", rows: Optional[str] = None,
    **options: "Unpack[AdapterOptions]"
) -> Synchronization:
    """Synchronizes the gradients of a model that ``accelerator.prepare`` returned by the
    system ``spec``. On all ranks.

    The learning rate and Adam's variance are of the prepared optimizer that has the model's parameters, and
    the loss scale is the accelerator's. ``save_state`` writes every rank's state into the folder, and
    ``load_state`` reads it, on any number of ranks. ``accelerator.log`` logs what the last step cost as well.
    ``end_training`` closes.

    options: those of ``thinwire.register``, and ``require_state=False``:
        a checkpoint without a state of Thinwire is no error.

    Returns the Synchronization, whose ``handle`` is that of ``thinwire.register``; None with one process,
    where nothing is done. Raises what ``thinwire.register`` raises,
    and TypeError for what is not wrapped in DistributedDataParallel.
    """
    handler = getattr(accelerator, "ddp_handler", None)
    hook = str(getattr(getattr(handler, "comm_hook", None), "value", "no"))
    if hook.lower() != "no":
        raise ValueError(f"DistributedDataParallelKwargs(comm_hook={hook!r}) gives the model a hook already, "
                         "and DDP takes one: leave comm_hook out")
    options.setdefault("optimizer", _optimizer_of(accelerator, model))
    options.setdefault("grad_scaler", accelerator.scaler)
    run = Synchronization(model, spec, rows, remedy=_REMEDY, **options)
    if not hasattr(accelerator, "_thinwire"):
        accelerator._thinwire = _Attached(accelerator)
    accelerator._thinwire.add(run, model)
    return run


def _optimizer_of(accelerator: Accelerator, model: torch.nn.Module) -> Optional[torch.optim.Optimizer]:
    """The prepared one that has this model's parameters; None where there is none, or several are."""
    own = {id(parameter) for parameter in model.parameters()} if hasattr(model, "parameters") else set()
    found = [one for one in accelerator._optimizers
             if any(id(parameter) in own for group in one.param_groups for parameter in group["params"])]
    return found[0] if len(found) == 1 else None


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Accelerate's list has a model as it was before it was wrapped, the caller as it is now."""
    wrapped = ddp_within(model)
    inner = model if wrapped is None else wrapped.module
    return cast(torch.nn.Module, getattr(inner, "_orig_mod", inner))


class _Attached:
    """What an accelerator does for the models that were registered with it."""

    def __init__(self, accelerator: Accelerator) -> None:
        # Each with its model: with one process the run does not know it.
        self._runs: List[Tuple[Synchronization, "weakref.ref[torch.nn.Module]"]] = []
        self._log, self._end_training = accelerator.log, accelerator.end_training
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)
        accelerator.log = self._log_with_cost
        accelerator.end_training = self._end

    def add(self, run: Synchronization, model: torch.nn.Module) -> None:
        own, kept = _unwrapped(model), []
        for one, its in self._runs:
            if one.is_over():
                one.close()
            elif its() is not None and its() is not own:
                kept.append((one, its))
        self._runs = [*kept, (run, weakref.ref(own))]

    def _named(self, models: List[torch.nn.Module]) -> Dict[str, Synchronization]:
        """By the place of the model among the prepared ones, as Accelerate names its own files."""
        return {f"thinwire_{place}": run for run, its in self._runs
                if run.handle is None or run.model is not None
                for place, model in enumerate(models) if _unwrapped(model) is its()}

    def _save(self, models: List[torch.nn.Module], weights: List[Dict[str, torch.Tensor]],
              output_dir: str) -> None:
        named = self._named(models)
        for run, _ in self._runs:
            if run.handle is not None and not run.is_over() and run not in named.values():
                log.warning("Thinwire: a model that is registered is none of the accelerator's any more, "
                            "so its state is not saved")
        for name, run in named.items():
            run.save(output_dir, name)

    def _load(self, models: List[torch.nn.Module], input_dir: str) -> None:
        for name, run in self._named(models).items():
            run.load(input_dir, name)

    def _log_with_cost(self, values: Dict[str, object], *arguments: Any, **more: Any) -> None:
        costs = {name: value for run, _ in self._runs[-1:] for name, value in run.scalars().items()}
        self._log({**costs, **values}, *arguments, **more)

    def _end(self) -> None:
        for run, _ in self._runs:
            run.close()
        self._end_training()

"""Lightning: a callback for its Trainer, and one line for Fabric.

    Trainer(strategy="ddp", callbacks=[thinwire.lightning.ThinwireCallback("auto")])

    model, optimizer = fabric.setup(model, optimizer)
    run = thinwire.lightning.register(fabric, model, "auto", optimizer=optimizer)
"""
import sys
import weakref
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

import torch

try:
    # Lightning has two packages, which do not know each other: that of the script.
    if not TYPE_CHECKING and "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError as error:
    raise ImportError(f"thinwire.lightning needs Lightning ({error}): pip install lightning") from error

from thinwire.adapter import Synchronization
from thinwire.ddp import Handle
from thinwire.interface import AdapterOptions

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import Strategy
    from typing_extensions import Unpack

_NO_STATE = "the checkpoint has no state of Thinwire: it was saved without the callback"
_AFTER_AN_EXCEPTION = "the checkpoint was saved upon an exception, so it has no state of Thinwire"
_REMEDY = "Trainer(strategy='ddp') or Fabric(strategy='ddp') is needed"


class ThinwireCallback(Callback):
    """Synchronizes the gradients of the trainer's model by the system ``spec``
    whenever it fits. On all ranks.

    All ranks' states are in the trainer's checkpoints, and ``fit(ckpt_path=...)`` reads them, on any number
    of ranks. What the last step cost goes to the trainer's loggers every ``log_every_n_steps``. The end of
    ``fit`` closes, an exception's too. A checkpoint that is saved upon an exception has no state, since
    other ranks may be gone; ``fit(ckpt_path=...)`` refuses it unless ``require_state=False``.
    With one process nothing is done.
    """

    def __init__(self, spec: str = "auto", rows: Optional[str] = None,
                 **options: "Unpack[AdapterOptions]") -> None:
        """options: those of ``thinwire.register``, and ``require_state=False``:
        a checkpoint without a state of Thinwire is no error."""
        self.run: Optional[Synchronization] = None
        self._arguments = (spec, rows)
        self._options = options
        self._loaded: Optional[Dict[str, Any]] = None
        self._missing = ""  # why the checkpoint that is loaded has no state
        self._refused = ""
        self._trainer: "Optional[weakref.ref[Trainer]]" = None
        self._raised = False
        self._logged = -1

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        self._trainer = weakref.ref(trainer)
        if stage == "fit":  # what an earlier one has left, one that failed included, is none of this one's
            self._close()
            self.run, self._loaded, self._missing, self._refused = None, None, "", ""
            self._raised = False

    def on_fit_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        _refuse_hook(trainer.strategy)
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        options: AdapterOptions = {"optimizer": optimizer,
                                   "grad_scaler": getattr(trainer.precision_plugin, "scaler", None),
                                   **self._options}
        clip = trainer.gradient_clip_val
        self.run = Synchronization(trainer.strategy.model, *self._arguments, remedy=_REMEDY,
                                   clipped_at=None if clip is None else float(clip), **options)
        # The checkpoint is read before the model is wrapped.
        loaded, self._loaded = self._loaded, None
        # Refused once the rest was read: whoever saves upon that error saves what was there.
        self._refused, self._missing = self._missing, ""
        if loaded is not None:
            self.run.load_state_dict(loaded)

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        refused, self._refused = self._refused, ""
        if self.run is not None and refused:
            self.run.missing(refused)

    def on_train_batch_end(self, trainer: "Trainer", pl_module: "LightningModule", outputs: object,
                           batch: object, batch_idx: int) -> None:
        step = trainer.global_step
        every: int = getattr(trainer, "log_every_n_steps")  # which its class does not declare
        if (self.run is None or not trainer.is_global_zero or step == self._logged or not trainer.loggers
            or step % every):
            return
        self._logged = step
        costs = self.run.scalars()
        for logger in trainer.loggers if costs else []:
            logger.log_metrics(costs, step=step - 1)  # the trainer's own values stand at steps from 0

    def state_dict(self) -> Dict[str, Any]:
        trainer = None if self._trainer is None else self._trainer()
        if self._raised or (trainer is not None and _fit_has_failed(trainer)):
            # To gather states would wait for ranks that may be gone.
            return {"ranks": 0, "states": []}
        if self.run is not None:
            return self.run.state_dict()
        # A tuner saves before the model is registered, and loads that again:
        # what was read for this fit is as it was.
        if self._missing:
            return {}
        return {"ranks": 1, "states": None} if self._loaded is None else self._loaded

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._missing = ""
        if state_dict.get("ranks") == 0:
            self._missing = _AFTER_AN_EXCEPTION
        elif self.run is None or self.run.handle is None or self.run.handle._is_closed:
            self._loaded = state_dict
        else:
            self.run.load_state_dict(state_dict)

    def on_load_checkpoint(self, trainer: "Trainer", pl_module: "LightningModule",
                           checkpoint: Dict[str, Any]) -> None:
        # load_state_dict follows where there is a state.
        self._missing = "" if self.state_key in checkpoint.get("callbacks", {}) else _NO_STATE

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule",
                     exception: BaseException) -> None:
        self._raised = self._raised or _fit_has_failed(trainer)
        self._close()

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        self._loaded, self._missing = None, ""  # of a validation
        if stage == "fit":
            self._close()

    def _close(self) -> None:
        if self.run is not None:
            self.run.close()


def _fit_has_failed(trainer: "Trainer") -> bool:
    """Known before any callback hears of it."""
    return bool(trainer.interrupted and trainer.state.fn == "fit")


def _refuse_hook(strategy: "Strategy") -> None:
    if getattr(strategy, "_ddp_comm_hook", None) is not None:
        raise ValueError("DDPStrategy(ddp_comm_hook=...) gives the model a hook already, and DDP takes one: "
                         "leave ddp_comm_hook out")


def register(
    fabric: "Fabric", model: torch.nn.Module, spec: str = "auto", rows: Optional[str] = None,
    **options: "Unpack[AdapterOptions]"
) -> Synchronization:
    """Synchronizes the gradients of a model that ``fabric.setup`` returned by the
    system ``spec``. On all ranks.

    ``fabric.log`` and ``fabric.log_dict`` log what the last step cost as well. Put what this returns into
    what Fabric saves and loads: it has all ranks' states, and loads them on any number of ranks::

        state = {"model": model, "optimizer": optimizer, "thinwire": run}
        fabric.save("checkpoint.ckpt", state)
        fabric.load("checkpoint.ckpt", state)

    options: those of ``thinwire.register``; ``optimizer`` may be Fabric's. The loss scale is Fabric's.

    Returns the Synchronization, whose ``handle`` is that of ``thinwire.register``; None with one process,
    where nothing is done. ``close()`` ends it. Raises what ``thinwire.register`` raises, and TypeError for
    what is not wrapped in DistributedDataParallel.
    """
    options.setdefault("grad_scaler", getattr(getattr(fabric.strategy, "precision", None), "scaler", None))
    run = Synchronization(model, spec, rows, remedy=_REMEDY, **options)
    if run.handle is not None and fabric.is_global_zero and fabric.loggers:
        _log_cost_of(run.handle, fabric)
    return run


def _log_cost_of(handle: Handle, fabric: "Fabric") -> None:
    own = weakref.ref(handle)  # Fabric may live longer
    log_dict = fabric.log_dict

    def log_dict_with_cost(metrics: Mapping[str, object], step: Optional[int] = None) -> None:
        handle = own()
        costs = {} if handle is None or handle._is_closed else handle.scalars()
        log_dict({**costs, **metrics}, step=step)

    fabric.log_dict = log_dict_with_cost  # type: ignore[method-assign]

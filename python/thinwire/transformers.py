"""Hugging Face's Trainer: one line after it is made.

    trainer = Trainer(model, arguments, train_dataset=...)
    trainer.add_callback(thinwire.transformers.ThinwireCallback(trainer, "auto"))
"""
import os
from typing import TYPE_CHECKING, Any, Dict, Optional, Union

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise ImportError(f"thinwire.transformers needs transformers and accelerate ({error}): "
                      "pip install 'transformers[torch]'") from error

from thinwire.adapter import Synchronization
from thinwire.interface import AdapterOptions

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import TrainOutput
    from typing_extensions import Unpack


class ThinwireCallback(TrainerCallback):
    """Synchronizes the gradients of the trainer's model by the system ``spec`` whenever
    it trains. On all ranks.

    Every rank's state goes into the folders that the trainer saves, and ``train(resume_from_checkpoint=...)``
    reads it, on any number of ranks. What the last step cost is logged with the loss. The end of ``train``
    closes, an exception's too. With one process nothing is done.
    """

    def __init__(self, trainer: Trainer, spec: str = "auto", rows: Optional[str] = None,
                 **options: "Unpack[AdapterOptions]") -> None:
        """trainer: the one that the callback is added to. options: those of ``thinwire.register``, and
        ``require_state=False``: a checkpoint without a state of Thinwire is no error.
        Raises TypeError for what is no trainer."""
        if not isinstance(trainer, Trainer):
            raise TypeError(f"trainer={trainer!r}: trainer.add_callback(ThinwireCallback(trainer, "
                            "spec)) is needed, since callbacks do not learn their trainer")
        self.run: Optional[Synchronization] = None
        self._trainer = trainer
        self._arguments = (spec, rows)
        self._options = options
        self._resumed_from: Optional[str] = None
        # The trainer tells callbacks neither where it resumes from, nor that it ends with an exception,
        # nor of a line before others log it.
        self._train, self._log = trainer.train, trainer.log
        trainer.train = self._train_and_close  # type: ignore[method-assign]
        trainer.log = self._log_with_cost  # type: ignore[method-assign]

    def _train_and_close(self, resume_from_checkpoint: Union[str, bool, None] = None,
                         *arguments: Any, **more: Any) -> "TrainOutput":
        if self not in self._trainer.callback_handler.callbacks:
            raise RuntimeError("this trainer's ThinwireCallback was not added to it: "
                               "trainer.add_callback(callback)")
        found = (get_last_checkpoint(self._trainer.args.output_dir) if resume_from_checkpoint is True
                 else resume_from_checkpoint)
        self._resumed_from = found or None
        try:
            return self._train(resume_from_checkpoint, *arguments, **more)
        finally:
            self._close()

    def on_train_begin(self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl",
                       **more: object) -> None:
        self._close()  # of a batch size that was too large
        trainer = self._trainer
        options: AdapterOptions = {"optimizer": trainer.optimizer, "grad_scaler": trainer.accelerator.scaler,
                                   **self._options}
        self.run = Synchronization(trainer.model_wrapped, *self._arguments, clipped_at=args.max_grad_norm,
                                   remedy="start one process per rank, by torchrun, and without GPUs give "
                                          "TrainingArguments(use_cpu=True)", **options)
        if self._resumed_from is not None:
            self.run.load(self._resumed_from)

    def on_save(self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl",
                **more: object) -> None:
        if self.run is None or args.save_only_model:
            return
        folder = self._trainer._get_output_dir(getattr(self._trainer, "_trial", None))
        self.run.save(os.path.join(folder, f"checkpoint-{state.global_step}"))

    def _log_with_cost(self, logs: Dict[str, float], *arguments: Any, **more: Any) -> None:
        costs = self.run.scalars() if self.run is not None and "loss" in logs else {}
        self._log({**logs, **costs}, *arguments, **more)

    def _close(self) -> None:
        if self.run is not None:
            self.run.close()
            self.run = None

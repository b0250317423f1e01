"""Whether all ranks still hold the same parameters, told by eight bytes of each."""
from typing import Callable, Sequence

import torch

from thinwire.extension import _C


class RefusedByAll(RuntimeError):
    """What all ranks raise at the same place, so that none waits for another."""


class ReplicaCheck:
    """Compares what ``parameters()`` gives, which ranks keep equal, every so many steps."""

    def __init__(self, parameters: Callable[[], Sequence[torch.Tensor]], every: int):
        self._every = every
        self._parameters = parameters
        self._due = True

    def after_load(self) -> None:
        """The next step compares, whatever its number."""
        self._due = True

    def before_step(self, step: int, model: object, engine: _C.Engine, numbering: str) -> None:
        """Before the first bucket of a step: all ranks have then taken the same optimizer steps,
        also when they accumulate.

        Collective where the step is one that compares. Not within ``Join``,
        where ranks without input take no optimizer steps. numbering: see PrivateGroups.
        """
        if not self._every or not (self._due or step % self._every == 0):
            return
        if getattr(getattr(model, "_join_config", None), "enable", False):
            return
        # Until they are found equal: whoever catches the error does not train on unseen.
        self._due = True
        own = _C.hash_tensors(list(self._parameters()), step)
        everyones = engine.gather("replica hashes", own.to_bytes(8, "little"), 8)
        text = _C.replica_difference([int.from_bytes(one, "little") for one in everyones])
        if text is not None:
            raise RefusedByAll(
                f"replicas differ before step {step}: {text}{numbering}. Load the same checkpoint on all "
                "ranks; what changed them is something that one rank did alone (other memory, another kind "
                "of processor, code that depends on the rank). "
                f"check_replicas_every={self._every} found it, 0 does not look"
            )
        self._due = False

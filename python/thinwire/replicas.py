"""Whether all ranks still hold the same parameters, told by eight bytes of each."""
from collections import Counter
from typing import Any, Optional, Sequence, Tuple

import torch

from thinwire import _C


def name_ranks(ranks: Sequence[int]) -> str:
    """"rank 1", "ranks 1 and 3", "ranks 0, 1 and 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(str(rank) for rank in ranks[:-1])} and {ranks[-1]}"


def difference(hashes: Sequence[int]) -> Optional[str]:
    """Which ranks differ from the others; None where none does."""
    counts = Counter(hashes).most_common()
    if len(counts) == 1:
        return None
    if counts[0][1] == counts[1][1]:
        groups = [[rank for rank, value in enumerate(hashes) if value == one] for one, _ in counts]
        return f"no set of parameters is that of most ranks: {', '.join(name_ranks(group) for group in groups)} hold different ones"
    others = [rank for rank, value in enumerate(hashes) if value != counts[0][0]]
    verb = "holds" if len(others) == 1 else "hold"
    return f"{name_ranks(others)} {verb} other parameters than the rest of {len(hashes)} ranks"


class ReplicaCheck:
    """Compares the parameters that DDP keeps equal, every so many steps."""

    def __init__(self, model: torch.nn.parallel.DistributedDataParallel, every: int):
        self._every = every
        ignored = set(getattr(model, "parameters_to_ignore", ()))
        self._parameters = [parameter for name, parameter in model.module.named_parameters() if name not in ignored]
        self._due = True

    def after_load(self) -> None:
        """The next step compares, whatever its number."""
        self._due = True

    def before_step(self, step: int, model: torch.nn.parallel.DistributedDataParallel, engine: Any) -> None:
        """Before the first bucket of a step: all ranks have then taken the same optimizer steps, also when they accumulate.

        Collective where the step is one that compares. Not within ``Join``, where ranks without input take no optimizer steps.
        """
        if not self._every or not (self._due or step % self._every == 0):
            return
        if getattr(getattr(model, "_join_config", None), "enable", False):
            return
        self._due = False
        text = difference(engine.gather(_C.hash_tensors(self._parameters, step)))
        if text is not None:
            raise RuntimeError(
                f"replicas differ before step {step}: {text}. Load the same checkpoint on all ranks; what changed them is something that "
                f"one rank did alone (other memory, another kind of processor, code that depends on the rank). check_replicas_every="
                f"{self._every} found it, 0 does not look"
            )

"""Gradient synchronization over thin wires, for DistributedDataParallel.

One line on an existing script puts a compressing system under DDP::

    model = torch.nn.parallel.DistributedDataParallel(model)
    handle = thinwire.register(model, "marsit:full_every=100")

``thinwire.fully_shard`` is for models sharded by torch's ``fully_shard`` (FSDP2), within hosts or among all
ranks. ``thinwire.accelerate``, ``thinwire.lightning`` and ``thinwire.transformers`` do the same for those who
train through these frameworks.

``python -m thinwire.doctor`` tells what this installation can do and what is wrong with it.
"""
import importlib
from typing import TYPE_CHECKING, List

from thinwire import at_end, torch_version

if TYPE_CHECKING:
    from thinwire import accelerate, lightning, transformers
    from thinwire.cluster import cluster_environment
    from thinwire.ddp import Handle, register, systems
    from thinwire.fsdp import fully_shard
    from thinwire.html_report import HtmlReport
    from thinwire.lazy import comm_hook
    from thinwire.local_steps import LocalSteps

    __version__: str

__all__ = ["Handle", "HtmlReport", "LocalSteps", "cluster_environment", "comm_hook", "fully_shard",
           "register", "systems", "__version__"]
# Each needs its framework, and is loaded when it is asked for.
_ADAPTERS = ("accelerate", "lightning", "transformers")


def _load(name: str) -> object:
    # Loaded when it is asked for, so that thinwire.doctor can tell what is wrong with an
    # extension that does not load.
    if name in _ADAPTERS:
        return importlib.import_module(f"thinwire.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")
    from thinwire.extension import _C  # first: it says what is wrong, and what to do

    if name == "__version__":
        return _C.version
    from thinwire import cluster, ddp, fsdp, html_report, lazy, local_steps

    homes = {"HtmlReport": html_report, "LocalSteps": local_steps, "cluster_environment": cluster,
             "comm_hook": lazy, "fully_shard": fsdp}
    return getattr(homes.get(name, ddp), name)


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__, *_ADAPTERS})


if not TYPE_CHECKING:  # else every misspelled name would be one that may be there
    __getattr__ = _load

torch_version.warn_of_another_version()
at_end.watch()

"""Gradient synchronization over thin wires, for DistributedDataParallel.

One line on an existing script puts a compressing system under DDP::

    model = torch.nn.parallel.DistributedDataParallel(model)
    handle = thinwire.register(model, "marsit:full_every=100")

``python -m thinwire.doctor`` tells what this installation can do and what is wrong with it.
"""
import torch  # noqa: F401  (loads the libraries that the extension stands on)

try:
    from thinwire._C import version as __version__
except ImportError as error:
    raise ImportError(
        f"Thinwire's extension does not load with torch {torch.__version__} ({error}). It was built against another torch: in "
        "Thinwire's source folder, pip install --no-build-isolation --force-reinstall --no-deps ."
    ) from error
from thinwire.ddp import Handle, register, systems

__all__ = ["Handle", "register", "systems", "__version__"]

"""The compiled part of Thinwire, ``_C``, where it fits the torch that is installed.
All modules have it from here, so that whichever is imported first says what is wrong."""
import torch

from thinwire import torch_version

_problem = torch_version.mismatch()
if _problem:
    raise ImportError(_problem)
try:
    from thinwire import _C as _C
except ImportError as error:
    raise ImportError(f"Thinwire's extension does not load with torch {torch.__version__} ({error}). "
                      f"Build it again, {torch_version.REBUILD}") from error

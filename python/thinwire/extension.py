"""The compiled part of Thinwire, ``_C``, where it fits the torch that is installed, and specs as it reads
them. All modules have it from here, so that whichever is imported first says what is wrong."""
from typing import Optional

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

_DEFAULT_ROWS = "rows=zen,dense="


def told_of_scheme(scheme: str, ran: str) -> str:
    """How a bucket went, where ``ran`` is the spec of all: one of zen's ways with its name."""
    is_zens = scheme in ("push_pull", "recursive_doubling", "centralization", "bitmaps")
    return f"zen's {scheme}" if is_zens and "zen" not in ran else scheme


def readable(spec: str) -> str:
    """A spec, or a pair of them, without the options that have their defaults, and without the default for
    rows. One of another version comes back as it is."""
    short = _C.readable(spec)
    return short[len(_DEFAULT_ROWS):] if short.startswith(_DEFAULT_ROWS) else short


def require_spec(spec: object, argument: str = "spec", such_as: str = "auto") -> None:
    """Raises TypeError for what is no text. Whoever gives the optimizer by its place is told of its name."""
    if isinstance(spec, str):
        return
    given = repr(spec) if isinstance(spec, (int, float, bytes)) else f"of type {type(spec).__name__}"
    optimizers = "; give an optimizer by its name, optimizer=..." if hasattr(spec, "param_groups") else ""
    raise TypeError(f"{argument} is {given}: the name of a system with its options is needed, such as "
                    f"{such_as!r}{optimizers}")


def join_spec(spec: str, rows: Optional[str]) -> str:
    """One spec for both kinds of gradients: ``rows`` for those of sparse embeddings,
    ``spec`` for all others."""
    require_spec(spec)
    if rows is not None:
        require_spec(rows, "rows", "zen")
    if "," not in spec and "rows=" not in spec and "dense=" not in spec:
        return f"rows={rows},dense={spec}" if rows else _DEFAULT_ROWS + spec
    if rows is not None:
        raise ValueError(f"spec {spec!r} names systems for rows and for dense gradients itself: "
                         f"leave out rows={rows!r}")
    return spec

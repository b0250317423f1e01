"""Whether the torch that is installed is the one that this build of Thinwire is for.

torch keeps its C++ interface within a minor version, such as 2.8. Up to 2.6 some builds of one version have
the old std::string and others the new one, which do not fit each other.
"""
import os
import sys
import warnings
from importlib import metadata
from typing import Optional

REBUILD = "in Thinwire's source folder: pip install --force-reinstall --no-deps ."


def minor(version: str) -> str:
    return ".".join(version.split(".", 2)[:2])


def _of_another_version(here: str) -> Optional[str]:
    from thinwire import _built

    if minor(here) == minor(_built.TORCH):
        return None
    return (f"This Thinwire was built for torch {minor(_built.TORCH)}, and torch {here} is installed. "
            f"A wheel for it is called thinwire-{_built.VERSION}+torch{minor(here)}. Install that one, "
            f"or build one, {REBUILD}")


def warn_of_another_version() -> None:
    """At ``import thinwire``, from what pip has written down: torch itself takes seconds to import.
    A warning, since ``thinwire.doctor`` must run. The first use raises."""
    try:
        here = getattr(sys.modules.get("torch"), "__version__", None) or metadata.version("torch")
        problem = _of_another_version(here) if here else None  # a damaged installation has none
    except ImportError:  # no pip has installed torch, or nothing is built: the first use says what is wrong
        return
    if problem:
        warnings.warn(problem, RuntimeWarning, stacklevel=3)


def mismatch() -> Optional[str]:
    """What is wrong with this torch, in one line; None where nothing is."""
    import torch

    try:
        from thinwire import _built
    except ImportError:
        return (f"{os.path.dirname(os.path.abspath(__file__))} has Thinwire's Python files and no extension: "
                f"it is a source folder. Build Thinwire, {REBUILD}")

    here = torch.__version__
    problem = _of_another_version(here)
    if problem:
        return problem
    if bool(torch._C._GLIBCXX_USE_CXX11_ABI) != _built.CXX11_ABI:
        had, has = ("new", "old") if _built.CXX11_ABI else ("old", "new")
        return (f"This Thinwire was built for a torch {minor(here)} with the {had} C++ ABI of std::string, "
                f"and torch {here} has the {has} one. Build Thinwire for it, {REBUILD}")
    return None

"""What a process that imports thinwire does at its end, also where it never came to register anything.

Loads nothing by itself: what it needs is there where there is something to tell.
"""
import atexit
import multiprocessing
import multiprocessing.util
import os
import sys
from typing import List

_told: List[int] = []  # this process's number, once it has


def tell_of_error() -> None:
    """Ranks that wait in ``register`` for this one, which an exception ends before, hear of it at once."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if _told == [os.getpid()]:
        return
    try:
        from thinwire import agreement, parting
    except ImportError:  # an extension that does not load has nobody who waits for it
        return
    error = parting.error_of_process()
    is_store_unasked = 0 in parting.unasked and not agreement.served_by_agent()
    if error is not None and not is_store_unasked:
        _told[:] = [os.getpid()]
        agreement.tell_of_error(error)


def watch() -> None:
    """Has the others told at the end of this process."""
    atexit.register(tell_of_error)
    if multiprocessing.parent_process() is not None:  # its children know nothing of atexit
        multiprocessing.util.Finalize(None, tell_of_error, exitpriority=5)

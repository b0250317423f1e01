"""Numbers of which the ranks of a torch group learn the largest."""
import atexit
import ctypes
import time
from typing import List, Optional, Sequence, Set, cast

import torch
import torch.distributed as dist

from thinwire.extension import _C

_unmet: Set["Largest"] = set()


@atexit.register
def _leave_threads_behind() -> None:
    if not all(one._is_completed() for one in list(_unmet)):
        _C.leave_threads_behind()


class Largest:
    """Of numbers that the ranks of ``group`` give, the largest in each place; found out in the background.
    Collective.

    The end of a Gloo group waits for what the group still sends. A rank that is frozen may not take it for as
    long as the group's limit says, and then this process would not end. So the group lives on until its ranks
    have met here.
    """

    def __init__(self, own: Sequence[int], group: dist.ProcessGroup, device: torch.device) -> None:
        self._numbers = torch.tensor(own, dtype=torch.int32, device=device)
        self._work: Optional[dist.Work] = None
        self._group: Optional[ctypes.py_object] = None  # as long as it is kept
        if dist.get_world_size(group) > 1:
            self._work = dist.all_reduce(self._numbers, op=dist.ReduceOp.MAX, group=group, async_op=True)
            self._group = ctypes.py_object(group)
            # A reference that the end of the interpreter does not drop, nor that of this object.
            ctypes.pythonapi.Py_IncRef(self._group)
            _unmet.add(self)

    def wait(self) -> List[int]:
        """RuntimeError where a rank is gone, or torch's timeout has passed."""
        if self._work is not None:
            try:
                self._work.wait()
            finally:
                self._is_completed()
        return cast(List[int], self._numbers.tolist())

    def wait_for(self, seconds: float) -> bool:
        """At most so long. Whether ``wait`` returns or raises at once."""
        end = time.monotonic() + seconds
        while not self._is_completed():
            if time.monotonic() >= end:
                return False
            time.sleep(0.001)
        return True

    def _is_completed(self) -> bool:
        if self._work is not None and not self._work.is_completed():
            return False
        if self._group is not None:
            ctypes.pythonapi.Py_DecRef(self._group)
            self._group = None
            _unmet.discard(self)
        return True

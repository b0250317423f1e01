"""Numbers of which the ranks of a torch group learn the largest."""
import time
from typing import List, Optional, Sequence, cast

import torch
import torch.distributed as dist


class Largest:
    """Of numbers that the ranks of ``group`` give, the largest in each place; found out in the background.
    Collective."""

    def __init__(self, own: Sequence[int], group: dist.ProcessGroup, device: torch.device) -> None:
        self._numbers = torch.tensor(own, dtype=torch.int32, device=device)
        self._work: Optional[dist.Work] = None
        if dist.get_world_size(group) > 1:
            self._work = dist.all_reduce(self._numbers, op=dist.ReduceOp.MAX, group=group, async_op=True)

    def wait(self) -> List[int]:
        """RuntimeError where a rank is gone, or torch's timeout has passed."""
        if self._work is not None:
            self._work.wait()
        return cast(List[int], self._numbers.tolist())

    def wait_for(self, seconds: float) -> bool:
        """At most so long. Whether ``wait`` returns or raises at once."""
        end = time.monotonic() + seconds
        while self._work is not None and not self._work.is_completed():
            if time.monotonic() >= end:
                return False
            time.sleep(0.001)
        return True

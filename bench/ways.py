"""Ways of synchronizing that benchmarks compare: plain DDP, torch's own hooks, and every spec of Thinwire."""

import contextlib
import os

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


@contextlib.contextmanager
def _first_bucket_without_limit():
    limit = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 40
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = limit


def wrap(module, way: str) -> DistributedDataParallel:
    """Gradients are views into buckets, which saves DDP a copy of each, whatever the way.

    Over Gloo torch's PowerSGD hook ends the process unless all parameters are in one bucket.
    """
    if way != "power_sgd_hook":
        return DistributedDataParallel(module, gradient_as_bucket_view=True)
    with _first_bucket_without_limit():
        return DistributedDataParallel(module, bucket_cap_mb=100_000, gradient_as_bucket_view=True)


def attach(
    model: DistributedDataParallel,
    way: str,
    optimizer=None,
    power_sgd_rank: int = 4,
    power_sgd_start: int = 2,
    grad_scaler=None,
):
    """Thinwire's handle; None for plain DDP and torch's hooks.

    power_sgd_start: steps of torch's PowerSGD hook with exact sums. grad_scaler: the training's, if any.
    """
    if way == "fp16_hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif way == "allreduce_hook":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    elif way.startswith("power_sgd_hook"):
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=power_sgd_rank,
            start_powerSGD_iter=max(2, power_sgd_start),
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif way.split(":")[0] != "plain":
        import thinwire

        return thinwire.register(model, way, optimizer=optimizer, grad_scaler=grad_scaler)
    return None


def sent_bytes():
    """What this host's interface has sent since it is up; None where ranks share one."""
    name = os.environ.get("GLOO_SOCKET_IFNAME") or "lo"
    if name == "lo":
        return None
    with open(f"/sys/class/net/{name}/statistics/tx_bytes", encoding="ascii") as file:
        return int(file.read())

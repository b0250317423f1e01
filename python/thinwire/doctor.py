"""What this installation of Thinwire can do, and what is wrong with it: ``python3 -m thinwire.doctor``.

Started by torchrun or ``python3 -m thinwire.launch -n 2 -m thinwire.doctor`` it also measures the link between ranks. Exit status 1 when
something is wrong.
"""
import os
import platform
import sys
from typing import List

import torch
import torch.distributed as dist

from thinwire import _C, group

_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


def _engines() -> str:
    names = [("gloo", getattr(dist, "is_gloo_available", lambda: hasattr(dist, "ProcessGroupGloo"))()),
             ("nccl", dist.is_nccl_available()), ("mpi", dist.is_mpi_available())]
    return ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in names)


def _measure(problems: List[str]) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    private = group.open_private(dist.distributed_c10d._get_default_group(), 1, 60.0)
    latency, bandwidth = _C.measure_link(private.groups[0], private.stores[0], private.store_host, 60.0)
    values = torch.tensor([latency, 1 / bandwidth if bandwidth else 0.0], dtype=torch.float64)
    slowest = values.clone()
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(values)
    if rank == 0:
        mean_latency, mean_time = (values / size).tolist()
        print(f"link        {size} ranks: {mean_latency * 1e6:.0f} us, {8e-9 / mean_time if mean_time else 0:.2f} Gbit/s to the next rank "
              f"(slowest {slowest[0].item() * 1e6:.0f} us, {8e-9 / slowest[1].item() if slowest[1].item() else 0:.2f} Gbit/s)")
        if mean_time and 8e-9 / mean_time > 25:
            print("            a fast link: compression may cost more than it saves, compare with 'dense'")
    dist.barrier()
    private.close()


def main() -> int:
    problems: List[str] = []
    rank = os.environ.get("RANK", "0")
    lines = [f"python      {platform.python_version()}, {sys.executable}",
             f"torch       {torch.__version__}, {os.path.dirname(torch.__file__)}",
             f"thinwire    {_C.version}, {len(_C.systems())} systems, {os.path.dirname(_C.__file__)}",
             f"SIMD        {', '.join(_C.simd_targets())}"]
    lines.append(f"engines     {_engines()}")
    cuda = f"{torch.version.cuda}, {torch.cuda.device_count()} devices" if torch.version.cuda else "no"
    lines.append(f"CUDA        {cuda}; gradients are synchronized in host memory")
    lines.append(f"cores       {os.cpu_count()}, torch uses {torch.get_num_threads()} threads")
    if rank == "0":
        print(*lines, sep="\n")
    missing = [name for name in _VARIABLES if name not in os.environ]
    if not missing:
        _measure(problems)
    elif len(missing) == len(_VARIABLES):
        print("link        not measured: start it on every rank by torchrun, or python3 -m thinwire.launch -n 2 -m thinwire.doctor")
    elif missing:
        problems.append(f"{', '.join(missing)} not set, the other variables of torchrun are: set all of {', '.join(_VARIABLES)} or none")
    if not dist.is_available():
        problems.append("this torch has no torch.distributed")
    for problem in problems:
        print(f"wrong: {problem}")
    if rank == "0" and not problems:
        print("nothing is wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

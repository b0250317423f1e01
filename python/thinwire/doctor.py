"""What this installation of Thinwire can do, and what is wrong with it: ``python3 -m thinwire.doctor``.

Started by torchrun, Slurm's srun or ``python3 -m thinwire.launch -n 2 -m thinwire.doctor`` it also measures
the link between ranks. Exit status 1 when something is wrong.
"""
import argparse
import os
import platform
import sys
from types import ModuleType
from typing import Dict, List

from thinwire.interface import SystemInfo

_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
_DEADLINE_SECONDS = 60.0
# By how Thinwire was built: _C.cuda.
_WHERE_COMPRESSED = {"yes": "devices compress their gradients where torch has CUDA",
                     "emulated": "Thinwire is built with an emulated device, for tests"}
_ON_CPU = "gradients on devices are compressed by the CPU, since Thinwire was built without CUDA"


def _engines(dist: ModuleType) -> str:
    names = [("gloo", hasattr(dist, "ProcessGroupGloo")), ("nccl", dist.is_nccl_available()),
             ("mpi", dist.is_mpi_available())]
    return ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in names)


def _counts(systems: List[SystemInfo]) -> str:
    stages = sum(system["kind"] == "stage" for system in systems)
    return f"{len(systems) - stages} systems, {stages} stages"


def _torchrun_works() -> bool:
    """torch 1.13, which is Debian 12's, reads its own default for --redirects as None under Python 3.11."""
    from torch.distributed.elastic.multiprocessing import Std

    return Std.from_str("0") is not None


def _measure_link() -> str:
    import datetime

    import torch
    import torch.distributed as dist

    from thinwire import group
    from thinwire.extension import _C

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_DEADLINE_SECONDS))
    private = group.open_private(dist.distributed_c10d._get_default_group(), 1, _DEADLINE_SECONDS)
    latency, bandwidth = _C.measure_link(private.groups[0], private.stores[0], private.store_host,
                                         _DEADLINE_SECONDS)
    slowest = torch.tensor([latency, 1 / bandwidth if bandwidth else 0.0], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.barrier()
    private.close()
    latency, seconds = slowest.tolist()
    if not seconds:
        return "one rank: nothing to measure"
    gbit = 8e-9 / seconds
    world = dist.get_world_size()
    return (f"{world} ranks, each to the next one, the slowest: {latency * 1e6:.0f} us, {gbit:.2f} Gbit/s"
            + ("; all on one machine, which says nothing of a network"
               if os.environ.get("LOCAL_WORLD_SIZE") == str(world) else "")
            + ("; fast: compression may cost more than it saves, compare with 'dense'" if gbit > 25 else ""))


def _not_found(error: Exception) -> str:
    """Why ranks do not find each other, and what to look at."""
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return (f"ranks do not find each other at {place} within {_DEADLINE_SECONDS:.0f} s: "
            f"{str(error).splitlines()[0]}. Were all {os.environ['WORLD_SIZE']} started (WORLD_SIZE)? "
            "Does every host reach that address, and name by GLOO_SOCKET_IFNAME an interface "
            "that the others reach?")


def _look(problems: List[str]) -> List[str]:
    """What there is, as lines; what is wrong goes into ``problems``."""
    lines = [f"python      {platform.python_version()}, {sys.executable}"]
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        problems.append(f"torch cannot be imported ({error}): install it in this environment "
                        "(pip install torch, or Debian's python3-torch)")
        return lines
    lines.append(f"torch       {torch.__version__}, {os.path.dirname(torch.__file__)}")
    try:
        from thinwire.extension import _C
    except ImportError as error:
        problems.append(str(error))
        return lines
    from thinwire.cluster import cluster_environment

    lines += [f"thinwire    {_C.version}, {_counts(_C.systems())}, {os.path.dirname(_C.__file__)}",
              f"SIMD        {', '.join(_C.simd_targets())}"]
    if not dist.is_available():
        problems.append("this torch was built without torch.distributed: install another")
        return lines
    lines.append(f"engines     {_engines(dist)}")
    if not hasattr(dist, "ProcessGroupGloo"):
        problems.append("this torch was built without Gloo, which Thinwire's messages go over: "
                        "install another")
    torchrun_works = _torchrun_works()
    lines.append("torchrun    " + (
        "works" if torchrun_works else
        f"that of this torch does not work with Python {platform.python_version()}: start ranks by "
        "python3 -m thinwire.launch, or give torchrun --redirects 9:1 --tee 9:1"))
    cuda = f"{torch.version.cuda}, {torch.cuda.device_count()} devices" if torch.version.cuda else "no"
    if _C.cuda == "yes" and torch.cuda.is_available() and _C.cuda_devices() == 0:
        problems.append("Thinwire was built with CUDA and finds no device, torch does: "
                        "the driver is older than the CUDA that nvcc came from; the CPU compresses")
    lines += [f"CUDA        {cuda}; {_WHERE_COMPRESSED.get(_C.cuda, _ON_CPU)}",
              f"cores       {os.cpu_count()}, threads that torch uses: {torch.get_num_threads()}"]
    try:
        cluster_environment()
    except ValueError as error:
        problems.append(str(error))
    missing = [name for name in _VARIABLES if name not in os.environ]
    if len(missing) == len(_VARIABLES):
        lines.append("link        not measured: start it on every rank, by "
                     f"{'torchrun, ' if torchrun_works else ''}srun or "
                     "python3 -m thinwire.launch -n 2 -m thinwire.doctor")
    elif missing:
        problems.append(f"{', '.join(missing)} not set, and other variables of torchrun are: "
                        f"set all of {', '.join(_VARIABLES)} or none")
    elif not problems:
        try:
            lines.append(f"link        {_measure_link()}")
        except (RuntimeError, ValueError) as error:
            problems.append(_not_found(error))
    return lines


def main() -> int:
    argparse.ArgumentParser(prog="python3 -m thinwire.doctor", description=__doc__,
                            formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    problems: List[str] = []
    lines = _look(problems)
    if os.environ.get("RANK", "0") == "0":
        print(*lines, sep="\n")
    for problem in problems:
        print(f"wrong{' on rank ' + os.environ['RANK'] if 'RANK' in os.environ else ''}: {problem}")
    if os.environ.get("RANK", "0") == "0" and not problems:
        print("nothing is wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

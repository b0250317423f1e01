"""Starts the ranks of a script on this machine, as torchrun does:
``python3 -m thinwire.launch -n 4 train.py --epochs 3``.

Debian 12's torchrun does not work with its own Python 3.11; torch from PyPI brings one that does. Sets RANK,
LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, THINWIRE_JOB, which no other job has,
and for several ranks OMP_NUM_THREADS=1 where it is not set, since each would take all cores for itself. The
launcher serves the rendezvous itself, to this machine alone. When a rank fails, the others have ten seconds
to say why before they are ended; the exit status is that of the first one that failed.

Where Slurm's srun starts several launchers, their ranks make one job:
``srun --ntasks-per-node=1 python3 -m thinwire.launch -n 4 train.py``.
Rank 0 serves the rendezvous then, to all machines.
"""
import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Set, Union

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_GRACE_SECONDS = 10.0
_SECONDS_TO_END = 3.0  # after SIGTERM


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def srun_task() -> Dict[str, str]:
    """The variables of this launcher where srun started several;
    else nothing, as where Thinwire does not load: the ranks will say why."""
    try:
        import torch.distributed  # noqa: F401  without it the extension finds no torch

        from thinwire.extension import _C
    except ImportError:
        return {}
    task = _C.srun_variables()
    return task if task.get("WORLD_SIZE", "1") != "1" else {}


def environments(ranks: int, port: int, task: Optional[Mapping[str, str]] = None) -> List[Dict[str, str]]:
    """What each rank has in its environment beside what is there. task: what srun_task gave."""
    task = task or {}
    common: Dict[str, Union[str, int]] = {"THINWIRE_JOB": os.urandom(8).hex(), "MASTER_ADDR": "127.0.0.1",
                                          **task, "MASTER_PORT": port,
                              "WORLD_SIZE": ranks * int(task.get("WORLD_SIZE", 1)), "LOCAL_WORLD_SIZE": ranks}
    first, first_local = (ranks * int(task.get(name, 0)) for name in ("RANK", "LOCAL_RANK"))
    if ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        common["OMP_NUM_THREADS"] = 1
    return [{key: str(value) for key, value in {**common, "RANK": first + i,
                                                "LOCAL_RANK": first_local + i}.items()} for i in range(ranks)]


def serve_rendezvous(port: int) -> Optional["TCPStore"]:
    """What the ranks meet at, for as long as it is kept; None where torch or Thinwire does not load:
    the ranks will say why.

    Served by a rank it would listen on every interface. port: 0 for a free one.
    """
    try:
        from torch.distributed import TCPStore

        from thinwire.extension import _C
    except ImportError:
        return None
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    if not _C.restrict_to_loopback(store.port):
        print(f"thinwire.launch: the rendezvous at port {store.port} listens on all interfaces",
              file=sys.stderr, flush=True)
    return store


def end(processes: List["subprocess.Popen[bytes]"], first: int) -> None:
    """first: the rank of the first process."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for rank, process in enumerate(processes, first):
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            print(f"thinwire.launch: rank {rank} did not end when it was told to, and is killed: "
                  "it is stopped or stuck", file=sys.stderr, flush=True)
            process.kill()
            process.wait()


def tell(processes: List["subprocess.Popen[bytes]"], first: int, told: Set[int]) -> None:
    """Which ranks ended badly, each once: one that was killed cannot say so itself.
    first: the rank of the first process."""
    for rank, process in enumerate(processes, first):
        code = process.returncode
        if not code or rank in told:
            continue
        told.add(rank)
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        print(f"thinwire.launch: rank {rank} {how}", file=sys.stderr, flush=True)


def tell_of_end(processes: List["subprocess.Popen[bytes]"], first: int) -> None:
    """Which ranks go on after another has failed, and are ended now. first: the first process's rank."""
    left = [str(rank) for rank, process in enumerate(processes, first) if process.poll() is None]
    if left:
        print(f"thinwire.launch: ended {_GRACE_SECONDS:g} s after that: rank{'s' * (len(left) > 1)} "
              f"{', '.join(left)}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m thinwire.launch",
        description="Starts the ranks of a script on this machine, as torchrun does. When a rank fails, the "
                    f"others are ended {_GRACE_SECONDS:.0f} s later.")
    parser.add_argument("-n", "--ranks", type=int, required=True, help="processes to start, from 1")
    parser.add_argument("--port", type=int, default=0,
                        help="of the rendezvous; unless given a free one, or in several tasks of srun theirs")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"-n {options.ranks}: at least 1 rank is needed")
    try:
        task = srun_task()
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command = [sys.executable, *(["-m"] if options.module else []), options.script, *options.arguments]
    processes: List["subprocess.Popen[bytes]"] = []
    told: Set[int] = set()
    first = 0
    status = 0
    deadline = None
    try:
        try:
            store = None if task else serve_rendezvous(options.port)
        except RuntimeError as error:
            print(f"thinwire.launch: cannot serve the rendezvous at port {options.port} "
                  f"({str(error).splitlines()[0]}): choose another --port", file=sys.stderr)
            return 1
        port = (store.port if store is not None else options.port or int(task.get("MASTER_PORT", 0))
                or free_port())
        # What torchrun tells its ranks, so that none of them serves it.
        served = ({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
                  if store is not None else {})
        places = environments(options.ranks, port, task)
        first = int(places[0]["RANK"])
        for environment in places:
            processes.append(subprocess.Popen(command, env={**os.environ, **environment, **served}))
        while any(process.poll() is None for process in processes):
            failed = [process.returncode for process in processes if process.poll() not in (None, 0)]
            tell(processes, first, told)
            if failed and deadline is None:
                status = failed[0] if failed[0] > 0 else 128 - failed[0]
                deadline = time.monotonic() + _GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                tell_of_end(processes, first)
                break
            time.sleep(0.05)
        tell(processes, first, told)
        if status == 0:
            codes = [code for code in (process.poll() for process in processes) if code]
            status = (codes[0] if codes[0] > 0 else 128 - codes[0]) if codes else 0
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        end(processes, first)
    return status


if __name__ == "__main__":
    sys.exit(main())

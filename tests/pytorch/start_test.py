"""Kills or freezes a rank at each place within register: all others end in time and name it.
start_test.py [PLACE:VICTIM...]"""
import os
import signal
import sys
import time

from forked import Rank
from thinwire.launch import environments, free_port

RANKS = 3
# The deadline is 4 s and starting torch takes seconds; a rank that outlasts the deadline does so for minutes.
HANG = 40
WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start_worker.py")


def is_stopped(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "T"


def outputs_of(place, victim):
    """Status and output of each rank; a hang is a status of None."""
    processes = []
    for environment in environments(RANKS, free_port()):
        processes.append(Rank(WORKER, [place, str(victim)], environment))
    end = time.monotonic() + HANG
    results = {}
    for rank in sorted(range(RANKS), key=lambda one: one == victim):
        process = processes[rank]
        if rank == victim and is_stopped(process.pid):
            os.kill(process.pid, signal.SIGKILL)
        status = process.wait(max(end, time.monotonic() + 1))
        results[rank] = (status, process.output())
    return results


def problems_of(place, victim):
    results = outputs_of(place, victim)
    problems = []
    if results[victim][0] != -signal.SIGKILL:
        problems.append(f"the victim was to be killed and ended with {results[victim][0]}: "
                        f"{results[victim][1]}")
    for rank, (status, output) in results.items():
        if rank == victim:
            continue
        lines = [line for line in output.splitlines() if line.startswith("survivor")]
        if status != 3 or len(lines) != 1:
            problems.append(f"rank {rank} ended with {'a hang' if status is None else status}: {output}")
        elif f"rank {victim} is gone or silent" not in lines[0] and f"missing: {victim}." not in lines[0] \
                and f"rank {victim}, whose process serves it, is gone or silent" not in lines[0]:
            problems.append(f"rank {rank} does not name rank {victim}: {lines[0]}")
        else:
            print("   ", lines[0])
    return problems


# Each way to end once; any other PLACE:VICTIM can be given. Rank 0's process serves the store.
CASES = [
    ("before_the_clients", 0), ("before_the_keys", 1), ("before_the_groups", 1), ("between_the_groups", 2),
    ("after_the_groups", 1), ("before_the_keys", 0), ("between_the_groups", 0),
    ("frozen_between_the_groups", 1), ("frozen_between_the_groups", 0),
]

failed = False
for place, victim in [(word.split(":")[0], int(word.split(":")[1])) for word in sys.argv[1:]] or CASES:
    began = time.monotonic()
    problems = problems_of(place, victim)
    failed = failed or bool(problems)
    print("FAILED" if problems else "ok    ", f"{place.replace('_', ' ')}, "
          f"rank {victim} ({time.monotonic() - began:.1f} s)", *problems, sep="\n    " if problems else " ")
sys.exit(1 if failed else 0)

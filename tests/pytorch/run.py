"""Runs a group of worker.py's scenarios on real processes over Gloo: run.py GROUP RANKS."""
import os
import re
import signal
import sys
import time

group, ranks = sys.argv[1], int(sys.argv[2])
# Before torch is loaded, which forked does. Messages must be the same with torch's own stack traces in them
# and without.
os.environ.update(OMP_NUM_THREADS="1", TORCH_SHOW_CPP_STACKTRACES="1" if group == "frozen" else "0")
from forked import Rank  # noqa: E402
from thinwire.launch import environments, free_port  # noqa: E402

victim = {"killed": 1, "frozen": 1, "host_killed": 0, "host_frozen": 0}.get(
    re.sub("_(with|in|before)_.*", "", group))
# The others must end before the limit, and well.
raising = {"error_between_steps": 2, "host_error_between_steps": 0, "host_error_in_forward": 0,
           "error_before_register": 1, "host_error_before_register": 0}.get(
    group, 3 if group.endswith("_raises") else None)
raw = group.endswith("_forward")  # survivors end by errors; Thinwire says what is behind torch's own
LIMIT_SECONDS = 200  # ends what hangs; how soon survivors know is not of this test
SKIPPED = 77
worker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
# Under torchrun each host counts its own restarts, so here every rank has another number of them.
processes = [Rank(worker, [group], {**environment, "TORCHELASTIC_RESTART_COUNT": environment["RANK"]})
             for environment in environments(ranks, free_port())]
end = time.monotonic() + LIMIT_SECONDS
failed = False
survivors = []
statuses = []
for rank in sorted(range(ranks), key=lambda one: one == victim):
    process = processes[rank]
    if rank == victim:
        process.send_signal(signal.SIGKILL)
    status = process.wait(max(end, time.monotonic() + 1))
    output = process.output()
    if status is None:
        output += f"\nrank {rank} did not end within {LIMIT_SECONDS} s"
        failed = True
    statuses.append(status)
    if rank == raising:
        failed |= status != 1 or "ArithmeticError: given up" not in output
    elif rank != victim and (status != 0) != raw:
        print(f"rank {rank} ended with status {status}")
        failed = True
    survivors += re.findall(r"^(?:survivor|thinwire: rank|(?:\[rank\d\]: )?RuntimeError: rank) \d+: .*$",
                            output, re.MULTILINE)
    if rank == 0 or (status != 0 and rank != victim):
        print(output, end="")
words = []  # of every survivor
if victim is not None:
    its = ", whose process serves it," if group == "host_frozen_before_register" else ""
    words = [f"rank {victim}{its} is gone or silent"]
elif raw:
    words = [f"rank {raising} has failed", "ArithmeticError: given up"]
if words:
    print(*survivors, sep="\n")
    if len(survivors) != ranks - 1 or not all(word in line for line in survivors for word in words):
        print(f"every survivor should say {' and '.join(words)}")
        failed = True
if all(status == SKIPPED for status in statuses):
    sys.exit(SKIPPED)
sys.exit(1 if failed else 0)

"""The command line started as Slurm's srun starts it: with its variables, and none of torchrun's.

srun_test.py THINWIRE
"""
import json
import os
import re
import sys

sys.dont_write_bytecode = True
from srun_tasks import new_job, port_of, run  # noqa: E402

THINWIRE = os.path.abspath(sys.argv[1])
BENCH = [THINWIRE, "bench", "--sync", "casq:bits=4", "--elements", "10000", "--steps", "2",
         "--deadline", "30"]
SHOW = ["sh", "-c",
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $THINWIRE_JOB"]
failures = []


def check(name, condition, detail):
    print("ok    " if condition else "FAILED", name, "" if condition else detail)
    if not condition:
        failures.append(name)


def bench_of(done):
    """What the tasks measured: rank 0 says it."""
    if any(status for status, _, _ in done):
        return done
    return [(result["workers"], result["ranks_agree"]) for _, out, _ in done if out
            for result in json.loads(out)]


def check_refused(name, command, pattern, **more):
    status, out, err = run(command, 1, **more)[0]
    check(name, status == 2 and not out and re.fullmatch(f"thinwire: .*{pattern}.*\n", err),
          (status, out, err))


# Ranks as tasks, and as processes of launchers, one in each task.
gloo = [*BENCH, "--engine", "gloo", "--json", "-"]
check("three tasks are one job", bench_of(found := run(gloo, 3)) == [(3, True)], found)
check("two launchers start one job",
      bench_of(found := run([THINWIRE, "launch", "-n", "2", "--", *gloo], 2)) == [(4, True)], found)
lines = [out.split() for _, out, _ in run([THINWIRE, "launch", "-n", "1", "--", *SHOW], 3)]
job = int(re.fullmatch(r"slurm-(\d+)\.0", lines[0][-1])[1])
check("what a launcher tells its rank",
      lines == [[str(rank), "3", str(rank), "1", "localhost", str(port_of(job)), lines[0][-1]]
                for rank in range(3)], lines)
(_, out, _), = run([THINWIRE, "launch", "-n", "2", "--", *SHOW])
check("a single launcher starts a job of its own",
      re.search(r"^1 2 1 2 127\.0\.0\.1 \d+ \d+$", out, re.MULTILINE), out)
(_, out, _), = run([THINWIRE, "launch", "-n", "1", "--port", "23456", "--", *SHOW], SLURM_PROCID=1,
                   SLURM_NTASKS=2, SLURM_STEP_NUM_TASKS=2)
check("--port", out.split()[5] == "23456", out)
killed = run([THINWIRE, "launch", "-n", "2", "--", "sh", "-c", "[ $RANK != 3 ] || kill -9 $$"], 2)
check("a launcher names the job's rank", [status for status, _, _ in killed] == [0, 137]
      and "rank 3 (process" in killed[1][2], killed)

# Who has placed the process already.
two = {"SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2}
done = run(gloo, **two, RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port_of(new_job()))
check("torchrun's variables win", bench_of(done) == [(1, True)], done)
lonely = run(BENCH, 2)
check("processes that nothing joins are told",
      "2 processes were started" in lonely[0][2] and not lonely[1][2], lonely)

# What cannot be.
check_refused("a batch script is no task", gloo, "RANK, WORLD_SIZE are not set: .*`srun -n 4 thinwire",
              SLURM_STEP_ID=None)
check_refused("a shell of salloc is no task", gloo, "`srun -n 4 thinwire", SLURM_NTASKS=3)
check_refused("half an environment", gloo, "SLURM_NTASKS is not set.*pass on", SLURM_NTASKS=None,
              SLURM_STEP_NUM_TASKS=None)
check_refused("bad node list", gloo, r"SLURM_STEP_NODELIST=n\[1-: a list of hosts.*set MASTER_ADDR",
              SLURM_STEP_NODELIST="n[1-")
check_refused("one by hand", gloo,
              "WORLD_SIZE=4, but srun gave this task SLURM_NTASKS=1: unset WORLD_SIZE", WORLD_SIZE=4)
check_refused("launch: bad task", [THINWIRE, "launch", "-n", "1", "--", "true"],
              "SLURM_PROCID=1: a number from 0 to 0", SLURM_PROCID=1)
check_refused("launch: too many ranks", [THINWIRE, "launch", "-n", "2", "--", "true"],
              "at most 1048576 ranks", SLURM_NTASKS=1 << 20,
              SLURM_STEP_NUM_TASKS=1 << 20)

if failures:
    sys.exit(f"{len(failures)} failed")

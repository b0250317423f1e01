"""Starts processes with the variables that Slurm's srun sets, and without Slurm.

As a program it stands in for srun itself: srun_tasks.py TASKS [--OPTION...] COMMAND... runs the command once
per task, and ends with the largest status.
"""
import os
import random
import socket
import subprocess
import sys

TORCHRUNS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
             "THINWIRE_JOB", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
             "TORCHELASTIC_RESTART_COUNT")
SECONDS = 120


def port_of(job):
    """Of a job's first step, as docs/clusters.md says."""
    return 20000 + 8 * job % 12000


def new_job():
    """The number of a job whose port is free."""
    while True:
        job = random.randrange(1, 1 << 24)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port_of(job))) != 0:
                return job


def variables(job, task, tasks, **more):
    """The environment of one task on this machine. more: variables that differ;
    None: one that is not there."""
    own = {
        "SLURM_JOB_ID": job, "SLURM_STEP_ID": 0, "SLURM_PROCID": task, "SLURM_LOCALID": task,
        "SLURM_NTASKS": tasks, "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_JOB_NODELIST": "localhost,no-such-host[1-2]", "SLURM_STEP_NODELIST": "localhost",
        "OMP_NUM_THREADS": 1, **more,
    }
    kept = {name: value for name, value in os.environ.items() if name not in TORCHRUNS
            and not name.startswith("SLURM_")}
    return {**kept, **{name: str(value) for name, value in own.items() if value is not None}}


def run(command, tasks=1, **more):
    """(status, output, errors) of each task."""
    job = new_job()
    processes = [
        subprocess.Popen(command, env=variables(job, task, tasks, **more), stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
        for task in range(tasks)
    ]
    try:
        ended = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, ended)]


if __name__ == "__main__":
    words = sys.argv[2:]
    while words[0].startswith("--"):
        del words[0]
    results = run(words, int(sys.argv[1]))
    for _, out, err in results:
        sys.stdout.write(out)
        sys.stderr.write(err)
    sys.exit(max(status for status, _, _ in results))

"""Starts a job under mpirun that ends badly, and checks what its ranks say and that
nothing of it stays behind.

mpi_ends_test.py TEXT COMMAND...

TEXT: a regular expression that the output must hold.

How mpirun itself ends is not looked at: Open MPI 4.1's can crash, in its own PMIx server, after a rank has
ended within MPI_Finalize. A rank that crashes fails the test.
"""

import os
import re
import signal
import subprocess
import sys
import time
import uuid

HANG = 50


def processes_of(mark):
    """Those that run and have the mark in their environment: the job's."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read():
                    found.append(int(name))
        except (OSError, ValueError):
            continue  # no process, or one that has ended
    return found


def main():
    text, command = sys.argv[1], sys.argv[2:]
    mark = uuid.uuid4().hex
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "THINWIRE_TEST_JOB": mark}
    )
    failures = []
    try:
        output, _ = job.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        failures.append(f"still running after {HANG} s")
    # mpirun ends without waiting for those that it has just killed; they take a moment to disappear. One that
    # has crashed leaves the stopped rank behind.
    patience = time.monotonic() + 2
    while (left := processes_of(mark.encode())) and time.monotonic() < patience:
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if failures:
        output, _ = job.communicate()
    print(output)
    if left and job.returncode >= 0:
        failures.append(f"processes {left} were left running")
    if job.returncode == 0:
        failures.append("mpirun's status is 0")
    if not re.search(text, output):
        failures.append(f"nobody says: {text}")
    # Open MPI writes a process's number with five digits at least: 06197.
    crashed = {int(pid) for pid in re.findall(
        r"^\[[^\]:]*:(\d+)\] \*\*\* Process received signal", output, re.M)} - {job.pid}
    if crashed or job.returncode > 128 or "terminate called" in output:
        failures.append(f"a rank crashed {sorted(crashed)}, mpirun's status is {job.returncode}")
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

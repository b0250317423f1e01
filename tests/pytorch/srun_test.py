"""PyTorch scripts started as Slurm's srun starts them: with its variables, and none of torchrun's.
And what the launcher does with a rank that does not end, and what the doctor says."""
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from unittest import mock

sys.dont_write_bytecode = True
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.append(os.path.join(ROOT, "tests"))

from srun_tasks import run, variables  # noqa: E402

import thinwire  # noqa: E402
from thinwire import launch  # noqa: E402
from thinwire.launch import environments  # noqa: E402

DOCTOR = ["-m", "thinwire.doctor"]
PLACE = ("import os, thinwire; print(sorted(thinwire.cluster_environment().items()), os.environ.get('RANK'), "
         "os.environ.get('MASTER_ADDR'))")


def python(arguments, tasks=1, **more):
    return run([sys.executable, *arguments], tasks, **more)


def last_line(done):
    """Of rank 0, where all ended well."""
    assert all(status == 0 for status, _, _ in done), done
    return done[0][1].splitlines()[-1]


def training_is_that_of_the_launcher():
    with tempfile.TemporaryDirectory() as folder:

        def script(name):
            return [os.path.join(ROOT, "examples", "elastic.py"), "--spec", "casq:bits=4", "--steps", "20",
                    "--checkpoints", f"{folder}/{name}"]

        expected = subprocess.run([sys.executable, "-m", "thinwire.launch", "-n", "3", *script("launch")],
                                  capture_output=True, text=True, check=True)
        loss = last_line(python(script("tasks"), 3))
        assert re.fullmatch(r"loss \d+\.\d+ in the last batch",
                            loss) and loss == expected.stdout.strip(), ((loss, expected))


def launchers_make_one_job():
    done = python(["-m", "thinwire.launch", "-n", "1", *DOCTOR], 2)
    assert last_line(done) == "nothing is wrong" and "2 ranks, each to the next" in done[0][1], done
    task = {"RANK": "4", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "MASTER_ADDR": "n09",
            "THINWIRE_JOB": "slurm-1203.0"}
    own = [{name: one[name] for name in (*task, "LOCAL_WORLD_SIZE", "MASTER_PORT")}
           for one in environments(2, 29624, task)]
    common = {**task, "WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29624"}
    assert own == [{**common, "RANK": "8", "LOCAL_RANK": "2"},
                   {**common, "RANK": "9", "LOCAL_RANK": "3"}], own


def place_is_set_once():
    (status, out, err), = python(["-c", PLACE], SLURM_JOB_ID=1203, SLURM_PROCID=1, SLURM_NTASKS=2,
                                 SLURM_STEP_NUM_TASKS=2, MASTER_PORT="")
    assert status == 0 and out == (
        "[('LOCAL_RANK', '0'), ('MASTER_ADDR', 'localhost'), ('MASTER_PORT', '29624'), ('RANK', '1'), "
        "('THINWIRE_JOB', 'slurm-1203.0'), ('WORLD_SIZE', '2')] 1 localhost\n"), (out, err)
    (status, out, err), = python(["-c", PLACE], RANK=7, WORLD_SIZE=8, MASTER_ADDR="there")
    assert status == 0 and out == "[] 7 there\n", (out, err)


def what_cannot_be_is_named():
    bad = {"SLURM_STEP_NODELIST": "n[3-1]"}
    text = r"SLURM_STEP_NODELIST=n\[3-1\]: a list of hosts such as .* is needed; set MASTER_ADDR"
    for arguments, pattern, status in ((DOCTOR, f"wrong: {text}", 1),
                                       (["-m", "thinwire.launch", "-n", "2", *DOCTOR], f"error: {text}", 2)):
        found = python(arguments, **bad)[0]
        assert found[0] == status and re.search(pattern, found[1] + found[2]), found


def batch_file_starts_its_steps():
    with tempfile.TemporaryDirectory() as folder:
        srun = os.path.join(folder, "srun")
        with open(srun, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\necho "srun $1 OMP_NUM_THREADS=$OMP_NUM_THREADS"\n'
                       f'exec {sys.executable} {ROOT}/tests/srun_tasks.py 2 "$@"\n')
        os.chmod(srun, 0o755)
        environment = {**variables(7, 0, 2, SLURM_STEP_ID=None, SLURM_CPUS_PER_TASK=3),
                       "PATH": f"{folder}:{os.environ['PATH']}",
                       "THINWIRE_PYTHON": sys.executable}
        command = ["bash", os.path.join(ROOT, "examples", "slurm.sbatch")]
        script = ["-c", "import os; print(os.environ['SLURM_PROCID'], 'trains')"]
        done = subprocess.run([*command, *script], env=environment, capture_output=True, text=True)
        assert (done.returncode == 0
                and done.stdout.count("srun --cpus-per-task=3 OMP_NUM_THREADS=3\n") == 2), done
        assert re.search(r"2 ranks, each to the next.*\nnothing is wrong\n(.*\n)+0 trains\n1 trains\n",
                         done.stdout), done
        # A doctor that finds something ends the job.
        stopped = subprocess.run([*command, *script], env={**environment, "THINWIRE_PYTHON": "false"},
                                 capture_output=True, text=True)
        assert stopped.returncode == 1 and stopped.stdout.count("srun") == 1, stopped


def a_rank_that_does_not_end_is_named():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    with mock.patch.object(launch, "_SECONDS_TO_END", 0.2), contextlib.redirect_stderr(io.StringIO()) as said:
        launch.end([process], first=4)
    assert "rank 4 did not end" in said.getvalue() and process.returncode == -signal.SIGKILL, said.getvalue()


def ranks_that_go_on_after_a_failure_are_named():
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import os, time\nif os.environ['RANK'] == '1': os._exit(3)\ntime.sleep(600)\n")
        arguments = ["launch", "-n", "3", script]
        with (mock.patch.object(launch, "_GRACE_SECONDS", 0.5), mock.patch.object(sys, "argv", arguments),
              contextlib.redirect_stderr(io.StringIO()) as said):
            assert launch.main() == 3
    assert "rank 1 ended with status 3" in said.getvalue(), said.getvalue()
    assert "ended 0.5 s after that: ranks 0, 2" in said.getvalue(), said.getvalue()


def the_doctor_knows_whether_torchrun_works():
    """By its own word, and by torchrun."""
    said = subprocess.run([sys.executable, *DOCTOR], capture_output=True, text=True, check=True).stdout
    line = re.search("^torchrun +(.*)$", said, re.MULTILINE)[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1"]

    def runs(*options):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write("print('it ran')\n")
            done = subprocess.run([*torchrun, *options, script], capture_output=True, text=True)
        return done.returncode == 0 and "it ran" in done.stdout

    assert runs() == (line == "works"), line
    if line != "works":
        remedy = re.search("give torchrun (.*)$", line)[1].split()
        assert runs(*remedy) and "by torchrun" not in said, said


def stages_are_no_systems():
    kinds = {system["name"]: system["kind"] for system in thinwire.systems()}
    assert kinds["zen"] == "system" and kinds["top_k"] == "stage", kinds
    (options,) = [system["options"] for system in thinwire.systems() if system["name"] == "power_sgd"]
    assert {"name", "default", "meaning"} == options[0].keys() and "rank" in [one["name"] for one in options]
    said = subprocess.run([sys.executable, *DOCTOR], capture_output=True, text=True, check=True).stdout
    done = subprocess.run([sys.executable, *DOCTOR, "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "nonsense" in done.stderr, done
    counted = [int(number) for number in re.search(r", (\d+) systems, (\d+) stages, ", said).groups()]
    assert counted == [list(kinds.values()).count(kind) for kind in ("system", "stage")], (counted, kinds)


for scenario in (training_is_that_of_the_launcher, launchers_make_one_job, place_is_set_once,
                 what_cannot_be_is_named, batch_file_starts_its_steps,
                 a_rank_that_does_not_end_is_named,
                 ranks_that_go_on_after_a_failure_are_named, the_doctor_knows_whether_torchrun_works,
                 stages_are_no_systems):
    scenario()
    print("ok", scenario.__name__)

"""Runs the tests of one framework's adapter and its examples, each phase in new processes.

frameworks_test.py accelerate|lightning|transformers|fully_shard [PHASE...]

The phases resumed, three and one go on from checkpoints of two, and more from one of one.
"""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time

from thinwire.launch import environments, free_port

SKIPPED = 77
LIMIT_SECONDS = 400
PHASES = {"two": 2, "resumed": 2, "three": 3, "one": 1, "four": 4, "four_resumed": 4, "more": 2, "fails": 2,
          "unconnected": 2, "examples": 2}
SHARDED_PHASES = ("two", "resumed", "four", "four_resumed")
PACKAGES = {"accelerate": ["accelerate"], "lightning": ["lightning"],
            "transformers": ["transformers", "accelerate"], "fully_shard": ["torch"]}
# The examples' default, auto, times steps, and may choose another system in another run.
SPEC = ["--spec", "power_sgd:rank=4"]
# Each ends with the same loss whether it was interrupted or not: how to begin, and how to resume.
EXAMPLES = {
    "accelerate": [("with_accelerate.py", ["--resume"])],
    "lightning": [("with_lightning.py", ["--resume", "lightning_checkpoints/epoch=0.ckpt"]),
                  ("with_fabric.py", ["--resume"])],
    "transformers": [("with_trainer.py", ["--resume", "trainer_checkpoints/checkpoint-10"])],
}
here = os.path.dirname(os.path.abspath(__file__))
worker = os.path.join(here, "framework_worker.py")


def outputs_of(ranks, folder, *command):
    """What each rank prints; None unless all end well, and in time."""
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
             "CUDA_VISIBLE_DEVICES": ""}
    own = environments(ranks, free_port()) if ranks > 1 else [{"RANK": "0", "WORLD_SIZE": "1"}]
    processes = [
        subprocess.Popen([sys.executable, *command], env={**os.environ, **quiet, **environment}, cwd=folder,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for environment in own
    ]
    end, good, outputs = time.monotonic() + LIMIT_SECONDS, True, []
    for rank, process in enumerate(processes):
        try:
            output = process.communicate(timeout=max(1.0, end - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + f"\nrank {rank} did not end within {LIMIT_SECONDS} s"
        if process.returncode != 0:
            good = False
            print(*output.splitlines()[-40:], sep="\n")
        outputs.append(output)
    return outputs if good else None


def phase_is_good(framework, phase, folder, *more):
    outputs = outputs_of(PHASES[phase], folder, worker, framework, phase, folder, *more)
    if outputs is not None:
        print(*[line for output in outputs for line in output.splitlines() if line.startswith(("ok ", "| "))],
              sep="\n")
    return outputs is not None


def example_is_good(name, resume, folder):
    losses = []
    for arguments in ([], resume):
        outputs = outputs_of(2, folder, os.path.join(here, "example_worker.py"),
                             os.path.join(here, "..", "..", "examples", name), *SPEC, *arguments)
        if outputs is None:
            return False
        losses.append(re.findall(r"(?<!train_)loss\D{1,5}([\d.]+)", "".join(outputs))[-1])
    print(f"ok     {name}: loss {losses[0]}, resumed {losses[1]}")
    return losses[0] == losses[1]


def main():
    framework = sys.argv[1]
    for package in PACKAGES[framework]:
        if importlib.util.find_spec(package) is None:
            print(f"skipped: {package} is not installed")
            sys.exit(SKIPPED)
    # Debian's torch cannot import what lies around it.
    torchs = os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "distributed", "fsdp")
    if framework == "fully_shard" and not os.path.isdir(os.path.join(torchs, "_fully_shard")):
        print("skipped: this torch has no fully_shard")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        # torch's own has no adapter to misuse; sharded.py and scattered.py have the rest.
        for phase in sys.argv[2:] or (SHARDED_PHASES if framework == "fully_shard" else PHASES):
            started = time.monotonic()
            if phase == "examples":
                good = all([example_is_good(name, resume, folder) for name, resume in EXAMPLES[framework]])
            else:
                # Ranks end there: a script at a time.
                rounds = [("0",), ("1",)] if phase == "fails" and framework == "lightning" else [()]
                good = all([phase_is_good(framework, phase, folder, *more) for more in rounds])
            print(f"{'      ' if good else 'FAILED'} {framework}: {phase}, "
                  f"{time.monotonic() - started:.0f} s", flush=True)
            if not good:
                sys.exit(1)


main()

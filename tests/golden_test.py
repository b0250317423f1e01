"""Holds a build against the golden record: every system's means, residuals and bytes,
and two short trainings, bit for bit.

golden_test.py LAUNCHER WORKER threads|gloo|training [--record]

--record writes tests/golden anew, for a change that is meant to change results. Exit status 77 where the
machine cannot repeat the record: hashes are those of AVX2 kernels.
"""

import json
import os
import subprocess
import sys
import tempfile

LAUNCHER, WORKER, WHAT = sys.argv[1:4]
RECORD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", WHAT + ".txt")
# Five processes on two cores wait for each other most of the time.
WORLDS = (1, 2, 3, 4, 5, 8) if WHAT == "threads" else (1, 2, 3)
# What torch computes with depends on the processor unless it is told;
# training uses systems whose results do not.
ONE_WAY = {"ATEN_CPU_CAPABILITY": "default", "DNNL_MAX_CPU_ISA": "SSE41", "ONEDNN_MAX_CPU_ISA": "SSE41",
           "OPENBLAS_CORETYPE": "Nehalem", "OMP_NUM_THREADS": "1"}
TRAININGS = (
    ("cnn", "--sync", "top_k:ratio=0.05+zen:scheme=push_pull", "--data", "fashion-mnist", "--lr", "0.05",
     "--momentum", "0.9", "--batch", "16"),
    ("cnn", "--sync", "marsit:full_every=4:eta_s=0.001", "--data", "fashion-mnist", "--lr", "0.05",
     "--momentum", "0", "--batch", "16"),
    ("lstm", "--sync", "rows=zen:scheme=push_pull,dense=half:feedback=on", "--data", "text"),
)


def output(command, **variables):
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, **variables})
    if done.returncode == 77:
        print("skipped:", done.stderr.strip())
        sys.exit(77)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n"
                 f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def of_systems():
    lines = []
    for world in WORLDS:
        if WHAT == "threads":
            text = output([WORKER, "threads", "golden"], WORLD_SIZE=str(world))
        else:
            text = output([LAUNCHER, "launch", "-n", str(world), "--", WORKER, "gloo", "golden"])
        lines += [f"{world} {line[7:]}" for line in text.splitlines() if line.startswith("golden ")
                  and line != "golden begins"]
    return lines


def of_trainings():
    lines = []
    for model, *options in TRAININGS:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            output([LAUNCHER, "train", "--model", model, "--workers", "3", "--epochs", "1", "--limit", "960",
                    "--json", path, *options],
                   **ONE_WAY)
            with open(path, encoding="utf-8") as file:
                results = json.load(file)
        result = results["results"][0] if isinstance(results, dict) and "results" in results else results[0]
        lines.append(f"{model} {result['spec']} {result['model_hash']}")
    return lines


found = of_trainings() if WHAT == "training" else of_systems()
if "--record" in sys.argv:
    os.makedirs(os.path.dirname(RECORD), exist_ok=True)
    with open(RECORD, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in found))
    print(f"{len(found)} lines recorded in {RECORD}")
    sys.exit(0)
with open(RECORD, encoding="utf-8") as file:
    recorded = file.read().splitlines()
if not found or found != recorded:
    for before, now in zip(recorded, found):
        if before != now:
            print(f"recorded: {before}\nnow:      {now}")
    sys.exit(f"{RECORD}: {len(recorded)} lines are recorded, {len(found)} were found, and they differ")
print(f"{len(found)} lines are those recorded")

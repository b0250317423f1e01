"""bench/hsdp at sizes that mean nothing, without a network: what its ranks run."""
import json
import os
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))
SIZES = {"ranks-per-host": 2, "steps": 3, "layers": 2, "width": 48, "batch": 2}

BY_HOSTS = ", ranks of a host as one"
for options, wanted in (([], ["plain", "dense", "casq:bits=4"]),
                        (["--ddp"], ["plain", "dense", "dense" + BY_HOSTS, "casq:bits=4", "casq:bits=4" + BY_HOSTS])):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        words = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
        launch = [sys.executable, "-m", "thinwire.launch", "-n", "4", os.path.join(FOLDER, "rank.py")]
        done = subprocess.run([*launch, "--json", path, *words, *options, "dense", "casq:bits=4"], timeout=200,
                              env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        print(done.stdout, done.stderr, sep="\n")
        assert done.returncode == 0, done.returncode
        with open(path, encoding="utf-8") as file:
            run = json.load(file)
    assert run["parameters"] == 2 * (48 * 48 + 48), run
    assert [way["way"] for way in run["ways"]] == wanted, run
    assert all(len(way["seconds"]) == 3 and min(way["seconds"]) > 0 for way in run["ways"]), run

for wrong, status in ((["--python", "no-python"], 1), (["--rate", "fast"], 2)):
    refused = subprocess.run([sys.executable, os.path.join(FOLDER, "run.py"), *wrong],
                             capture_output=True, text=True, timeout=60)
    assert refused.returncode == status and wrong[1] in refused.stderr, refused.stderr

"""examples/fully_sharded.py on 4 ranks learns, with a small part of the bytes,
within hosts and among all ranks."""
import os
import re
import subprocess
import sys
import tempfile

script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "fully_sharded.py")


def numbers(pattern, text):
    found = re.search(pattern, text)
    assert found, pattern
    return [int(number.replace(",", "")) for number in found.groups()]


# Options, and how many times fewer bytes of gradients it sends at least.
for options, times in (([], 20), (["--all-ranks", "--spec", "casq:bits=4", "--all-gather", "8bit"], 8)):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "thinwire.launch", "-n", "4", script, *options]
        done = subprocess.run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"},
                              capture_output=True, text=True, timeout=200)
        print(done.stdout, done.stderr, sep="\n")
        assert done.returncode == 0, done.returncode
        assert os.listdir(folder) == ["fully_sharded_checkpoint"], os.listdir(folder)
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([0-9.]+)", done.stdout)]
    assert len(losses) == 3 and losses[2] < 0.5 * losses[0], losses
    sent, raw = numbers(r"sends ([0-9,]+) bytes .* ([0-9,]+) of gradients", done.stdout)
    assert times * sent < raw, (sent, raw)
    if "8bit" in options:
        sent, raw = numbers(r"sent ([0-9,]+) bytes of parameters for ([0-9,]+)", done.stdout)
        assert 3.9 * sent < raw, (sent, raw)

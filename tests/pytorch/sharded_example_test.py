"""examples/fully_sharded.py on 4 ranks learns, with a small part of the bytes."""
import os
import re
import subprocess
import sys
import tempfile

script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "fully_sharded.py")
with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, "-m", "thinwire.launch", "-n", "4", script]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200)
    print(done.stdout, done.stderr, sep="\n")
    assert done.returncode == 0, done.returncode
    assert os.listdir(folder) == ["fully_sharded_checkpoint"], os.listdir(folder)
losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([0-9.]+)", done.stdout)]
assert len(losses) == 3 and losses[2] < 0.5 * losses[0], losses
sent, raw = (int(number.replace(",", "")) for number in re.search(r"sends ([0-9,]+) bytes .* ([0-9,]+) of gradients", done.stdout).groups())
assert 20 * sent < raw, (sent, raw)

"""A page of thinwire.HtmlReport in a browser without a screen, in colour and in grey, after a training of two
ranks in which the system changes. Pages that are blank, or whose console has an error, must be told apart."""
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOOK = os.path.join(ROOT, "scripts", "look_at_report")
SKIPPED = 77

TRAINING = """
import sys
import torch
import torch.distributed as dist
from torch import nn
import thinwire

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 5)))
optimizer = torch.optim.AdamW(model.parameters())
handle = thinwire.register(model, "auto:settle=1:rounds=1:steps=2", optimizer=optimizer)
report = thinwire.HtmlReport(handle, sys.argv[1])
torch.manual_seed(dist.get_rank())
for step in range(24):
    if step == 16:
        handle.set("casq:bits=4")
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(5, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report.step(loss=loss)
report.close()
handle.close()
"""


def look(page, picture):
    return subprocess.run([sys.executable, LOOK, page, picture], capture_output=True, text=True, check=False)


def a_page_is_shown(folder):
    script, page = os.path.join(folder, "train.py"), os.path.join(folder, "report.html")
    with open(script, "w", encoding="utf-8") as file:
        file.write(TRAINING)
    subprocess.run([sys.executable, "-m", "thinwire.launch", "-n", "2", script, page], check=True,
                   timeout=120)
    picture = os.path.join(folder, "report.png")
    seen = look(page, picture)
    assert seen.returncode == 0, seen.stderr
    grey = os.path.join(folder, "report-grey.png")
    # A picture of bars and text is larger than one of an empty page, with or without colour.
    for path in (picture, grey):
        assert os.path.getsize(path) > 50_000, (path, os.path.getsize(path))
    with open(picture, "rb") as one, open(grey, "rb") as other:
        assert one.read() != other.read()  # their sizes may be equal


def bad_pages_are_told(folder):
    for body, word in (("", "blank"), ("<p>text</p><script>console.error('seen')</script>", "console")):
        page = os.path.join(folder, f"{word}.html")
        with open(page, "w", encoding="utf-8") as file:
            file.write(f"<!DOCTYPE html><html><body>{body}</body></html>")
        seen = look(page, os.path.join(folder, f"{word}.png"))
        assert seen.returncode != 0 and word in seen.stderr, (word, seen.stderr)


if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
    print("skipped: no Chromium, which shows the report's page")
    sys.exit(SKIPPED)
with tempfile.TemporaryDirectory() as made:
    a_page_is_shown(made)
    bad_pages_are_told(made)

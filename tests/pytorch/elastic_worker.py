"""One rank of examples/elastic.py that dies where it is told, once: elastic_worker.py [ARGUMENT...].

THINWIRE_TEST_DIES is a list of "step=N", before the process's N-th step of its optimizer, and "save=N",
before its N-th file gets its name. Rank 1 dies; with THINWIRE_TEST_HOST set, any rank does, and torchrun
before it. THINWIRE_TEST_FOLDER keeps what has happened: a file for each death,
and the state of each rank as it was right after loading.
"""
import os
import pathlib
import runpy
import signal
import sys

import torch

import thinwire

FOLDER = pathlib.Path(os.environ["THINWIRE_TEST_FOLDER"])
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "elastic.py"


def dies_before(owner, name, count, what):
    """At the count-th call of owner.name."""
    original, calls = getattr(owner, name), [0]

    def counted(*arguments, **named):
        calls[0] += 1
        if calls[0] == count and not (FOLDER / what).exists():
            (FOLDER / what).touch()
            if "THINWIRE_TEST_HOST" in os.environ:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    setattr(owner, name, counted)


def keep_what_is_loaded():
    original = thinwire.Handle.load_state_dict

    def load(self, state, strict=True):
        original(self, state, strict)
        torch.save(self.state_dict(),
                   FOLDER / f"loaded_{os.environ['RANK']}_of_{os.environ['WORLD_SIZE']}.pt")

    thinwire.Handle.load_state_dict = load


if os.environ["RANK"] == "1" or "THINWIRE_TEST_HOST" in os.environ:
    for death in filter(None, os.environ.get("THINWIRE_TEST_DIES", "").split(",")):
        at, call = death.split("=")
        dies_before(*{"step": (torch.optim.AdamW, "step"), "save": (os, "replace")}[at], int(call),
                    f"died_at_{at}")
keep_what_is_loaded()
sys.argv[0] = str(EXAMPLE)
runpy.run_path(str(EXAMPLE), run_name="__main__")

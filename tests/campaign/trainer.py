"""`thinwire train` as a kind of job: its words, its data, and when it can be hit,
which shows in its checkpoints alone."""
import json
import os
import random
import resource
import struct
from typing import Any, Dict, List

from plan import EPOCHS, Plan


def write_images(folder: str) -> None:
    """A data set in the form of Fashion-MNIST, small enough to train on in no time."""
    os.makedirs(folder)
    draw = random.Random(1)
    for name, count in (("train", 48), ("t10k", 10)):
        with open(f"{folder}/{name}-images-idx3-ubyte", "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + draw.randbytes(count * 28 * 28))
        with open(f"{folder}/{name}-labels-idx1-ubyte", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + bytes(index % 10 for index in range(count)))


def words(plan: Plan, program: str, images: str, folder: str, deadline: float) -> List[str]:
    result = [program, "train", "--engine", "gloo", "--workers", str(plan.world), "--data",
              f"fashion-mnist:{images}", "--batch", "4", "--epochs", str(EPOCHS), "--sync", plan.spec,
              "--seed", str(plan.seed + 1), "--deadline", str(deadline), "--checkpoint",
              f"{folder}/checkpoint", "--json", f"{folder}/final.json"]
    return result + (["--resume"] if newest(folder) else [])


def newest(folder: str) -> int:
    """The last epoch of which there is a whole checkpoint; 0: none."""
    place = f"{folder}/checkpoint"
    names = os.listdir(place) if os.path.isdir(place) else []
    return max((int(name[6:]) for name in names if name.startswith("epoch-") and name[6:].isdigit()),
               default=0)


def is_due(plan: Plan, folder: str) -> bool:
    """Whether the moment of the fault has come: the second epoch, or its end."""
    if plan.place == "save" and plan.fault != "disk":
        return os.path.exists(f"{folder}/checkpoint/epoch-2.partial") or newest(folder) >= 2
    return newest(folder) >= 1


def fill_disk(pid: int, allowance: int) -> None:
    """From now on no file of the process grows beyond so many bytes."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (allowance, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))


def result_of(folder: str) -> Dict[str, Any]:
    """What has to be the same in two runs, to the bit."""
    with open(f"{folder}/final.json", encoding="utf-8") as file:
        run = json.load(file)[0]
    return {**{key: run[key] for key in ("model_hash", "residual_norm", "residual_deviation", "ranks_agree")},
            "losses": [epoch["loss"] for epoch in run["epochs"]]}


def is_same(one: Dict[str, Any], other: Dict[str, Any]) -> bool:
    """What one of them does not know is not compared:
    a job that resumes after its last step has taken none that measured residuals."""
    return all(one[key] == other[key] or None in (one[key], other[key]) for key in one)

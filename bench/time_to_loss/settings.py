"""Options that run.py and train.py have in common: what a run's results depend on."""
import argparse

# What runs of one table share.
SHARED = ("steps", "evaluations", "held_out", "text", "layers", "width", "heads", "vocabulary", "context", "batch", "lr",
          "weight_decay", "clip", "threads", "power_sgd_rank", "workers")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", default="", help="a file to learn from instead of the King James Bible")
    parser.add_argument("--evaluations", type=int, default=15, help="evaluations after the first, at even distances (default: 15, of run.py over links above 100 Mbit/s 8)")
    parser.add_argument("--held-out", type=int, default=64, help="windows to evaluate (default %(default)s)")
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=6000)
    parser.add_argument("--context", type=int, default=32, help="words in a window (default %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="windows per rank and step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1, help="of a rank (default %(default)s)")
    parser.add_argument("--power-sgd-rank", type=int, default=4, help="of torch's hook (default %(default)s)")


def shared_of(options: argparse.Namespace) -> dict:
    """steps and workers are the caller's to add."""
    return {key: getattr(options, key) for key in SHARED if key not in ("steps", "workers")}


def arguments_of(options: argparse.Namespace) -> list:
    """The options as train.py reads them."""
    words = []
    for key, value in shared_of(options).items():
        words += ["--" + key.replace("_", "-"), str(value)]
    return words


def require_same(runs: list, wanted: dict, path: str) -> None:
    """Runs of different settings have no common table."""
    for run in runs:
        for key in SHARED:
            if run[key] != wanted[key]:
                raise ValueError(f"{path}: {run['way']} was run with {key} {run[key]}, and now it is {wanted[key]}: "
                                 "name another folder by --results, or remove the file")

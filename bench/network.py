"""Ranks behind emulated links, for benchmarks that start the same script once per rank."""

import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def environment_of(python: str) -> dict:
    """In which `python` has torch and thinwire; where thinwire is not installed, the release build's."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    built = {**environment, "PYTHONPATH": os.path.join(ROOT, "build", "release", "python")}
    probe = [python, "-c", "import thinwire"]
    try:
        for one in (environment, built):
            if subprocess.run(probe, cwd="/", capture_output=True, check=False, env=one).returncode == 0:
                return one
    except FileNotFoundError:
        raise RuntimeError(f"--python {python}: there is no such program") from None
    raise RuntimeError(f"{python} cannot import thinwire: build the release preset, or name another by --python")


def limits_of(rate: str) -> list:
    """What testbed/up and testbed/limit are told of links of this rate.
    A large burst would let much of a slow link's bytes pass for free."""
    return [rate, "--burst", "64kb" if rate.endswith("Mbit") else "1mb"]


class Network:
    """Hosts behind links of a rate while it is entered, which needs root. `loopback` has no links."""

    def __init__(self, name: str, rate: str, workers: int, environment: dict):
        self.rate, self.workers = rate, workers
        self.environment = {**environment, "THINWIRE_TESTBED": f"{name}-{os.getpid()}"}

    def __enter__(self):
        if self.rate != "loopback":
            up = subprocess.run(
                [os.path.join(ROOT, "testbed", "up"), str(self.workers), *limits_of(self.rate)],
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if up.returncode != 0:
                raise RuntimeError(up.stderr.strip())
        return self

    def __exit__(self, *_):
        if self.rate != "loopback":
            subprocess.run(
                [os.path.join(ROOT, "testbed", "down")],
                env=self.environment,
                stdout=subprocess.DEVNULL,
                check=False,
            )

    def command(self, python: str) -> list:
        if self.rate == "loopback":
            return [python, "-m", "thinwire.launch", "-n", str(self.workers)]
        return [os.path.join(ROOT, "testbed", "run"), "--", python]

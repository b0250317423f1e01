"""What scripts share that start trainings: files of results, and how a script ends."""

import json
import os
import subprocess
import sys
import tempfile


def stored(path: str) -> list:
    """The results of a file with one to a line; none where there is no file yet."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def store(path: str, result: dict) -> None:
    """One more of them."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(result, separators=(",", ":")) + "\n")


def read_json(path: str):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path: str, value, **how) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, **how)


def result_of(command: list, environment: dict, what: str):
    """What the command writes to the file that its option --json names."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        done = subprocess.run([*command, "--json", path], env=environment, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{what} ended with status {done.returncode}")
        return read_json(path)


def commit() -> str:
    """Of the checkout that this file lies in, short; 'unknown' where it is none."""
    command = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def exit_status(work) -> int:
    """Of a script that does its work by work(): 1 after an error, which is told in a line."""
    try:
        work()
    except (OSError, RuntimeError, ValueError) as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        return 1
    return 0

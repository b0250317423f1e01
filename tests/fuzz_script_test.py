"""scripts/fuzz without clang: programs play targets. What the record says of them, and what is left to do."""
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts", "fuzz")
loader = importlib.machinery.SourceFileLoader("fuzz_script", PATH)
fuzz = importlib.util.module_from_spec(importlib.util.spec_from_loader("fuzz_script", loader))
loader.exec_module(fuzz)

# Plays a target. Where LEAVES is not empty, its first run ends after 7 inputs with a finding of that name.
# Given an input alone, it ends with AGAIN.
PROGRAM = """#!/bin/sh
for word in "$@"; do
  case $word in
    -runs=*) runs=${word#-runs=} ;;
    -artifact_prefix=*) prefix=${word#-artifact_prefix=} ;;
  esac
done
if [ -z "$runs" ]; then exit AGAIN; fi
if [ -n "LEAVES" ] && ! [ -e SEEN ]; then
  echo stat::number_of_executed_units: 7
  touch "$prefix"LEAVES
  touch SEEN
  exit 70
fi
echo stat::number_of_executed_units: $runs
"""


def with_program(folder, leaves="", again=0):
    programs = os.path.join(folder, "programs")
    logs = os.path.join(folder, "logs")
    for name in (programs, os.path.join(logs, "findings")):
        os.makedirs(name, exist_ok=True)
    path = os.path.join(programs, "fuzz_frame")
    text = PROGRAM.replace("LEAVES", leaves).replace("AGAIN", str(again))
    with open(path, "w") as file:
        file.write(text.replace("SEEN", os.path.join(folder, "seen")))
    os.chmod(path, 0o755)
    fuzz.RECORD = os.path.join(folder, "results", "results.jsonl")
    return logs, programs


def rows():
    with open(fuzz.RECORD) as file:
        return [json.loads(line) for line in file]


def the_record_grows_by_target_and_commit(folder):
    logs, programs = with_program(folder)
    assert not fuzz.run("frame", 100, logs, programs, "one")
    assert not fuzz.run("frame", 50, logs, programs, "one")
    assert not fuzz.run("frame", 1, logs, programs, "two")
    assert [(row["commit"], row["executions"], row["findings"]) for row in rows()] == [
        ("one", 150, 0), ("two", 1, 0)], rows()
    whole = sum(fuzz.WEIGHTS.get(target, fuzz.OTHER_WEIGHT) for target in fuzz.targets())
    share = whole * 1000 * fuzz.WEIGHTS["frame"] // whole
    assert fuzz.shares(["frame"], whole * 1000, rest=False) == {"frame": share}
    assert fuzz.shares(["frame"], whole * 1000, rest=True) == {"frame": share - 151}
    assert fuzz.shares(["frame"], 1, rest=True) == {"frame": 0}


def an_input_that_crashes_is_a_finding(folder):
    logs, programs = with_program(folder, leaves="crash-1", again=1)
    assert fuzz.run("frame", 100, logs, programs, "one")
    assert [(row["executions"], row["findings"]) for row in rows()] == [(7, 1)], rows()
    assert os.path.exists(os.path.join(logs, "findings", "frame-crash-1"))


def a_slow_input_is_tried_again(folder):
    logs, programs = with_program(folder, leaves="timeout-1", again=1)
    assert fuzz.run("frame", 100, logs, programs, "one"), "it is as slow the second time"
    assert rows()[0]["findings"] == 1, rows()


def a_process_that_was_stopped_meanwhile_goes_on(folder):
    logs, programs = with_program(folder, leaves="timeout-1", again=0)
    assert not fuzz.run("frame", 100, logs, programs, "one")
    assert [(row["executions"], row["findings"]) for row in rows()] == [(100, 0)], rows()
    assert os.listdir(os.path.join(logs, "findings")) == []


for test in (the_record_grows_by_target_and_commit, an_input_that_crashes_is_a_finding,
             a_slow_input_is_tried_again, a_process_that_was_stopped_meanwhile_goes_on):
    with tempfile.TemporaryDirectory() as at:
        test(at)
    print(test.__name__, "ok", flush=True)

#!/usr/bin/python3
"""What libtorch_train refuses, and in which words; and its usage:
libtorch_train_test.py THINWIRE LIBTORCH_TRAIN."""
import re
import subprocess
import sys
import tempfile

launcher, example = sys.argv[1:]
with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    file.write("a text of six words only")
    file.flush()
    transformer = ["--model", "transformer", "--text", file.name]
    for options, words in (
            (["--model", "rnn"], "--model rnn: give teacher or transformer"),
            ([*transformer, "--width", "10"], "--width 10: --heads 4 does not divide it"),
            (transformer, "the text has 6 words: more than 10 times --context 32"),
            ([*transformer[:3], file.name + ".missing"], ".missing: cannot be read"),
            ([*transformer, "--layers", "0"], "--layers 0: give a whole number from 1"),
            (["--schedule", "linear"], "--schedule linear: give constant or cosine"),
            (["--warm-up", "20", "--steps", "8"], "--warm-up 20: the training has 8 steps"),
            (["--steps"], "--steps wants a value, N"),
            (["--widht"], "unknown option --widht; --help lists all"),
            (["--widht", "8"], "unknown option --widht")):
        run = subprocess.run([launcher, "launch", "-n", "1", "--", example, "dense", *options],
                             capture_output=True, text=True, timeout=60)
        assert run.returncode != 0 and words in run.stderr, (options, run.returncode, run.stderr)
# Help needs no other ranks.
run = subprocess.run([example, "--help"], capture_output=True, text=True, timeout=60)
assert run.returncode == 0 and not run.stderr, run
listed = dict(re.findall(r"^  (--[a-z-]+) .*\((.*)\)$", run.stdout, re.MULTILINE))
defaults = {"--lr": "0.05", "--steps": "300", "--model": "teacher", "--schedule": "constant",
            "--width": "128", "--text": "the King James Bible"}
assert defaults.items() <= listed.items(), listed
# A stage that does nothing is told once, by rank 0, and so is what such trainings were measured to lose.
for options, told in ((["whole:names=foo*+casq"], "whole:names=foo* fits no parameter of this model"),
                      (["casq", "--optimizer", "adamw"], "casq with Adam: "),
                      (["casq", "--momentum", "0.9"], "casq with momentum: "), (["casq"], "")):
    run = subprocess.run([launcher, "launch", "-n", "2", "--", example, *options, "--steps", "2"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stderr.splitlines() if "casq" in line or "whole" in line]
    assert len(lines) == (told != "") and all(told in line for line in lines), run.stderr

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
# A stage that does nothing is told once, by rank 0, and what such trainings were measured to lose.
for more, told in (([], 0), (["--optimizer", "adamw"], 1)):
    run = subprocess.run([launcher, "launch", "-n", "2", "--", example, "whole:names=foo*+casq", "--steps",
                          "2", *more], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("whole:names=foo* fits no parameter of this model") == 1, run.stderr
    assert run.stderr.count("casq with Adam: ") == told, run.stderr

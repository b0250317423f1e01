#!/usr/bin/python3
"""What each system costs in loss, at equal steps: trains every setting under every recipe with several seeds.

    bench/loss/run.py [SETTING ...] [--recipe RECIPE ...] [--seeds 1,2,3] [--thinwire PATH] [--results DIR]
                      [--wikitext FILE] [--cifar10 DIR] [--epochs N] [--redraw]

A setting is a model, its data and the way people train it (the table SETTINGS below); without one, all are
run whose data are there. A recipe is a spec, and after a blank more options of `thinwire train`, as in
"marsit --local-steps 4". Runs that the results hold already are not run again,
so a call that was ended goes on where it was.
Results: DIR/SETTING.json, a line to a run as `thinwire train --json` has it; DIR/SETTING.md, the table;
DIR/SETTING.png, loss or accuracy against steps and against the bytes of the whole run.
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path += [HERE, os.path.join(ROOT, "bench"), os.path.join(ROOT, "apps", "plot")]

import code_text  # noqa: E402
import loss_report  # noqa: E402
import markov_text  # noqa: E402
from recipes import RECIPES  # noqa: E402
from trainings import exit_status, read_json, store, stored  # noqa: E402

SMALL = ["--model", "transformer", "--vocabulary", "4000"]
TRANSFORMER = SMALL + ["--epochs", "5", "--epoch-steps", "100"]
IMAGES = ["--momentum", "0.9"]

# name: options of `thinwire train`, and the data that must be given by path or, of GENERATED, are made.
SETTINGS = {
    "transformer-kjv": (TRANSFORMER + ["--data", "text"], None),
    "transformer-wikitext2": (TRANSFORMER + ["--data", "text:{}"], "wikitext"),
    # At half of the rate: at the whole one dense itself goes worse with some seeds.
    "transformer-wikitext2-slower": (TRANSFORMER + ["--data", "text:{}", "--lr", "0.001"], "wikitext"),
    "transformer-markov": (TRANSFORMER + ["--data", "text:{}", "--lr-warm-up", "0"], "markov"),
    "transformer-code": (TRANSFORMER + ["--data", "text:{}"], "code"),
    # As with WikiText-2: at half of the rate.
    "transformer-code-slower": (TRANSFORMER + ["--data", "text:{}", "--lr", "0.001"], "code"),
    "transformer-kjv-200": (SMALL + ["--epochs", "1", "--epoch-steps", "200", "--data", "text"], None),
    # Five passes over the text: the loss of dense levels off.
    "transformer-kjv-2000": (SMALL + ["--epochs", "8", "--epoch-steps", "250", "--data", "text"], None),
    "transformer-kjv-momentum": (
        TRANSFORMER + ["--data", "text", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9", "--weight-decay", "0"], None),
    "cnn-fashion": (["--model", "cnn", "--epochs", "4", "--lr", "0.05"] + IMAGES, None),
    "cnn-fashion-1": (["--model", "cnn", "--epochs", "1", "--lr", "0.05"] + IMAGES, None),
    # The accuracy of dense levels off.
    "cnn-fashion-12": (["--model", "cnn", "--epochs", "12", "--lr", "0.05"] + IMAGES, None),
    # Plain SGD.
    "cnn-fashion-sgd": (["--model", "cnn", "--epochs", "2", "--lr", "0.2"], None),
    # An epoch takes about two minutes on two cores.
    "resnet20-cifar10": (["--model", "resnet20", "--data", "cifar10:{}", "--epochs", "4", "--batch", "32", "--lr", "0.1"] + IMAGES,
                         "cifar10"),
    "lstm-kjv": (["--model", "lstm", "--epochs", "2"], None),
}

GENERATED = {"markov": markov_text.text, "code": code_text.text}

WIKITEXT = "a text file of WikiText-2, such as its valid.txt"
CIFAR10 = ("the folder with CIFAR-10's binary files data_batch_1.bin to test_batch.bin, "
           "or with an unpack.py that writes them")


def parse(arguments: list) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"of {', '.join(SETTINGS)}; without one: all")
    parser.add_argument("--recipe", action="append", dest="recipes", metavar="RECIPE", help="instead of the setting's list")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--thinwire", default=os.path.join(ROOT, "build", "release", "thinwire"))
    parser.add_argument("--results", default=os.path.join(ROOT, "results", "loss"))
    parser.add_argument("--wikitext", help=WIKITEXT)
    parser.add_argument("--cifar10", help=CIFAR10)
    parser.add_argument("--epochs", help="instead of the setting's own")
    parser.add_argument("--limit", help="use only so many training examples")
    parser.add_argument("--redraw", action="store_true", help="run nothing: tables and pictures anew from the results")
    given = parser.parse_args(arguments)
    for name in given.settings:
        if name not in SETTINGS:
            parser.error(f"unknown setting '{name}'; known: {', '.join(SETTINGS)}")
    try:
        given.seeds = [int(seed) for seed in given.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {given.seeds}: give whole numbers separated by commas")
    return given


def train(given: argparse.Namespace, options: list, recipe: str, seed: int) -> dict:
    """One run. A run that diverged is a result as well."""
    if not recipe.split():
        raise ValueError("--recipe '': give a spec, such as casq:bits=4")
    spec, *more = recipe.split()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        command = [given.thinwire, "train", *options, *more, "--sync", spec, "--seed", str(seed), "--json", path]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if not os.path.exists(path) or os.path.getsize(path) == 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no result'}")
        (result,) = read_json(path)
    result["label"] = recipe
    # The folder of the data is this machine's.
    result["data"] = result["data"].split(":")[0]
    return result


def cifar10_in(folder: str, scratch: str) -> str:
    """Where CIFAR-10's binary files are: in the folder, or in scratch, where its script writes them."""
    script = os.path.join(folder, "unpack.py")
    if os.path.exists(os.path.join(folder, "test_batch.bin")) or not os.path.exists(script):
        return folder
    place = os.path.join(scratch, "cifar10")
    if not os.path.exists(place):
        status = subprocess.run([sys.executable, script, place], check=False).returncode
        if status != 0:
            raise RuntimeError(f"{script} {place} ended with status {status}")
    return place


def how_to_give(name: str) -> str:
    option, what = {
        "wikitext": ("--wikitext FILE", WIKITEXT), "cifar10": ("--cifar10 DIR", CIFAR10)
    }[SETTINGS[name][1]]
    return (f"skipped, its data were not given. It runs by\n    bench/loss/run.py {name} {option}\n"
            f"with {what}.")


def options_of(given: argparse.Namespace, name: str):
    """Of `thinwire train`; None where the setting's data were not given."""
    options, data = SETTINGS[name]
    if data in GENERATED:
        place = os.path.join(given.scratch, data)
        with open(place, "w", encoding="utf-8") as file:
            file.write(GENERATED[data]())
    else:
        place = getattr(given, data) if data else ""
    if data and not place:
        return None
    if data == "cifar10":
        place = cifar10_in(place, given.scratch)
    options = [option.format(os.path.abspath(place)) if data else option for option in options]
    if given.epochs:
        options += ["--epochs", given.epochs]
    if given.limit:
        options += ["--limit", given.limit]
    return options


def run_setting(given: argparse.Namespace, name: str) -> None:
    options = options_of(given, name)
    if options is None:
        print(f"{name}: {how_to_give(name)}", file=sys.stderr)
        return
    path = os.path.join(given.results, name + ".json")
    recipes = given.recipes or RECIPES[name]
    if not given.redraw:
        for seed in given.seeds:
            for recipe in recipes:
                if any(run["label"] == recipe and run["seed"] == seed for run in stored(path)):
                    continue
                print(f"{name}: {recipe}, seed {seed}", file=sys.stderr, flush=True)
                store(path, train(given, options, recipe, seed))
    loss_report.write(name, stored(path), os.path.join(given.results, name))


def work() -> None:
    given = parse(sys.argv[1:])
    os.makedirs(given.results, exist_ok=True)
    with tempfile.TemporaryDirectory() as given.scratch:
        for name in given.settings or SETTINGS:
            run_setting(given, name)


if __name__ == "__main__":
    sys.exit(exit_status(work))

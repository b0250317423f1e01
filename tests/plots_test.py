"""What the pictures of `train --plot` and `simulate --plot` say."""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "apps", "plot"))
try:
    import matplotlib  # noqa: F401
except ImportError:
    print("matplotlib is missing: nothing is tested")
    sys.exit(0)

import plot_simulation  # noqa: E402
import plot_training  # noqa: E402


def run(label, accuracies, failure=None, seed=1):
    epochs = [{"epoch": at, "test_accuracy": value, "perplexity": None, "wire_bytes_so_far": 1e6 * at}
              for at, value in enumerate(accuracies, start=1)]
    return {"label": label, "seed": seed, "failure": failure, "epochs": epochs, "model": "cnn",
            "data": "fashion-mnist", "workers": 4, "batch": 16, "parameters": 10}


def lines_of(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def one_epoch_has_one_tick_and_sensible_limits():
    by_epoch, by_bytes = plot_training.make([run("dense", [0.8275]), run("marsit", [0.8275])]).axes
    assert list(by_epoch.get_xticks()) == [1]
    low, high = by_epoch.get_ylim()
    assert high - low >= 0.04 and low < 0.8275 < high
    # Equal points lie side by side, in sight.
    places = {line.get_xdata()[0] for line in by_epoch.get_lines()}
    assert len(places) == 2 and all(0.5 < place < 1.5 for place in places)
    # And larger than a line's, which would lead to them.
    two, _ = plot_training.make([run("dense", [0.7, 0.8])]).axes
    size = two.get_lines()[0].get_markersize()
    for axes in (by_epoch, by_bytes):
        assert all(line.get_marker() not in ("", "None", None) and line.get_markersize() > 1.5 * size
                   and line.get_linestyle() == "None" for line in axes.get_lines())
    low, high = by_bytes.get_xlim()
    assert high / low >= 4


def epochs_are_whole_numbers():
    by_epoch, _ = plot_training.make([run("dense", [0.7, 0.8])]).axes
    assert all(tick == int(tick) for tick in by_epoch.get_xticks())


def a_covered_line_is_wider():
    by_epoch, _ = plot_training.make([run("dense", [0.7, 0.8]), run("rows=zen,dense=dense", [0.7, 0.8]),
                                      run("half", [0.6, 0.7])]).axes
    lines = lines_of(by_epoch)
    assert (lines["dense"].get_linewidth() > lines["rows=zen,dense=dense"].get_linewidth()
            == lines["half"].get_linewidth())


def diverged_seeds_are_named_and_not_averaged():
    by_epoch, _ = plot_training.make([
        run("dense", [0.8, 0.9]), run("dense", [0.7, 0.8], seed=2),
        run("amq", [0.5, 0.6]), run("amq", [], "diverged: x", 2),
        run("nuqsgd", [], "diverged: x"), run("nuqsgd", [], "diverged: x", 2)]).axes
    lines = lines_of(by_epoch)
    assert {"dense", "amq (1 of 2 diverged)", "nuqsgd (diverged)"} <= set(lines), lines
    assert all(abs(value - wanted) < 1e-9 for value, wanted in zip(lines["dense"].get_ydata(), [0.75, 0.85]))
    assert list(lines["amq (1 of 2 diverged)"].get_ydata()) == [0.5, 0.6]


def simulated_curves_are_all_in_sight():
    def result(spec, workers, ratio):
        return {"spec": spec, "workers": workers, "density_in": 1, "gamma": 1, "time_vs_dense": ratio,
                "elements": 1000, "scale": 1, "link": "1Gbit:20us", "row_width": 1, "codec": "off"}
    results = [result(spec, workers, ratio) for workers in (2, 4)
               for spec, ratio in (("dense", 1), ("zen", 0.5), ("zen:scheme=push_pull", 0.501),
                                   ("half", 0.9))]
    (axes,) = plot_simulation.make(results).axes
    lines = lines_of(axes)
    assert (lines["zen"].get_linewidth() > lines["zen:scheme=push_pull"].get_linewidth()
            == lines["half"].get_linewidth())
    (dense,) = [text for text in axes.texts if text.get_text() == "dense"]
    assert dense.get_ha() == "left" and dense.xy == (1, 1)  # right of the axes


one_epoch_has_one_tick_and_sensible_limits()
epochs_are_whole_numbers()
a_covered_line_is_wider()
diverged_seeds_are_named_and_not_averaged()
simulated_curves_are_all_in_sight()

"""What the papers' tables and pictures say of seeds that diverged or collapsed, and of settings."""
import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "papers"))

import runs  # noqa: E402


def run(label, seed, accuracy, lr=0.4, sent=1000.0, epochs=2):
    """accuracy: of the last epoch; None: diverged before the first one's end."""
    done = [] if accuracy is None else [
        {"epoch": at + 1, "steps": 5, "loss": 1.0 / (at + 1), "test_accuracy": accuracy}
        for at in range(epochs)]
    return {"label": label, "system": label.split(":")[0], "seed": seed, "test_accuracy": accuracy,
            "epochs": done, "lr": lr, "failure": "diverged: x" if accuracy is None else None,
            "wire_bytes_sent_max": sent, "workers": 4, "batch": 16, "model": "cnn", "data": "fashion-mnist",
            "parameters": 10, "lr_schedule": "cosine", "momentum": 0}


def system(*accuracies):
    return runs.System([run("marsit:full_every=50", seed, value)
                        for seed, value in enumerate(accuracies, start=1)])


def accuracies():
    assert system(0.85, 0.86, 0.87).accuracy_text() == "86.00 ± 1.00"
    assert system(0.85).accuracy_text() == "85.00"  # one value has no deviation
    assert system(0.85, 0.86, None).accuracy_text() == "85.00, 86.00 (1 of 3 diverged)"
    assert system(None, 0.86, None).accuracy_text() == "86.00 (2 of 3 diverged)"
    assert system(0.85, 0.1, 0.8).accuracy_text() == "85.00, 10.00, 80.00 (1 of 3 collapsed)"
    assert system(0.85, 0.1, None).accuracy_text() == "85.00, 10.00 (1 of 3 diverged, 1 of 3 collapsed)"
    assert system(0.73, 0.85, 0.84).whole()  # worse is not collapsed
    assert system(None, None).accuracy_text() == "diverged"
    assert system(0.85, 0.86, None).at_the_end("loss") == "0.5000, 0.5000 (1 of 3 diverged)"


def differences():
    dense = system(0.8, 0.9, 0.85)
    assert system(0.81, 0.93, 0.85).difference_text(dense) == "+1.33 ± 1.53"
    assert system(0.81, 0.93, None).difference_text(dense) == "-"
    assert system(0.81).difference_text(system(0.8)) == "+1.00"


def bytes_of_whole_trainings():
    one = runs.System([run("half", 1, 0.8, sent=100.0), run("half", 2, None, sent=10.0)])
    assert one.bytes == 100
    assert runs.System([run("half", 2, None, sent=10.0)]).bytes == 10


def settings():
    text = runs.describe([run("dense", 1, 0.8), run("dense", 2, 0.8), run("ssdm", 1, 0.3, lr=0.001)])
    assert "learning rate 0.4 (ssdm: 0.001), cosine schedule, no momentum, seeds 1, 2." in text, text
    text = runs.describe([run("dense", 1, 0.8, lr=lr, epochs=1) for lr in (0.03, 0.01)])
    assert "learning rates 0.03, 0.01" in text and "1 epoch of 5 steps" in text and "seed 1." in text, text


def pictures():
    try:
        import drawing
    except ImportError:
        print("matplotlib is missing: pictures are not tested")
        return
    import casq
    assert drawing.limits(59.0, 42.5) == [[42.5], [41.0]] and drawing.limits(10.0, 42.5) == [[10.0], [42.5]]
    assert casq.quantizer_in_full("alq:bits=3:every=1:zero=off:norm=max") == "alq:3 zero=off norm=max"
    systems = [system(0.8, 0.81), system(0.8, None), system(None, None), system(0.8, 0.1)]
    made, (lines, bars) = drawing.figure(2)
    drawing.plot_epochs(lines, systems, "test_accuracy", "test accuracy", lambda one: "x", 1.0)
    titles = [title for title in lines.get_legend_handles_labels()[1]]
    assert titles == ["x", "x (1 of 2 diverged)", "x (diverged)", "x (1 of 2 collapsed)"], titles
    drawing.bars(bars, ["a", "b", "c", "d"], systems)
    texts = [text.get_text() for text in bars.texts]
    assert texts == ["80.5", "1 of 2\ndiverged", "diverged", "1 of 2\ncollapsed"], texts
    # A system that failed for a seed has an open bar.
    assert [bar.get_hatch() for bar in bars.patches] == [None, "//", "//"]
    with tempfile.TemporaryDirectory() as folder:
        made.savefig(os.path.join(folder, "plot.png"))


accuracies()
differences()
bytes_of_whole_trainings()
settings()
pictures()

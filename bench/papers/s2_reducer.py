"""S2 Reducer: each experiment's table and figure."""
from drawing import loss_and_accuracy


def s2_reducer_figure_8(parts: dict) -> tuple:
    return loss_and_accuracy(
        parts, lambda system: f"lambda {system.options['lambda']}" if "lambda" in system.options else "dense",
        "The paper: lambda 0.5 is as good as 1; below, accuracy falls.")

"""Runs the cells of docs/tutorial.ipynb and stores what they print and draw.

For a Python that has torch, matplotlib, Thinwire, nbclient and ipykernel. The notebook remembers which code
has run, by a hash, so that a test finds code that was changed afterwards.
"""
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "tutorial.ipynb"
MINUTES = 30


def hash_of(notebook: dict) -> str:
    """Of all code cells."""
    return hashlib.sha256(json.dumps(["".join(cell["source"]) for cell in notebook["cells"]
                                      if cell["cell_type"] == "code"]).encode()).hexdigest()


def main() -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        kernel = Path(folder, "kernels", "python3")
        kernel.mkdir(parents=True)
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "Python 3",
                                                        "language": "python"}))
        os.environ["JUPYTER_PATH"] = folder
        client = nbclient.NotebookClient(notebook, timeout=60 * MINUTES, kernel_name="python3")
        # Sockets that are files: nobody else can speak to the kernel.
        client.create_kernel_manager().transport = "ipc"
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of this run, which would differ in the next
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["ran"] = hash_of(notebook)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()

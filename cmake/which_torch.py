"""Prints what a build has to know of the torch beside the interpreter that runs this: its version, its
folder, whether its std::string is of the new ABI (1) or the old (0), and how its pybind11 calls itself. One a
line; without torch one line that says what to do, and status 1.

pip builds in an environment of its own and hides the packages that are installed, by PYTHONPATH. The torch
that the extension will be loaded by is one of them, so where none is seen,
this looks again without PYTHONPATH.
"""
import os
import subprocess
import sys

HIDING = ("PYTHONPATH", "PYTHONNOUSERSITE")


def main() -> int:
    try:
        import torch
    except ImportError as error:
        if any(name in os.environ for name in HIDING):
            seen = {name: value for name, value in os.environ.items() if name not in HIDING}
            return subprocess.run([sys.executable, os.path.abspath(__file__)], env=seen).returncode
        print(f"{sys.executable} cannot import torch ({error}): install it there first "
              "(pip install torch, or Debian's python3-torch). Builds by uv and by `python -m build` hide an "
              "installed torch: install scikit-build-core, too, and build without isolation", file=sys.stderr)
        return 1
    print(torch.__version__, os.path.dirname(torch.__file__), int(torch._C._GLIBCXX_USE_CXX11_ABI), sep="\n")
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            print(f'PYBIND11_{name}="{value}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())

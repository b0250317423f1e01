"""A text of another kind than prose: the modules of Python's standard library, as words and signs.

With Debian 12's Python 3.11 it is the same on every machine.
"""

import glob
import os
import re
import sysconfig

LENGTH = 800_000  # words and signs, about as many as the King James Bible has

# What differs from machine to machine.
LEFT_OUT = ("_sysconfigdata", "sitecustomize")


def text(length: int = LENGTH) -> str:
    """Divided by blanks, a line of the source to a line: modules by their names, until it is so long."""
    folder = sysconfig.get_path("stdlib")
    words, lines = 0, []
    for path in sorted(glob.glob(os.path.join(folder, "*.py"))):
        if os.path.basename(path).startswith(LEFT_OUT):
            continue
        with open(path, encoding="utf-8", errors="ignore") as file:
            for line in file:
                found = re.findall(r"\w+|[^\w\s]", line)
                words += len(found)
                lines.append(" ".join(found))
                if words >= length:
                    return "\n".join(lines) + "\n"
    raise ValueError(f"{folder}: its modules have {words} words, and {length} are needed: "
                     "install python3 with its standard library")

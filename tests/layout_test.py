"""scripts/check_layout finds each violation in a made-up tree,
and nothing else there or in a tree that keeps the rules."""
import os
import subprocess
import sys
import tempfile

CHECKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts", "check_layout")


def findings(files: dict) -> list:
    """What the checker prints of a tree with these files, and nothing where it exits with 0."""
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["git", "init", "-q", root], check=True)
        for path, text in files.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True)
        lines = done.stdout.splitlines()
        assert done.stderr == "" and done.returncode == (1 if lines else 0), done
        return lines


def cpp(first: str, lines: int, last: str = "}", before: str = "") -> str:
    """A definition of so many lines."""
    return before + first + "\n" + "  f();\n" * (lines - 2) + last + "\n"


def long_functions_are_found():
    tree = {"src/core/exact.cc": cpp("void exact() {", 60)}
    assert findings(tree) == []
    cases = {
        "plain.cc": (cpp("int plain(int a) {", 61), 1, "plain has 61"),
        "quoted.cu": (cpp("bool quoted() {",
                          61, before="/* { */ const char* k = R\"({)\"; char c = '{'; int n = 1'000;\n"), 2,
                      "quoted has 61"),
        "member.h": (cpp("  Class(int a) : a_{a}, b_(1, {2}) {", 62, "  }\n};", "struct Class {\n public:\n"),
                     3, "Class has 62"),
        "call.cc": (cpp("bool Less::operator()(Span<int> a = {}) const {", 61, before="#define OPEN {\n\n"),
                    3, "operator_ has 61"),
        "lambda.cc": (cpp("void outer() { auto inner = [] {", 63, "}; }", "namespace {\n") + "}\n", 2,
                      "outer has 63"),
        "made_test.cc": (cpp("TEST(Some, Thing) {", 70), 1, "TEST(Some, Thing) has 70"),
        "attribute.cu": (cpp("__global__ void __launch_bounds__(64)\n    kernel(float* a) {", 60), 1,
                         "kernel has 61"),
        "script.py": ("@cached\ndef work():\n" + "    f()\n" * 61, 2, "work has 62"),
    }
    for name, (text, line, what) in cases.items():
        expected = f"src/core/{name}:{line}: {what} lines, the most is 60"
        assert findings({"src/core/" + name: text}) == [expected], name
    script = "#!/usr/bin/env python3\n" + cases["script.py"][0]
    assert findings({"tool": script}) == ["tool:3: work has 62 lines, the most is 60"]


def tables_are_not_functions():
    assert findings({"src/core/table.cc": "const int kTable[] = {\n" + "    1,\n" * 100 + "};\n",
                     "src/core/type.h": "struct Type {\n" + "  int a = f(1);\n" * 100 + "};\n"}) == []


def what_cannot_be_measured_is_said():
    assert findings({"a.cc": "void f() {\n"}) == ["a.cc:1: cannot be measured: "
                                                  "braces or parentheses do not balance"]
    (found,) = findings({"a.py": "def f(:\n"})
    assert found.startswith("a.py:1: cannot be measured: ")


def exceptions_that_are_not_needed_are_found():
    tree = {"apps/train_command.cc": cpp("void add_train_command(CLI::App& app) {", 100)}
    assert findings(tree) == []
    tree["apps/train_command.cc"] = cpp("void add_train_command(CLI::App& app) {", 20)
    assert findings(tree) == ["apps/train_command.cc:1: add_train_command is excepted by check_layout, "
                              "and need not be"]


def full_folders_are_found():
    tree = {f"src/core/{name}": "" for name in range(40)}
    tree.update({f"results/{name}": "" for name in range(50)})
    tree.update({".gitignore": "build\n", **{f"build/{name}": "" for name in range(50)}})
    assert findings(tree) == []
    tree["src/core/40"] = ""
    assert findings(tree) == ["src/core:1: the folder holds 41 files, the most is 40"]


def upward_includes_are_found():
    tree = {"src/wire/a.h": '#include <exchange/system>\n#include "core/b.h"\n#include "wire/b.h"\n'
            '#include "thinwire/span.h"\n',
            "src/wire/a_test.cc": '#include "session/b.h"\n',
            "src/systems/zen/a.cc": '#include "exchange/b.h"\n',
            "apps/train/a.cc": '#include "torch/b.h"\n#include "apps/b.h"\n',
            "tests/a.cc": '#include "apps/b.h"\n'}
    assert findings(tree) == []
    tree["src/wire/a.h"] += '#include "comm/b.h"\n'
    tree["include/thinwire/a.h"] = '#include "core/b.h"\n'
    tree["torch/a.cc"] = '\n  #include "apps/b.h"\n'
    assert findings(tree) == ["include/thinwire/a.h:1: includes from core, which stands above it",
                              "src/wire/a.h:5: includes from comm, which stands above it",
                              "torch/a.cc:2: includes from apps, which stands above it"]


def documents_are_held_to_their_width_and_links():
    wide = "x" * 111
    tree = {"README.md": f"# A page's *name*\n\n| {wide} |\n\n    {wide}\n\n```\n{wide}\n```\n"
            f"[a](docs/b.md#one-2-three) [b](https://c/{'d' * 60})\n",
            "docs/b.md": "# One 2: three\n\n[self](#one-2-three), [up](../README.md#a-pages-name), "
            "`[code](not)`\n"
            "`docs/b.md`, `docs/`, `docs/b.md --all`, `docs/NAME.md`, `elsewhere/x`, `docs/{b,c}.md`\n",
            "other.md": wide + "[a](nowhere.md)"}
    assert findings(tree) == []
    tree["README.md"] += f"{wide}\n- list\n\n    [gone](docs/gone.md)\n"
    tree["docs/b.md"] += "[no](../README.md#nothing) [self](#none)\n`docs/no.md`, `docs/tool --all`\n"
    assert findings(tree) == ["README.md:11: 111 columns, the most is 110",
                              "README.md:14: docs/gone.md leads nowhere",
                              "docs/b.md:5: #none: docs/b.md has no such heading",
                              "docs/b.md:5: ../README.md#nothing: README.md has no such heading",
                              "docs/b.md:6: `docs/no.md` is not in the tree",
                              "docs/b.md:6: `docs/tool` is not in the tree"]


def comments_are_held_to_their_width():
    code, comment = "x" * 120 + ";", "// " + "x" * 107
    assert findings({"src/wire/a.h": f"{code}\n{comment}\n"}) == []
    assert findings({"src/wire/a.h": f"{comment}\n  {comment}\n"}) == [
        "src/wire/a.h:2: a comment of 112 columns, the most is 110"]


def comments_that_begin_with_a_hash_are_held_to_their_width():
    wide, code = "# " + "x" * 109, "x" * 120
    narrow = wide[:110]
    for path in ("a.sh", "a.sbatch", "CMakeLists.txt", "cmake/a.cmake", "cmake/a.cmake.in", "a.yml", "a.yaml",
                 ".clang-tidy"):
        assert findings({path: f"{narrow}\n{code}\n'# {code}'\n"}) == [], path
        assert findings({path: f"{narrow}\n{code} # why\n{wide}\n"}) == [
            f"{path}:2: a comment of 126 columns, the most is 110",
            f"{path}:3: a comment of 111 columns, the most is 110"], path
    assert findings({"tool": f"#!/usr/bin/env bash\n{wide}\n", "notes.txt": wide}) == [
        "tool:2: a comment of 111 columns, the most is 110"]


def comments_and_docstrings_of_python_are_held_to_their_width():
    wide = "x" * 111
    docstrings = f'''"""A module.

{wide}
"""
class A:
    """{wide}"""
    def f(self):
        """{wide}"""
        return 1  # {wide}
'''
    expected = [f"{line}: a comment of {columns} columns, the most is 110"
                for line, columns in ((3, 111), (6, 121), (8, 125), (9, 131))]
    assert findings({"a.py": docstrings}) == ["a.py:" + line for line in expected]
    assert findings({"a.pyi": f"#: {wide}\n"}) == ["a.pyi:1: a comment of 114 columns, the most is 110"]
    assert findings({"tool": f"#!/usr/bin/python3\n# {wide}\n"}) == [
        "tool:2: a comment of 113 columns, the most is 110"]
    assert findings({"a.py": f"# {'x' * 108}\n"}) == []


def code_of_python_is_held_to_its_width():
    wide = f"text = '{'x' * 110}'\n"
    assert findings({"a.py": wide, "bench/b.py": wide + f"# {'x' * 109}\n"}) == [
        "a.py:1: code of 119 columns, the most is 110",
        "bench/b.py:2: a comment of 111 columns, the most is 110"]
    assert findings({"a.py": f"text = '{'x' * 101}'\n"}) == []


long_functions_are_found()
tables_are_not_functions()
what_cannot_be_measured_is_said()
exceptions_that_are_not_needed_are_found()
full_folders_are_found()
upward_includes_are_found()
documents_are_held_to_their_width_and_links()
comments_are_held_to_their_width()
comments_that_begin_with_a_hash_are_held_to_their_width()
comments_and_docstrings_of_python_are_held_to_their_width()
code_of_python_is_held_to_its_width()

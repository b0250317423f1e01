"""What scripts/site is made of, without Sphinx: the site's sources, the page of Python's API,
and the check of links."""
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(ROOT, "website"))
import api  # noqa: E402
import check_links  # noqa: E402
import sources  # noqa: E402


def sources_of(files: dict) -> tuple:
    """(pages by their names, links that lead nowhere) of a made-up repository,
    but with this one's API and contents."""
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", root], check=True)
        for name in ("website/contents.md",
                     *(f"python/thinwire/{name}" for name in os.listdir(os.path.join(ROOT, "python/thinwire"))
                       if name.endswith(".py"))):
            with open(os.path.join(ROOT, name), encoding="utf-8") as file:
                files = {name: file.read(), **files}
        for name, text in files.items():
            os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
        made = sources.Sources(root, folder)
        made.write()
        pages = {}
        for place, _, names in os.walk(folder):
            for name in names:
                with open(os.path.join(place, name), "rb") as file:
                    pages[os.path.relpath(os.path.join(place, name), folder)] = file.read().decode("latin-1")
        return pages, made.broken


def all_pages_are_listed_and_lead_somewhere():
    with tempfile.TemporaryDirectory() as folder:
        made = sources.Sources(ROOT, folder)
        made.write()
        assert made.broken == [], made.broken
        with open(os.path.join(ROOT, "website", "contents.md"), encoding="utf-8") as file:
            listed = re.findall(r"^(?:.*<)?(docs/\w+)>?$", file.read(), re.MULTILINE)
        pages = [f"docs/{name.rpartition('.')[0]}" for name in os.listdir(os.path.join(folder, "docs"))
                 if name.endswith((".md", ".rst"))]
        assert sorted(listed) == sorted(pages), set(listed) ^ set(pages)


def links_lead_to_pages():
    notebook = {"cells": [
        {"cell_type": "markdown", "metadata": {}, "source": ["# A title\n", "[b](b.md)"]},
        {"cell_type": "code", "metadata": {"alt": "a line"}, "source": ["print(1)"],
         "outputs": [{"output_type": "stream", "name": "stdout", "text": ["1\n"]},
                     {"output_type": "display_data",
                      "data": {"image/png": "iVBORw==", "text/plain": ["<Figure>"]}}]}]}
    pages, broken = sources_of({
        "README.md": "# Top\n\n[b](docs/b.md#there) [a tool](tools/run) [tools](tools) `[x](y)` "
        "[away](https://x.org/y) [here](#top)\n\n```\n[x](z)\n```\n",
        "docs/b.md": "# There\n\n[up](../README.md), [a](../tools/a.py), ![](images/c.png)\n",
        "docs/images/c.png": "picture", "docs/n.ipynb": json.dumps(notebook),
        "tools/run": "#!/usr/bin/env bash\necho ```\n", "tools/a.py": "1\n",
        "tools/deep/table.md": "# Table\n", "tools/deep/data.json": "{}",
        "include/thinwire/h.h": "#pragma once\n// What it is,\n// in short.\n//\n// More.\n"})
    assert broken == [], broken
    assert pages["index.md"].startswith("# Top\n\n"
                                        "[b](docs/b.md#there) [a tool](tools/run.md) [tools](tools/index.md) "
                                        "`[x](y)` [away](https://x.org/y) [here](#top)\n\n```\n"
                                        "[x](z)\n```\n") and "toctree" in pages["index.md"]
    assert pages["docs/b.md"] == "# There\n\n[up](../index.md), [a](../tools/a.py.md), ![](images/c.png)\n"
    assert pages["docs/images/c.png"] == "picture"
    assert pages["tools/run.md"].endswith("# `tools/run`\n\n````bash\n#!/usr/bin/env bash\necho ```\n````\n")
    assert pages["tools/index.md"].endswith("- [a.py](a.py.md)\n- [deep/table.md](deep/table.md)\n"
                                            "- [run](run.md)\n")
    assert ("tools/deep/data.json.md" not in pages
            and pages["tools/deep/table.md"].startswith("---\norphan: true\n---\n"))
    assert (pages["docs/n.md"].startswith("# A title\n[b](b.md)\n")
            and "```python\nprint(1)\n```\n\n```text\n1\n```\n\n![a line](n-1.png)\n" in pages["docs/n.md"])
    assert pages["docs/n-1.png"] == "\x89PNG" and json.loads(pages["_extra/docs/n.ipynb"]) == notebook
    header = "- [`thinwire/h.h`](../include/thinwire/h.h.md): What it is, in short.\n"
    assert header in pages["docs/headers.md"]
    _, broken = sources_of({"README.md": "# Top\n\n[b](docs/b.md)\n[out](../../etc)\n",
                            "docs/b.md": "\n\n[c](c.md) [d](../tools)\n"})
    assert sorted(broken) == ["README.md:4: ../../etc leads nowhere", "docs/b.md:3: ../tools leads nowhere",
                              "docs/b.md:3: c.md leads nowhere"], broken


def a_cell_that_failed_is_refused():
    failed = {"cells": [{"cell_type": "code", "metadata": {}, "source": ["1/0"],
                         "outputs": [{"output_type": "error", "ename": "ZeroDivisionError",
                                      "evalue": "division by zero", "traceback": []}]}]}
    try:
        sources.page_of_notebook(failed, "n", str)
    except ValueError as error:
        assert str(error) == "a cell of n.ipynb has failed with ZeroDivisionError: division by zero", error
    else:
        raise AssertionError("it was taken")


def the_api_has_all_public_names():
    page = api.pages(ROOT)["docs/api.rst"]
    with open(os.path.join(ROOT, "python", "thinwire", "__init__.py"), encoding="utf-8") as file:
        names = re.findall(r'"(\w+)"', re.search(r"^__all__ = \[([^]]*)\]", file.read(), re.MULTILINE)[1])
    assert len(names) > 5
    for name in names:
        assert name == "__version__" or re.search(rf"^\.\. py:(function|class):: thinwire\.{name}\b", page,
                                                  re.MULTILINE), name
    register = page[page.index(".. py:function:: "
                               "thinwire.register("):page.index(".. py:class:: thinwire.Handle")]
    assert ("checked_sums: bool=False, ranks_per_host: int=1) -> Handle\n" in register
            and re.search(r"^    :param optimizer: ``lr_after`` and", register, re.MULTILINE))
    assert (".. py:method:: load_state_dict(state: " in page
            and ".. py:property:: spec\n        :type: str" in page
            and "self" not in re.findall(r"::.*\((\w+)", page))


def docstrings_become_what_sphinx_reads():
    assert api.as_rst("Says it.\n\n    code()\n\nMore::\n\n    code\n\n"
                      "    code\n") == "Says it.\n\n::\n\n    code()\n\nMore::\n\n    code\n\n    code"
    assert api.as_rst("Does it.\na: one,\n    and more.\nb: two\nc: three.",
                      ("a", "c")) == "Does it.\n\n:param a: one,\n    and more.\n    b: two\n:param c: three."
    assert api.as_rst(None) == ""


def links_between_pages_are_checked():
    good = ('<a id="x" href="b.html#y">b</a><a href="https://x.org/">away</a><img src="i%20j.png"><a '
            'href="#x"></a><img src="data:image/png;base64,">')
    bad = {"b.html#z": "", "c.html": "", "#none": "", "../out.html": ""}
    with tempfile.TemporaryDirectory() as folder:
        def write(name, text):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)

        assert check_links.broken_in(folder) == [f"{folder}: there is no page"]
        write("i j.png", "")
        write("b.html", '<h1 id="y">b</h1>')
        write("a.html", good)
        assert check_links.broken_in(folder) == []
        write("a.html", good + "".join(f'<a href="{target}"></a>' for target in bad)
              + '<script src="https://x.org/s.js"></script>')
        assert check_links.broken_in(folder) == [f"a.html: {target}"
                                                 for target in (*bad, "https://x.org/s.js")]


all_pages_are_listed_and_lead_somewhere()
links_lead_to_pages()
a_cell_that_failed_is_refused()
the_api_has_all_public_names()
docstrings_become_what_sphinx_reads()
links_between_pages_are_checked()

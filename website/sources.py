"""What the site is made of: sources.py FOLDER writes README.md, docs/ and all that they link to there,
as pages for Sphinx.

Pages lie in FOLDER as they lie in the repository, so most links hold as they are. What a browser would not
show becomes a page: a source file by its text, a folder by the list of its files, a notebook by its cells.
Needs no package but Python's own.
Exit status: 0 all written, 1 with a line for each link that leads nowhere.
"""
import base64
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Callable, Dict, Iterator, List, Set, Tuple, Union

import api

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".pyi": "python", ".cc": "cpp", ".h": "cpp", ".cu": "cuda", ".yaml": "yaml",
             ".json": "json", ".sbatch": "bash", ".sh": "bash",
             ".txt": "text"}
CODE = re.compile(r"^(`{3,}).*?^\1|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")
ORPHAN = "---\norphan: true\n---\n\n"  # tells Sphinx that the contents need not list the page


def links_in(text: str) -> Iterator[Tuple[int, int, str]]:
    """Where each link's target begins and ends, and the target: links within the site's sources alone,
    and none in code."""
    clean = CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in LINK.finditer(clean):
        if not re.match(r"\w+:|#", match[1]):
            yield match.start(1), match.end(1), match[1]


def page_of(path: str, is_folder: bool) -> str:
    """The file of the site's sources that shows a path of the repository."""
    if is_folder:
        return os.path.join(path, "index.md")
    if path == "README.md":
        return "index.md"
    if path.endswith((".md", *PICTURES)):
        return path
    return path[: -len(".ipynb")] + ".md" if path.endswith(".ipynb") else path + ".md"


def fenced(text: str, language: str) -> str:
    fence = "`" * max([3] + [len(run) + 1 for run in re.findall(r"`{3,}", text)])
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def page_of_source(path: str, text: str) -> str:
    language = LANGUAGES.get(os.path.splitext(path)[1])
    if language is None:
        language = "python" if re.match(r"#!.*python", text) else "bash" if text.startswith("#!") else "text"
    return f"{ORPHAN}# `{path}`\n\n{fenced(text, language)}"


def page_of_notebook(notebook: dict, name: str,
                     rewritten: Callable[[str], str]) -> Tuple[str, Dict[str, bytes]]:
    """The page, and its pictures by their names. ValueError where a cell has failed.
    rewritten(text): with links for the site."""
    parts: List[str] = []
    pictures: Dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(fenced(source, "python") if cell["cell_type"] == "code" else rewritten(source) + "\n")
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                raise ValueError(f"a cell of {name}.ipynb has failed with {output['ename']}: "
                                 f"{output['evalue']}")
            picture = output.get("data", {}).get("image/png")
            if picture:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode("".join(picture))
                parts.append(f"![{cell['metadata'].get('alt', '')}]({file})\n")
            elif "text" in output:
                parts.append(fenced("".join(output["text"]), "text"))
    parts.insert(1, "This page is a notebook that has run: "
                 f"<a href=\"{name}.ipynb\" download>{name}.ipynb</a>.\n")
    return "\n".join(parts), pictures


class Sources:
    def __init__(self, root: str, folder: str) -> None:
        self._root, self._folder = root, folder
        self.broken: List[str] = []
        listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], check=True, capture_output=True)
        self._files = sorted(path for path in set(listed.stdout.decode().split("\0"))
                             if os.path.isfile(os.path.join(root, path)))
        self._waiting: List[str] = []
        self._seen: Set[str] = set()

    def write(self) -> None:
        contents = self._read(os.path.join("website", "contents.md"))
        for path in self._files:
            if path == "README.md" or re.fullmatch(r"docs/[^/]+\.(md|ipynb)", path):
                self._add(path)
        for name, page in api.pages(self._root).items():
            self._put(name, page)
        self._put_headers()
        while self._waiting:
            path = self._waiting.pop()
            if os.path.isdir(os.path.join(self._root, path)):
                self._put(page_of(path, True), self._page_of_folder(path))
            elif path.endswith(PICTURES):
                self._copy(path)
            elif path.endswith(".ipynb"):
                self._put_notebook(path)
            elif path.endswith(".md"):
                text = self._rewritten(path, self._read(path))
                before, after = (("", "\n" + contents) if path == "README.md"
                                 else ("" if path.startswith("docs/") else ORPHAN, ""))
                self._put(page_of(path, False), before + text + after)
            else:
                self._put(page_of(path, False), page_of_source(path, self._read(path)))

    def _read(self, path: str) -> str:
        with open(os.path.join(self._root, path), encoding="utf-8") as file:
            return file.read()

    def _put(self, path: str, content: Union[str, bytes]) -> None:
        there = os.path.join(self._folder, path)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        with open(there, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())

    def _copy(self, path: str) -> None:
        with open(os.path.join(self._root, path), "rb") as file:
            self._put(path, file.read())

    def _add(self, path: str) -> None:
        if path not in self._seen:
            self._seen.add(path)
            self._waiting.append(path)

    def _rewritten(self, path: str, text: str) -> str:
        """With links that lead to pages of the site; what they lead to gets a page, too."""
        done, parts = 0, []
        for begin, end, target in links_in(text):
            file, mark, anchor = target.partition("#")
            there = os.path.normpath(os.path.join(os.path.dirname(path), file))
            is_folder = any(one.startswith(there + "/") for one in self._files)
            if there not in self._files and not is_folder:
                self.broken.append(f"{path}:{text.count(chr(10), 0, begin) + 1}: {target} leads nowhere")
                continue
            self._add(there)
            new = os.path.relpath(page_of(there, is_folder), os.path.dirname(page_of(path, False)) or ".")
            parts += [text[done:begin], new + mark + anchor]
            done = end
        return "".join(parts) + text[done:]

    def _page_of_folder(self, folder: str) -> str:
        """Its files, which get pages, and of the folders in it the pages that they have."""
        lines = [f"{ORPHAN}# `{folder}/`\n"]
        inner = [path[len(folder) + 1:] for path in self._files if path.startswith(folder + "/")]
        for name in inner:
            if "/" not in name or (name.count("/") == 1 and name.endswith(".md")):
                self._add(os.path.join(folder, name))
                lines.append(
                    f"- [{name}]({os.path.relpath(page_of(os.path.join(folder, name), False), folder)})"
                )
        return "\n".join(lines) + "\n"

    def _put_notebook(self, path: str) -> None:
        text = self._read(path)
        name = os.path.splitext(os.path.basename(path))[0]
        page, pictures = page_of_notebook(json.loads(text), name, lambda words: self._rewritten(path, words))
        self._put(page_of(path, False), page)
        self._put("_extra/" + path, text)
        for name, picture in pictures.items():
            self._put(os.path.join(os.path.dirname(path), name), picture)

    def _put_headers(self) -> None:
        """What programs include, each with the first paragraph of its comment."""
        lines = ["# C++ headers\n", "For a program that includes Thinwire. [cpp.md](cpp.md) has a whole one, "
                 "and how to link it."]
        lines.append("Each header's comments say what its types and functions do, and what they throw.\n")
        for path in self._files:
            if re.fullmatch(r"include/thinwire/\w+\.h", path):
                self._add(path)
                comment = re.search(r"(?:^//.*\n)+", self._read(path), re.MULTILINE)
                first = re.split(r"\n//\s*\n", comment[0])[0] if comment else ""
                words = " ".join(re.sub(r"^// ?", "", first, flags=re.MULTILINE).split())
                lines.append(f"- [`{path[len('include/'):]}`](../{page_of(path, False)})"
                             + (f": {words}" if words else ""))
        self._put("docs/headers.md", "\n".join(lines) + "\n")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    sources = Sources(ROOT, sys.argv[1])
    sources.write()
    print("\n".join(sources.broken), end="\n" if sources.broken else "")
    return 1 if sources.broken else 0


if __name__ == "__main__":
    sys.exit(main())

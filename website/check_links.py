"""Whether all links between pages of a folder lead to a file and to an anchor in it: check_links.py FOLDER

Prints each that does not as PAGE: TARGET. Exit status: 0 all do, 1 some do not. Links to other sites are not
followed, but pages must load nothing from there.
"""
import os
import sys
import urllib.parse
from html.parser import HTMLParser
from typing import List, Set, Tuple


class Page(HTMLParser):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.anchors: Set[str] = {"", "top"}
        self.targets: List[Tuple[str, bool]] = []  # (target, whether the page loads it)
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag: str, attributes: list) -> None:
        given = dict(attributes)
        self.anchors.update(given[name] for name in ("id", "name") if given.get(name))
        for name in ("href", "src"):
            if given.get(name) is not None:
                self.targets.append((given[name],
                                     name == "src" or tag == "link" and given.get("rel") == "stylesheet"))


def broken_in(folder: str) -> List[str]:
    pages = {}
    for root, _, files in os.walk(folder):
        for name in files:
            if name.endswith(".html"):
                path = os.path.join(root, name)
                pages[path] = Page(path)
    found = []
    for path, page in sorted(pages.items()):
        for target, is_loaded in page.targets:
            parts = urllib.parse.urlsplit(target)
            there = (os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(parts.path)))
                     if parts.path else path)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                good = not is_loaded
            else:
                good = os.path.isfile(there) and not os.path.relpath(there, folder).startswith("..")
                if good and there in pages:
                    good = urllib.parse.unquote(parts.fragment) in pages[there].anchors
            if not good:
                found.append(f"{os.path.relpath(path, folder)}: {target}")
    return found if pages else [f"{folder}: there is no page"]


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    found = broken_in(sys.argv[1])
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

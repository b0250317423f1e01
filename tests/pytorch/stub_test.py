"""Whether thinwire/_C.pyi says what the compiled module has: every name, parameter and type that pybind11
writes into its docstrings, both ways. Also whether this comparison sees it when a line of the stub is
missing, or says something else."""
import ast
import difflib
import os
import re
import sys
from typing import Dict, Iterator, List, Tuple

import torch  # noqa: F401  before the module, which is linked to it

import thinwire
from thinwire import _C

STUB = os.path.join(os.path.dirname(os.path.abspath(thinwire.__file__)), "_C.pyi")
# By what pybind11 calls a type: what a stub calls it. Versions differ.
SAME = {"List": "list", "Sequence": "list", "Tuple": "tuple", "Dict": "dict", "Mapping": "dict",
        "SupportsInt": "int", "SupportsFloat": "float"}
# What pybind11 knows nothing more of.
ANY = {"object", "handle"}

Type = Tuple  # of a name and the types in brackets behind it
# Of parameters as (name, or None where it cannot be given, kind, type), and the type that is returned.
Signature = Tuple


class Reader:
    """Types and signatures, from a stub or from docstrings, in one form."""

    def __init__(self, aliases: Dict[str, ast.expr], dicts: List[str]) -> None:
        self._aliases = aliases
        self._dicts = dicts

    def type(self, node: ast.expr) -> Type:
        if isinstance(node, ast.BinOp):
            return self._union([node.left, node.right])
        if isinstance(node, ast.Constant):
            return (str(node.value),)
        if isinstance(node, ast.Subscript):
            name = self.type(node.value)[0]
            inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
            if name == "Literal":
                return (type(inner[0].value).__name__,)
            if name in ("Union", "Optional"):
                return self._union(inner + ([ast.Constant(None)] if name == "Optional" else []))
            return (name, *(self.type(one) for one in inner))
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        if name in self._aliases:
            return self.type(self._aliases[name])
        return ("dict",) if name in self._dicts else (SAME.get(name, name),)

    def _union(self, nodes: List[ast.expr]) -> Type:
        parts = {self.type(node) for node in nodes} - {("SupportsIndex",)}  # what else is taken for a number
        flat = {one for part in parts for one in (part[1:] if part[0] == "Union" else (part,))}
        return flat.pop() if len(flat) == 1 else ("Union", *sorted(flat))

    def signature(self, node: ast.FunctionDef) -> Signature:
        given = node.args
        assert (given.vararg is None and given.kwarg is None
                and not given.defaults), f"{node.name}: extend this test to its parameters"
        kinds = [(one, "by place")
                 for one in given.posonlyargs + given.args] + [(one, "by name") for one in given.kwonlyargs]
        parameters = []
        for argument, kind in kinds:
            if argument.arg == "self":
                continue
            by_place = (kind == "by place"
                        and (argument in given.posonlyargs or re.fullmatch(r"arg\d+", argument.arg)))
            parameters.append((None if by_place else argument.arg, kind, self.type(argument.annotation)))
        return tuple(parameters), self.type(node.returns)


def of_stub(text: str) -> Dict[str, object]:
    """By name, a method's behind that of its class: a signature, or the type of a value."""
    tree = ast.parse(text)
    aliases = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    dicts = [node.name for node in tree.body if isinstance(node, ast.ClassDef)
             and any(getattr(base, "id", "") == "TypedDict" for base in node.bases)]
    reader = Reader(aliases, dicts)
    found: Dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = reader.signature(node)
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = reader.type(node.annotation)
        elif isinstance(node, ast.ClassDef) and node.name not in dicts:
            found[node.name] = "class"
            found.update({f"{node.name}.{method.name}": reader.signature(method) for method in node.body})
    return found


def of_docstring(function: object, name: str) -> Signature:
    """From the first line that pybind11 writes."""
    line = (function.__doc__ or "").split("\n")[0].replace("::", ".")
    assert line.startswith(name + "(") and "*args" not in line, f"{name}: {line!r} is no signature"
    return Reader({}, []).signature(ast.parse(f"def {line}: ...").body[0])


def of_module() -> Dict[str, object]:
    found: Dict[str, object] = {}
    for name, value in vars(_C).items():
        if name.startswith("__"):
            continue
        if isinstance(value, type):
            found[name] = "class"
            methods = [one for one in vars(value) if one == "__init__" or not one.startswith("_")]
            found.update({f"{name}.{method}": of_docstring(getattr(value, method), method)
                          for method in methods})
        else:
            found[name] = of_docstring(value, name) if callable(value) else (type(value).__name__,)
    return found


def fits(stub: Type, module: Type) -> bool:
    """The stub may say more than pybind11 knows."""
    if module[0] in ANY:
        return True
    if stub[0] != module[0]:
        return False
    return (len(module) == 1 or (len(stub) == len(module)
                                 and all(fits(one, other) for one, other in zip(stub[1:], module[1:]))))


def fit(stub: object, module: object) -> bool:
    if stub == "class" or module == "class" or isinstance(stub[0], str) or isinstance(module[0], str):
        return stub == module
    same = [one[:2] for one in stub[0]] == [one[:2] for one in module[0]]
    return (same and all(fits(one[2], other[2]) for one, other in zip(stub[0], module[0]))
            and fits(stub[1], module[1]))


def differences(text: str) -> List[str]:
    stub, module = of_stub(text), of_module()
    found = [f"{name} is in the stub and not in the module" for name in stub.keys() - module.keys()]
    found += [f"{name} is in the module and not in the stub" for name in module.keys() - stub.keys()]
    return found + [f"{name} is {module[name]} in the module, and {stub[name]} in the stub"
                    for name in stub.keys() & module.keys() if not fit(stub[name], module[name])]


def wrong_stubs(text: str) -> Iterator[str]:
    """Each differs from the stub in one place: without a definition or a parameter, with another type,
    or with a name more."""
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for body in [tree.body, *(node.body for node in classes)]:
        for node in [one for one in body if isinstance(one, (ast.FunctionDef, ast.AnnAssign))]:
            yield from without(tree, body, node)
            kind = "returns" if isinstance(node, ast.FunctionDef) else "annotation"
            before = getattr(node, kind)
            setattr(node, kind, ast.Name("complex"))
            yield ast.unparse(tree)
            setattr(node, kind, before)
            for arguments in ((node.args.posonlyargs, node.args.kwonlyargs)
                              if isinstance(node, ast.FunctionDef) else ()):
                for argument in [one for one in arguments if one.arg != "self"]:
                    yield from without(tree, arguments, argument)
    yield text + "\ndef more() -> None: ...\n"


def without(tree: ast.Module, nodes: List[ast.AST], node: ast.AST) -> Iterator[str]:
    place = nodes.index(node)
    nodes.remove(node)
    yield ast.unparse(tree)
    nodes.insert(place, node)


def main() -> int:
    with open(STUB, encoding="utf-8") as file:
        text = file.read()
    found = differences(text)
    print(*found, sep="\n")
    wrong = list(wrong_stubs(text))
    unseen = [one for one in wrong if not differences(one)]
    for one in unseen:
        print("\n".join(difflib.unified_diff(ast.unparse(ast.parse(text)).splitlines(), one.splitlines(),
                                             lineterm="", n=0)), "is not seen")
    print(f"{len(of_module())} names compared, {len(found)} differ; {len(wrong)} wrong stubs, "
          f"{len(unseen)} unseen")
    return 1 if found or unseen or len(wrong) < len(of_module()) else 0


if __name__ == "__main__":
    sys.exit(main())

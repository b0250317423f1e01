"""The page about Python's API, from signatures and docstrings. Sources are parsed,
so neither torch nor the compiled module is needed."""
import ast
import inspect
import os
import re
from typing import Dict, List, Optional, Tuple

#: (heading, what is said first, [(module, name, members)]). members: of a class,
#: None for all that have a docstring.
Entry = Tuple[str, str, Optional[Tuple[str, ...]]]
CONTENTS: List[Tuple[str, str, List[Entry]]] = [
    ("Under DistributedDataParallel", "", [
        ("ddp", "register", None), ("handle", "Handle", None), ("lazy", "comm_hook", None),
        ("lazy", "LazyState", None), ("local_steps", "LocalSteps", None), ("ddp", "systems", None),
        ("cluster", "cluster_environment", None)]),
    ("A page about a training", "", [("html_report", "HtmlReport", ("step", "resume", "write", "close"))]),
    ("Under fully_shard", "",
     [("fsdp", "fully_shard", None), ("sharded_handle", "ShardedHandle", None),
      ("shards", "states_in", None)]),
    ("Accelerate", "accelerate", [("accelerate", "register", None)]),
    ("Lightning", "lightning", [("lightning", "ThinwireCallback", None), ("lightning", "register", None)]),
    ("Hugging Face's Trainer", "transformers", [("transformers", "ThinwireCallback", None)]),
    ("What adapters return", "", [("adapter", "Synchronization", (
        "model", "is_over", "scalars", "close", "save", "load", "state_dict", "load_state_dict"
    ))]),
    ("Types", "interface", [("interface", name, None) for name in (
        "Report", "EngineReport", "BucketReport", "Costs", "Engines", "Options", "AdapterOptions",
        "CommonOptions", "GradScaler", "Writer")]),
    ("thinwire.launch", "launch", []),
    ("thinwire.doctor", "doctor", []),
    ("thinwire.plan", "plan", []),
]
# Where users import these from: thinwire itself.
TOP = ("register", "Handle", "LocalSteps", "comm_hook", "systems", "cluster_environment", "HtmlReport",
       "fully_shard")
ARGUMENT = re.compile(r"(\w+): (.*)", re.DOTALL)


def as_rst(docstring: Optional[str], arguments: Tuple[str, ...] = ()) -> str:
    """A docstring as Sphinx reads it: what is said of each argument becomes a field,
    and indented examples become code."""
    parts: List[str] = []
    for paragraph in inspect.cleandoc(docstring or "").split("\n\n"):
        if paragraph.startswith("    "):
            if not parts[-1].endswith("::") and not parts[-1].startswith(" "):
                parts.append("::")
            parts.append(paragraph)
            continue
        lines: List[str] = []
        for line in paragraph.splitlines():
            argument = ARGUMENT.fullmatch(line)
            if argument and argument[1] in arguments:
                lines.append(f":param {argument[1]}: {argument[2]}")
            else:
                lines.append("    " + line.strip()
                             if any(one.startswith(":param") for one in lines) else line)
        # Fields begin a paragraph of their own.
        first = next((i for i, line in enumerate(lines) if line.startswith(":param")), len(lines))
        parts += ["\n".join(some) for some in (lines[:first], lines[first:]) if some]
    return "\n\n".join(parts)


def arguments_of(function: ast.FunctionDef, is_method: bool) -> Tuple[str, Tuple[str, ...]]:
    """As they stand in the call, and their names."""
    arguments = function.args
    if is_method:
        (arguments.posonlyargs or arguments.args).pop(0)
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs,
             *(one for one in (arguments.vararg, arguments.kwarg) if one)]
    for one in named:  # forward references look like any other type
        if isinstance(one.annotation, ast.Constant) and isinstance(one.annotation.value, str):
            one.annotation = ast.parse(one.annotation.value, mode="eval").body
    return ast.unparse(arguments), tuple(one.arg for one in named)


def result_of(function: ast.FunctionDef) -> str:
    returns = function.returns
    if returns is None:
        return ""
    return " -> " + (returns.value if isinstance(returns, ast.Constant) and isinstance(returns.value, str)
                     else ast.unparse(returns))


def indented(text: str, by: int = 4) -> str:
    return "\n".join(" " * by + line if line else line for line in text.splitlines())


def member(node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign):
        return (f".. py:attribute:: {ast.unparse(node.target)}\n    :type: {ast.unparse(node.annotation)}\n"
                "    :no-contents-entry:\n")
    assert isinstance(node, ast.FunctionDef)
    is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)
    signature, names = arguments_of(node, is_method=True)
    if is_property:
        head = f".. py:property:: {node.name}\n    :type: {result_of(node)[4:]}"
    else:
        head = f".. py:method:: {node.name}({signature}){result_of(node)}"
    return f"{head}\n\n{indented(as_rst(ast.get_docstring(node), names))}\n"


def entry(tree: ast.Module, module: str, name: str, members: Optional[Tuple[str, ...]]) -> str:
    node = next(one for one in tree.body if isinstance(one, (ast.FunctionDef, ast.ClassDef))
                and one.name == name)
    shown = (f"thinwire.{name}" if name in TOP and module not in ("accelerate", "lightning")
             else f"thinwire.{module}.{name}")
    shown = f"thinwire.fsdp.{name}" if name in ("states_in", "ShardedHandle") else shown
    if isinstance(node, ast.FunctionDef):
        signature, names = arguments_of(node, is_method=False)
        return (f".. py:function:: {shown}({signature}){result_of(node)}\n\n"
                f"{indented(as_rst(ast.get_docstring(node), names))}\n")
    made = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"
                 and ast.get_docstring(one)), None)
    signature, names = arguments_of(made, is_method=True) if made else ("", ())
    parts = [as_rst(ast.get_docstring(node))]
    bases = [one.id if isinstance(one, ast.Name) else one.attr
             for one in node.bases if isinstance(one, (ast.Name, ast.Attribute))]
    bases = [base for base in bases if base not in ("TypedDict", "Protocol", "Callback",
                                                    "TrainerCallback", "HookState", "StepsOfHook")]
    if bases:
        parts.append(f"Has what ``{bases[0]}`` has, too.")
    if made:
        parts.append(as_rst(ast.get_docstring(made), names))
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            is_shown = (one.name in members if members
                        else ast.get_docstring(one) or (not made and module == "interface"))
        else:
            is_shown = isinstance(one, ast.AnnAssign)
        if is_shown:
            parts.append(member(one))
    arguments = f"({signature})" if made else ""
    return f".. py:class:: {shown}{arguments}\n\n" + indented("\n\n".join(parts)) + "\n"


def heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"


def pages(root: str) -> Dict[str, str]:
    """The page by its file among the site's sources. StopIteration where CONTENTS names what is not there."""
    trees: Dict[str, ast.Module] = {}

    def tree_of(module: str) -> ast.Module:
        if module not in trees:
            with open(os.path.join(root, "python", "thinwire", module + ".py"), encoding="utf-8") as file:
                trees[module] = ast.parse(file.read())
        return trees[module]

    parts = [heading("Python API", "="), as_rst(ast.get_docstring(tree_of("__init__")))]
    for title, module, entries in CONTENTS:
        parts.append(heading(title, "-"))
        if module:
            parts.append(as_rst(ast.get_docstring(tree_of(module))))
        parts += [entry(tree_of(home), home, name, members) for home, name, members in entries]
    return {os.path.join("docs", "api.rst"): "\n\n".join(parts) + "\n"}

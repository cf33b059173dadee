"""Rules of a module that are read off its text; nothing runs. Each gives "" or what breaks it."""

import ast
import difflib

from loong_jax import syntax
from loong_jax.environments import modules

# Names through which text becomes code, or code reaches its interpreter or the machine.
FORBIDDEN_NAMES = frozenset(
    {"eval", "exec", "compile", "open", "input", "globals", "locals", "vars", "getattr", "setattr"}
    | {"delattr", "breakpoint", "exit", "quit", "help", "memoryview", "id", "hash", "print"}
)


def size(source: str) -> str:
    """A module that cannot be read over is refused: nobody would."""
    if not source.strip():
        return "the module is empty"
    if len(source) > modules.MAX_SOURCE_CHARS:
        return f"{len(source)} characters, more than {modules.MAX_SOURCE_CHARS}"
    return ""


def parses(source: str) -> str:
    """Source that Python cannot parse is refused: the gates after this one read its syntax tree."""
    try:
        syntax.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno} is not Python: {error.msg}"[:200]
    except syntax.UNREADABLE as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def imports(source: str) -> str:
    """Files, network, clocks and processes are out of reach of the allowed imports."""
    for node in ast.walk(syntax.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for name in names:
            if name not in modules.ALLOWED_IMPORTS and name != "collections.abc":
                allowed = ", ".join(sorted(modules.ALLOWED_IMPORTS))
                return f"line {node.lineno} imports {name}, none of {allowed}"  # pyright: ignore
    return ""


def names(source: str) -> str:
    """An answer must stay text: nothing here may turn text into code or reach the interpreter."""
    for node in ast.walk(syntax.parse(source)):
        if isinstance(node, ast.Name):
            name = node.id
        elif isinstance(node, ast.Attribute):
            name = node.attr
            if not (name.startswith("__") or name in {"format_map"}):
                continue
        else:
            continue
        is_dunder = name.startswith("__") and name.endswith("__")
        if name in FORBIDDEN_NAMES or (is_dunder and name != "__name__") or name == "format_map":
            return f"line {node.lineno} uses {name}"
    return ""


def protocol(source: str) -> str:
    """Every function of the protocol is there, as a plain function with its parameters."""
    found = {
        node.name: node for node in syntax.parse(source).body if isinstance(node, ast.FunctionDef)
    }
    for name, count in (modules.REQUIRED | modules.OPTIONAL).items():
        if name not in found:
            if name in modules.REQUIRED:
                near = difflib.get_close_matches(name, set(found) - set(modules.REQUIRED), 1)
                return (
                    f"it defines no {name}()" + "".join(f" but {other}()" for other in near)
                    + f"; it needs {', '.join(modules.REQUIRED)}"
                )  # fmt: skip
            continue
        arguments = found[name].args
        if arguments.vararg or arguments.kwarg or len(arguments.args) != count:
            return f"{name}() must take {count} arguments by position"
    for node in ast.walk(syntax.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef | ast.Global):
            return f"line {node.lineno} is async or global: the functions are pure"
    return ""

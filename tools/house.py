"""Prints the size of the house: `python tools/house.py [TREE ...]`, this tree's by default.

Lines and files by room, functions (median and 95th percentile of their lines), files below 60 and
above 450 lines, `raise` statements, lines of tests and docs. Two trees stand side by side.
"""

import ast
import statistics
import sys
from collections import Counter
from pathlib import Path

import rich.console
import rich.table


def sources(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.py"))


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def room_of(path: Path, package: Path) -> str:
    inside = path.relative_to(package).parts
    return inside[0] if len(inside) > 1 else "(top)"


def figures(tree: Path) -> dict[str, str]:
    package, lines, files = tree / "loong_jax", Counter[str](), Counter[str]()
    functions, raises = [], 0
    lengths = {path: num_lines(path) for path in sources(package)}
    for path, length in lengths.items():
        lines[room_of(path, package)] += length
        files[room_of(path, package)] += 1
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            raises += isinstance(node, ast.Raise)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
    total = sum(lengths.values())
    found = {
        "package": f"{total:,} lines, {len(lengths)} files",
        "a file": f"{statistics.median(lengths.values()):.0f} lines in the median",
        "files below 60 lines": f"{sum(length < 60 for length in lengths.values())}",
        "files above 450 lines": f"{sum(length > 450 for length in lengths.values())}",
        "functions": f"{len(functions):,}",
        "a function": f"{statistics.median(functions):.0f} lines in the median, "
        f"{statistics.quantiles(functions, n=20)[-1]:.0f} at 95 %",
        "raise": f"{raises:,}, one for {total / raises:.0f} lines",
        "tests": f"{sum(map(num_lines, sources(tree / 'tests'))):,} lines, "
        f"{len(sources(tree / 'tests'))} files",
        "docs": f"{sum(map(num_lines, (tree / 'docs').rglob('*.md'))):,} lines of Markdown",
    }
    rooms = {f"  {room}": f"{lines[room]:,} in {files[room]}" for room in sorted(lines)}
    return found | rooms


def main(trees: list[Path]) -> None:
    columns = [figures(tree) for tree in trees]
    table = rich.table.Table("", *map(str, trees))
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(name, *(column.get(name, "") for column in columns))
    rich.console.Console().print(table)


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]] or [Path(__file__).resolve().parents[1]])

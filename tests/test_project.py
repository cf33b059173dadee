"""The house rules that a machine can check: who imports whom, and what no file may hold."""

import ast
import functools
import graphlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "loong_jax"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Packages that an accelerator machine may lack -> a word in the name of the modules that may
# import them.
ADAPTERS = {
    "ray": ("ray",),
    "jetstream": ("jetstream",),
    "torch": ("torch",),
    "transformers": ("hf", "convert"),
    "tensorflow": (),
    "mergekit": ("mergekit",),
}
# Scheduling touches no array. The simulator draws lengths with NumPy, for it plays the replicas.
ARRAY_FREE = {"orchestrator"}
PLAYS_REPLICAS = "loong_jax.orchestrator.simulation"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports, wherever in it, by absolute name."""
    return frozenset(imported(parsed(path)))


def imported(node: ast.AST, *, for_types: bool = True) -> Iterator[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_types:
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno} imports relatively. Name the module."
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imported(child, for_types=for_types)


def named_in_strings(path: Path) -> frozenset[str]:
    """Modules that whole strings name, as `importlib` is given them."""
    texts = [node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant)]
    is_ours = re.compile(r"loong_jax\.[\w.:]+").fullmatch
    return frozenset(text for text in texts if isinstance(text, str) and is_ours(text))


def room_of(name: str) -> str | None:
    """The package or module right below ours; None for ours itself and for other packages."""
    parts = re.split("[.:]", name)
    is_room = parts[0] == "loong_jax" and len(parts) > 1 and parts[1] != "__version__"
    return parts[1] if is_room else None


def rooms_known() -> dict[str, set[str]]:
    """By room: those that its modules import, for types or by a string too."""
    known: dict[str, set[str]] = {}
    for path in MODULES:
        if (room := room_of(module_name(path))) is not None:
            others = map(room_of, imports(path) | named_in_strings(path))
            known.setdefault(room, set()).update(other for other in others if other)
    return {room: others - {room} for room, others in known.items()}


def rooms_named() -> dict[str, set[str]]:
    """By room: those that the line `Knows: ...` of its docstring names; none without a line."""
    named = {}
    for path in MODULES:
        room = room_of(name := module_name(path))
        if room is not None and name == f"loong_jax.{room}":
            line = re.search(r"^Knows: ([\w,\s]+)\.$", ast.get_docstring(parsed(path)) or "", re.M)
            named[room] = set(re.split(r",\s+", line[1])) if line else set()
    return named


def unsaid(known: dict[str, set[str]], named: dict[str, set[str]]) -> list[str]:
    """Where rooms know others than they say."""
    too_much = [f"{a} imports {b} and does not name it" for a in known for b in known[a] - named[a]]
    too_little = [f"{a} names {b} and never imports it" for a in named for b in named[a] - known[a]]
    return too_much + too_little


def circle(arrows: Mapping[str, Iterable[str]]) -> list[str]:
    """A way back to where it began, as long as there is one."""
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def complaints(name: str, imported: frozenset[str]) -> list[str]:
    """What is wrong with the imports of the module `name`."""
    room, words, found = room_of(name), re.split(r"[._]", name), []
    for other in sorted(imported):
        top = other.split(".")[0]
        if top in ADAPTERS and not any(word in words for word in ADAPTERS[top]):
            found.append(f"{name} imports {top}, which its adapter alone may import")
        drawn = top == "numpy" and name.startswith(PLAYS_REPLICAS)
        if room in ARRAY_FREE and top in {"jax", "jaxlib", "flax", "numpy"} and not drawn:
            found.append(f"{name} imports {top}, and {room} touches no array")
        if name.startswith("loong_jax.verifiers.maths") and "verifiers.answers" in other:
            found.append(f"{name} imports {other}, which stands on it")
    return found


def test_a_room_knows_the_rooms_its_docstring_names():
    assert unsaid(rooms_known(), rooms_named()) == []


def test_imports_point_one_way():
    assert circle(rooms_known()) == []
    names = {module_name(path): path for path in MODULES}
    arrows = {}
    for name, path in names.items():
        at_run_time = imported(parsed(path), for_types=False)
        arrows[name] = {
            other if other in names else other.rpartition(".")[0] for other in at_run_time
        } & names.keys() - {name}
    assert circle(arrows) == []


def test_adapters_alone_import_what_a_machine_may_lack():
    found = [
        complaint for path in MODULES for complaint in complaints(module_name(path), imports(path))
    ]
    assert found == []


def test_the_import_rules_bite():
    assert unsaid({"rl": {"merge"}}, {"rl": set()})
    assert unsaid({"rl": set()}, {"rl": {"merge"}})
    assert not unsaid({"rl": {"models"}}, {"rl": {"models"}})
    assert circle({"data": {"verifiers"}, "verifiers": {"data"}})
    assert complaints("loong_jax.rl.trainer", frozenset({"ray"}))
    assert complaints("loong_jax.orchestrator.policy", frozenset({"jax.numpy"}))
    assert complaints("loong_jax.verifiers.array", frozenset({"ray"}))  # "array" is no "ray"
    assert complaints("loong_jax.verifiers.maths.units", frozenset({"loong_jax.verifiers.answers"}))
    assert not complaints("loong_jax.verifiers.ray_pool", frozenset({"ray", "numpy"}))
    assert not complaints("loong_jax.rl.trainer", frozenset({"loong_jax.rollout.records", "jax"}))


def test_every_module_says_what_it_is():
    assert [path for path in MODULES if not ast.get_docstring(parsed(path))] == []


def test_docstrings_define():
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path.relative_to(ROOT)}:{node.body[0].lineno}"
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, kinds)
        and (ast.get_docstring(node) or "").startswith(("What ", "Whether "))
    ]
    assert found == [], "say what it is or does, and of a boolean when it is true"


def is_there(name: str, package: Path) -> bool:
    """True for a module, or something it defines, named from a package, its parent or ours on."""
    *way, last = name.split(".")
    defines = re.compile(rf"\b(?:class|def) {last}\b|^ *{last}: |^{last} = ", re.M)
    for above in (package, package.parent, PACKAGE, ROOT):
        place = above.joinpath(*way)
        if any(path.exists() for path in (above / name, place / last, place / f"{last}.py")):
            return True
        for file in [*place.glob("*.py"), place.with_suffix(".py")]:
            if file.exists() and defines.search(file.read_text(encoding="utf-8")):
                return True
    return False


def test_packages_list_what_they_hold():
    """Modules in the first column of a table, names in backticks; an extra may be one, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    for path in (path for path in MODULES if path.stem == "__init__"):
        text = ast.get_docstring(parsed(path)) or ""
        rows = re.findall(r"^ *([a-z_0-9]+(?:, [a-z_0-9]+)*)  +\S", text, re.M)
        modules = {place.stem for place in path.parent.iterdir()}
        wrong = {name for row in rows for name in row.split(", ")} - modules
        named = {*re.findall(r"`([A-Za-z_][\w.]*)`", text)} - {*project["optional-dependencies"]}
        wrong |= {name for name in named if not is_there(name, path.parent)}
        found += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(wrong)]
    assert found == []


def test_importing_asks_for_no_device_and_brings_no_adapter():
    names = [module_name(path) for path in MODULES if path.stem not in {"__main__"}]
    adapters = ("ray", "jetstream", "torch")
    names = [name for name in names if not set(re.split(r"[._]", name)) & set(adapters)]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"assert not set({adapters!r}) & set(sys.modules), 'an adapter was imported'\n"
        "import jax\n"
        "try: jax.devices()\n"
        "except RuntimeError: pass\n"
        "else: raise AssertionError('the platform below was not asked for')\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "no_such_platform", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


FORBIDDEN = {
    r"(?<![\w.~$}])/(root|home|work|Users)/[\w.-]+/": "a path of one machine",
    r"https?://\S*/simple\b": "a package index",
    r"--(extra-)?index-url|--find-links": "a package index",
    r"@\s*(file:|git\+)": "a dependency by address",
}


def text_files() -> list[Path]:
    """Files under version control, or all but hidden and generated ones where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.splitlines() if listed.returncode == 0 else []
    suffixes = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".yml", ".ipynb", ""}
    return [ROOT / name for name in names if Path(name).suffix in suffixes]


def test_no_file_names_a_machine_or_a_package_index():
    found = []
    for path in text_files():
        if path.is_symlink():
            text = os.readlink(path)
        elif path == Path(__file__).resolve() or not path.is_file():
            continue
        else:
            text = path.read_text(encoding="utf-8", errors="replace")
        for pattern, what in FORBIDDEN.items():
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(ROOT)}:{line} holds {what}: {match[0]!r}")
    assert found == []


def test_constraints_are_plain_and_cover_the_base():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    marker = r'python_version (<|>=) "3\.\d+"'
    plain = re.compile(rf"[a-z0-9-]+==[\w.!]+(; {marker}( and {marker})?)?")
    assert [line for line in lines if not plain.fullmatch(line)] == []
    named = {line.split("==")[0] for line in lines}
    base = re.search(
        r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S
    )
    wanted = re.findall(r'^\s*"([A-Za-z0-9_-]+)', base[1], re.M)
    assert len(wanted) > 10
    assert {name.lower().replace("_", "-") for name in wanted} <= named


# What is imported of a distribution, where it has another name.
IMPORTED_AS = {
    "google-jetstream": "jetstream",
    "grpcio": "grpc",
    "orbax-checkpoint": "orbax",
    "protobuf": "google",
}
FOR_US = {"dev", "docs"}  # extras that bring tools
FOR_TESTS_ALONE = {"peft"}  # a peer that the package never meets


def test_what_the_package_imports_is_what_it_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items()
    lists = [project["dependencies"], *(some for name, some in extras if name not in FOR_US)]
    names = {re.split(r"[^\w-]", one)[0] for some in lists for one in some} - FOR_TESTS_ALONE
    declared = {IMPORTED_AS.get(name, name).replace("-", "_") for name in names}
    found = {name.split(".")[0] for path in MODULES for name in imports(path)}
    for path in MODULES:  # those that are imported where they are needed, by name
        found |= set(re.findall(r'import_module\(\s*"(\w+)', path.read_text(encoding="utf-8")))
    assert found - sys.stdlib_module_names - {"loong_jax"} == declared

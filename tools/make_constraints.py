"""Resolves base, dev, docs and gym on each Python given and writes constraints.txt.

    python tools/make_constraints.py python3.11 python3.12     (or: make constraints)

Pip resolves in an empty environment of each interpreter, without installing anything. The file
holds nothing but `name==version` with a marker where the Pythons differ, so it suits any index.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = """\
# Versions that are tested together: base, dev, docs and gym, on Python {pythons}.
# Written by `make constraints`; do not edit by hand.
"""


def resolve(python: str, requirement: str) -> tuple[tuple[int, int], dict[str, str]]:
    """Returns the interpreter's (major, minor) and the version pip chooses for each package."""
    ask = "import sys; print(*sys.version_info[:2])"
    major, minor = subprocess.check_output([python, "-c", ask], text=True).split()
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([python, "-m", "venv", directory], check=True)
        pip = [os.path.join(directory, "bin", "python"), "-m", "pip", "install", "--quiet"]
        report = os.path.join(directory, "report.json")
        ask = ["--dry-run", "--ignore-installed", "--report", report, requirement]
        subprocess.run([*pip, *ask], check=True, cwd=ROOT)
        with open(report, encoding="utf-8") as file:
            chosen = [item["metadata"] for item in json.load(file)["install"]]
    versions = {normal_name(item["name"]): item["version"] for item in chosen}
    versions.pop("loong-jax", None)
    return (int(major), int(minor)), versions


def normal_name(name: str) -> str:
    """The normalised form of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constraint_lines(resolved: dict[tuple[int, int], dict[str, str]]) -> list[str]:
    """One line per package and version.

    The newest Python's choice also holds for later ones and the oldest's for earlier ones, so the
    markers leave no gap.
    """
    pythons = sorted(resolved)
    lines = []
    for name in sorted(set().union(*resolved.values())):
        runs: list[tuple[str | None, int, int]] = []  # version, first python, last python
        for index, python in enumerate(pythons):
            version = resolved[python].get(name)
            if runs and runs[-1][0] == version:
                runs[-1] = (version, runs[-1][1], index)
            else:
                runs.append((version, index, index))
        for version, first, last in runs:
            if version is None:
                continue
            marker = []
            if first > 0:
                marker.append('python_version >= "{}.{}"'.format(*pythons[first]))
            if last < len(pythons) - 1:
                marker.append('python_version < "{}.{}"'.format(*pythons[last + 1]))
            lines.append(f"{name}=={version}" + ("; " + " and ".join(marker) if marker else ""))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pythons", nargs="+", help="interpreters, e.g. python3.11 python3.12")
    parser.add_argument("--requirement", default=".[dev,docs,gym]")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "constraints.txt")
    arguments = parser.parse_args()
    resolved = dict(resolve(python, arguments.requirement) for python in arguments.pythons)
    names = " and ".join("{}.{}".format(*python) for python in sorted(resolved))
    lines = constraint_lines(resolved)
    arguments.output.write_text(HEADER.format(pythons=names) + "\n".join(lines) + "\n")
    print(f"{arguments.output}: {len(lines)} lines")


if __name__ == "__main__":
    main()

"""Pages read as what a reader runs: their blocks of Python and of commands, in order.

A block of Python whose first line is `# FILE.py` is that file; blocks of `bash` are run as printed.
"""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import xla_flags

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

# options that cut what a page runs short
LITTLE = [
    "--engine.slots-per-replica", "8", "--engine.prefill-members", "8", "--engine.narrow-slots",
    "--engine.groups-per-replica", "1", "--evaluation.num-problems", "2",
    "--evaluation.samples-per-problem", "1", "--evaluation.pass-at", "0", "--max-new-tokens", "24",
]  # fmt: skip
EVAL = [
    "--num-problems", "2", "--samples", "1", "--k", "1", "--max-new-tokens", "8",
    "--slots-per-replica", "8",
]  # fmt: skip
RL = ["--rl.num-steps", "1", "--rl.scheduler.groups-per-step", "2", "--rl.learns-from-all"]


@dataclasses.dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that a block of Python is to be saved as."""
        named = re.match(r"# ([\w/]+\.py)\n", self.text)
        return named[1] if self.language == "python" and named else None


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)]


def save_files(page: str, place: Path) -> None:
    for block in blocks(page):
        if block.file is not None:
            file = place / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")


def run(
    page: str,
    place: Path,
    shorter: Mapping[str, Sequence[str]] | None = None,
    flags: str = xla_flags.QUICK_TO_COMPILE,
) -> str:
    """Saves the files of a page, runs its commands in `place`, and returns what they print.

    `shorter` has options to lay on commands, by their first words; `{}` runs all as printed, and
    None only those of Python.
    """
    save_files(page, place)
    cases = " ".join(
        f'"{words} "*) set -- "$@" {" ".join(more)} ;;' for words, more in (shorter or {}).items()
    )
    prelude = (
        f'python() {{ {sys.executable} "$@"; }}\n'
        f'loong() {{ case "$* " in {cases} *) ;; esac; python -m loong_jax.cli "$@"; }}\n'
    )
    commands = [block.text for block in blocks(page) if block.language == "bash"]
    if shorter is None:
        commands = [text for text in commands if text.startswith("python ")]
    assert commands, f"{page} has no commands to run"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
    done = subprocess.run(
        ["bash", "-ec", prelude + "".join(commands)],
        cwd=place, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout

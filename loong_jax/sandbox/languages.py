"""Languages, as languages.toml has them: how a source is compiled, run and called.

A function of an answer is called by a driver: a script that loads the answer, or, where languages
are compiled, a source that is compiled with it for this function, once for all its calls.
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loong_jax.errors import VerifierError

MB = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language:
    """Sizes in bytes, times in seconds of CPU."""

    file: str
    package: str  # of Debian, that brings the toolchain; "" where Debian has none
    version: str
    run: str = "/app/main"
    compile: str = ""
    check: str = ""
    aliases: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    runtime_bytes: int = 16 * MB  # taken by the language's runtime before the program
    compile_bytes: int = 1024 * MB
    compile_s: float = 20.0
    has_bounded_address_space: bool = True  # false: it reserves far more than it uses
    entry: str = ""  # pattern whose first group is `{main}`
    pids: int = 64
    driver: str = ""  # beside this file: what calls a function of an answer
    call: str = ""  # how the driver is run: in /tmp, or as it was compiled
    compile_call: str = ""  # compiles an answer with `{driver}`, where one compiles
    call_needs: tuple[str, ...] = ()  # programs that compile_call uses, beside the language's own
    own_main: tuple[str, str] = ("", "")  # pattern of an answer's main, and what it becomes there
    path_mark: str = "."  # between a class and its method
    dropped: str = ""  # pattern before a source's second group, which is left out of its head
    imports: str = ""  # pattern of what a source imports by itself
    lent: str = ""  # the text of sites before a method of their starter code
    nodes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # and declare for it

    def source(self, text: str) -> str:
        """An answer as it is compiled and run."""
        return re.sub(self.dropped, r"\1", text, count=1) if self.dropped else text

    def main(self, source: str) -> str:
        found = re.search(self.entry, source) if self.entry else None
        return found[1] if found else "Main"


_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -Xss64m -Xmx{heap}m"
_JAVAC = "-J-XX:+UseSerialGC -J-XX:TieredStopAtLevel=1 -J-Xshare:auto -J-Xmx512m"


def _read(table: dict[str, Any]) -> Language:
    fields = {}
    for name, value in table.items():
        if isinstance(value, str):
            value = value.replace("{jvm}", _JVM).replace("{javac}", _JAVAC)
        if name.endswith("_mb"):
            name, value = name.replace("_mb", "_bytes"), value * MB
        fields[name] = tuple(value) if isinstance(value, list) else value
    return Language(**fields)


_TABLE = Path(__file__).with_name("languages.toml").read_text(encoding="utf-8")
LANGUAGES = {name: _read(table) for name, table in tomllib.loads(_TABLE).items()}


def names_of(language: str) -> list[str]:
    """The name and the aliases of a language; none for an unknown one."""
    wanted = language.strip()
    for word in (wanted, wanted.lower()):
        for name, one in LANGUAGES.items():
            if word in (known := [name, *one.aliases.split()]):
                return known
    return []


def find(language: str) -> tuple[str, Language]:
    """A language by its name or an alias; VerifierError for an unknown one."""
    if not (names := names_of(language)):
        raise VerifierError(f"language {language!r} is unknown. Choose one of {sorted(LANGUAGES)}.")
    return names[0], LANGUAGES[names[0]]

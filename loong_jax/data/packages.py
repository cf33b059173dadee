"""Environment packages on disk: a directory with a module, its manifest and its transcript.

    environment.py     the module, under the protocol of modules.py; run in the sandbox alone
    manifest.json      name, hash of the module, levels, domain, licence, author, gates, calibration
    transcript.jsonl   every call of an author that made it

A problem's uid is name and hash, level, seed. A package whose module is not the one its manifest
was written for is refused.
"""

import dataclasses
import datetime
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.environments import ENVIRONMENTS, modules
from loong_jax.environments.modules import Module, ModuleEnvironment, ModuleRunner
from loong_jax.errors import ConfigError, VerifierError, shown
from loong_jax.problems.problem import Domain

MODULE, MANIFEST, TRANSCRIPT = "environment.py", "manifest.json", "transcript.jsonl"
FORMAT_VERSION = 1
NUM_DRAWS = 8  # of a level, that are drawn twice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """The content of a manifest, with its module."""

    name: str
    module: Module
    levels: tuple[int, ...]
    domain: Domain
    licence: str
    author: str  # the model that wrote it
    title: str
    about: dict[str, Any] = dataclasses.field(default_factory=dict)  # all else, for people

    def __post_init__(self):
        kinds = {"module": Module, "levels": (tuple, list), "about": dict}
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), kinds.get(field.name, str)
            if not isinstance(value, kind):
                wanted = "Module(TEXT)" if kind is Module else getattr(kind, "__name__", "a tuple")
                raise ConfigError(
                    f"{field.name}={shown(value)} of a package is of type {type(value).__name__}. "
                    f"Give {wanted}."
                )
        if self.name in ENVIRONMENTS:
            raise ConfigError(
                f"name={self.name!r} is one of our own environments. Choose another for the "
                "package."
            )
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ConfigError(
                f"name={self.name!r} is no word of letters, digits, '_', '-' and '.', as that of a "
                "package is. Choose another."
            )
        if not self.domain.strip():
            raise ConfigError(f"domain={self.domain!r} of {self.name} is empty. Give a word.")
        is_whole = all(isinstance(level, int) for level in self.levels)
        if not self.levels or not is_whole or list(self.levels) != sorted(set(self.levels)):
            raise ConfigError(
                f"levels={self.levels} of {self.name} are no whole numbers that ascend. Give such."
            )

    @property
    def uid(self) -> str:
        return f"{self.name}-{self.module.hash}"

    def environment(self) -> ModuleEnvironment:
        return ModuleEnvironment(
            module=self.module, name=self.name, domain=self.domain, licence=self.licence,
            origin=f"resyn, written by {self.author}",
        )  # fmt: skip


def write(directory: Path | str, package: Package, transcript: list[dict[str, Any]]) -> Path:
    """Writes a package below `directory`; its manifest last, so that a half one is none."""
    place = Path(directory) / package.uid
    json_files.write_text(place / MODULE, package.module.source)
    json_files.write_jsonl(place / TRANSCRIPT, transcript)
    manifest = {
        "format_version": FORMAT_VERSION, "name": package.name, "hash": package.module.hash,
        "title": package.title, "levels": list(package.levels), "domain": package.domain,
        "licence": package.licence, "author": package.author, **package.about,
    }  # fmt: skip
    json_files.write_json(place / MANIFEST, manifest)
    return place


def read(directory: Path | str) -> Package:
    """The package in a directory; ConfigError where it is none, or was changed."""
    place = Path(directory)
    manifest = json_files.read_json(place / MANIFEST)
    if manifest is None:
        raise ConfigError(f"{place} holds no {MANIFEST}, so it is no environment package.")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ConfigError(
            f"{place} has format_version={manifest.get('format_version')!r}, not {FORMAT_VERSION}. "
            "Make the package again."
        )
    try:
        module = Module((place / MODULE).read_text(encoding="utf-8"))
        known = ("name", "title", "levels", "domain", "licence", "author", "hash", "format_version")
        package = Package(
            name=manifest["name"], module=module, levels=tuple(manifest["levels"]),
            domain=manifest["domain"], licence=manifest["licence"], author=manifest["author"],
            title=manifest["title"],
            about={key: value for key, value in manifest.items() if key not in known},
        )  # fmt: skip
        written_for = manifest["hash"]
    except (OSError, KeyError, TypeError) as error:
        raise ConfigError(f"{place} is no whole package: {error!r}. Make it again.") from error
    if written_for != module.hash:
        raise ConfigError(
            f"the module in {place} has hash {module.hash}, its manifest is for {written_for}. It "
            "was changed after it was examined; make the package again."
        )
    return package


def read_all(directory: Path | str) -> list[Package]:
    """All packages below a directory, by name; ConfigError for none or two of one name."""
    found: dict[str, tuple[Package, Path]] = {}
    for manifest in sorted(Path(directory).glob(f"*/{MANIFEST}"), key=_written):
        package = read(manifest.parent)
        if package.name in found:
            older = found[package.name][1]
            raise ConfigError(
                f"{older} and {manifest.parent} are two packages named {package.name!r}; the first "
                f"is older, of {_written(older / MANIFEST):%Y-%m-%d %H:%M:%S}. Remove one, such as "
                f"by: rm -r {shlex.quote(str(older))}"
            )
        found[package.name] = package, manifest.parent
    if not found:
        if (Path(directory) / MANIFEST).exists():
            raise ConfigError(
                f"{str(directory)!r} is a package itself. Name the directory that holds it, "
                f"{str(Path(directory).parent)!r}, and --package-names where it holds others."
            )
        if not Path(directory).is_dir():
            raise ConfigError(
                f"{str(directory)!r} is no directory. Name one of packages with --packages; a run "
                "whose packages have moved takes their new place: loong train --run-dir RUN "
                "--packages DIR."
            )
        raise ConfigError(
            f"{str(directory)!r} holds no environment packages. Make one of your own "
            "(docs/tutorials/own_environment.md), or name OUT/packages of `loong synth resyn`."
        )
    return [package for _, (package, _) in sorted(found.items())]


def _written(file: Path) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(file.stat().st_mtime)


def require_sound(package: Package) -> None:
    """Tries a package as a run is about to use it; ConfigError where an instance is not sound.

    Its text is read, some instances of each level are drawn, which are the same in another
    interpreter, and of one the reference is right, and text that is not the reference is not. All
    gates were tried when a package was made by an author.
    """
    for rule in ("parses", "imports", "protocol"):
        if why := modules.SOURCE_RULES[rule](package.module.source):
            raise ConfigError(f"the module of {package.name!r} may not be used: {why}. Correct it.")
    environment = package.environment()
    try:
        known = list(environment.levels)
    except VerifierError as error:
        raise ConfigError(str(error)) from error
    is_known = known == list(range(1, len(known) + 1)) and 3 <= len(known) <= 5
    if not is_known or not set(package.levels) <= set(known):
        raise ConfigError(
            f"levels() of {package.name!r} gives {known}, and the package has levels "
            f"{list(package.levels)}. Let it give three to five, from 1 on, and choose among them."
        )
    _refuse_unsound_draws(package, environment)
    for level in package.levels:
        problem = environment.problem(level, 2**40 + level)
        gold = environment.solve(problem).answer
        for answer in (f"{gold} or maybe not", "x" * 200, "0 1 2 yes"):
            judged = environment.verify(problem, answer)
            if not judged.is_graded or judged.is_correct:
                said = "accepted" if judged.is_correct else f"not judged ({judged.evidence})"
                raise ConfigError(
                    f"package {package.uid} may not reward: the text {answer!r:.40} of level "
                    f"{level} is {said} by `reward`. Let `reward` reject what is no answer, and "
                    "make the package again."
                )


def _refuse_unsound_draws(package: Package, environment: ModuleEnvironment) -> None:
    """ConfigError where a function gives another value in another interpreter and order, where a
    level asks one thing alone, or a reference is not right.

    Processes of one runner share its hash seed and its random state, so one alone shows nothing.
    """
    draws = [(level, 2**40 + seed) for level in package.levels for seed in range(NUM_DRAWS)]

    def unsound(what: str) -> ConfigError:
        told = f"package {package.uid} may not reward: {what}"
        return ConfigError(f"{told}, and make the package again.")

    with ModuleRunner() as second:

        def both(calls: Sequence[modules.Call]) -> list[Any]:
            once = modules.shared_runner().run(package.module, calls)
            again = second.run(package.module, calls[::-1])[::-1]
            for (function, arguments), one, other in zip(calls, once, again, strict=True):
                if one.status == other.status == "ok" and one.value != other.value:
                    values = [one.value, other.value]
                    if function == "pose":
                        is_state = one.value[0] != other.value[0]
                        function = "generate" if is_state else "question"
                        values = [value[not is_state] for value in values]
                    raise unsound(
                        f"{modules.written(function, arguments)} gave {values[0]!r:.80} and, in "
                        f"another process, {values[1]!r:.80}. A value may depend on the arguments "
                        'alone: draw from random.Random(f"{level}/{seed}"), sort what comes out of '
                        "a set, keep nothing between calls"
                    )
            for call, found in zip(calls, once, strict=True):
                if found.status != "ok":
                    raise ConfigError(environment.without_value(call, found))
            return [found.value for found in once]

        states, questions = zip(*both([("pose", draw) for draw in draws]), strict=True)
        for start in range(0, len(draws), NUM_DRAWS):
            if len(set(questions[start : start + NUM_DRAWS])) == 1:
                raise unsound(
                    f"level {draws[start][0]} asks {questions[start]!r:.80} for each of "
                    f'{NUM_DRAWS} seeds. Draw from random.Random(f"{{level}}/{{seed}}"), say all '
                    "that was drawn in `question`"
                )
        golds = both([("reference", (state,)) for state in states])
        both([("steps", (state,)) for state in states])
        are_right = both([("reward", pair) for pair in zip(states, golds, strict=True)])
        others = ("0", "1", "-1", "x", "²", *golds[::-5])
        both([("reward", (state, one)) for state in states for one in others])
        both([("reward", (state, gold[::-1])) for state, gold in zip(states, golds, strict=True)])
        for (level, _), gold, is_right in zip(draws, golds, are_right, strict=True):
            if not is_right:
                raise unsound(
                    f"the reference {gold!r:.40} of level {level} is rejected by `reward`. Make "
                    "them agree"
                )


def longest_question(package: Package, level: int) -> int:
    """Characters of the longest of 64 questions, where no manifest says it."""
    calls: list[modules.Call] = [("pose", (level, seed)) for seed in range(64)]
    found = modules.shared_runner().run(package.module, calls)
    return max((len(outcome.value[1]) for outcome in found if outcome.status == "ok"), default=0)

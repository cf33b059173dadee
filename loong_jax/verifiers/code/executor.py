"""Runs sources: finds toolchains, compiles once, runs many times, on as many boxes as asked for."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import queue
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loong_jax.errors import VerifierError
from loong_jax.verifiers.code import artefacts, drivers, recipes
from loong_jax.verifiers.code.artefacts import ArtefactCache
from loong_jax.verifiers.code.box import Box, Ended, Limits, Run
from loong_jax.verifiers.code.mechanism import BoxLost, Mechanism, best_mechanism
from loong_jax.verifiers.code.recipes import MB, Recipe

_PATH = "/usr/local/bin:/usr/bin:/bin"
_ENV = {"PATH": _PATH, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
_MAX_WAIT_S = 1800.0  # for a free box
_PROBE = Limits(cpu_s=20.0, wall_s=60.0, memory_bytes=1024 * MB)


class ToolchainMissing(VerifierError):
    """The language is known, but what compiles or runs it is not installed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """A source ready to run, or what its compiler said against it."""

    recipe: Recipe
    language: str
    source: str
    main: str
    function: str = ""  # compiled with a driver that calls it
    is_lent: bool = False  # with what sites put before a method
    artefact: str = ""
    failure: str = ""  # of the compilation, by the answer's fault
    lost: str = ""  # the sandbox failed
    was_cached: bool = False
    compile_s: float = 0.0  # CPU


class Executor:
    """Boxes and a cache. Safe to share between threads; a run waits for a free box."""

    def __init__(
        self,
        *,
        num_boxes: int = 1,
        cache: ArtefactCache | None = None,
        mechanism: Mechanism | None = None,
        uses_fork: bool = True,
    ):
        if num_boxes < 1:
            raise VerifierError(f"num_boxes={num_boxes} is below 1. One box runs one program.")
        self.mechanism = mechanism or best_mechanism()
        self._cache = cache or ArtefactCache()
        self._uses_fork = uses_fork
        self._boxes = [Box(self._cache.directory, self.mechanism) for _ in range(num_boxes)]
        self._free: queue.SimpleQueue[Box] = queue.SimpleQueue()
        for box in self._boxes:
            self._free.put(box)
        self._versions: dict[str, str] = {}
        self._building: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self.threads = concurrent.futures.ThreadPoolExecutor(num_boxes, "box")

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        for box in self._boxes:
            box.close()
        self._cache.close()

    def pids(self) -> list[int]:
        return [box.pid for box in self._boxes if box.pid is not None]

    def num_lost(self) -> int:
        """Nurseries that were lost while they ran a program."""
        return sum(box.num_lost for box in self._boxes)

    def nursery_pids(self) -> list[int]:
        """Processes of the nurseries: children of the launchers that `pids` names."""
        texts = (Path(f"/proc/{pid}/task/{pid}/children") for pid in self.pids())
        return [int(pid) for text in texts if text.exists() for pid in text.read_text().split()]

    def group_counts(self) -> tuple[str, ...]:
        """What the kernel limits for a run as a whole; the rest is sampled."""
        with self._box() as box:
            box.start()
            return box.group_counts

    @contextlib.contextmanager
    def _box(self) -> Iterator[Box]:
        try:
            box = self._free.get(timeout=_MAX_WAIT_S)
        except queue.Empty:
            raise BoxLost(f"no box became free in {_MAX_WAIT_S:.0f} s. Use more boxes.") from None
        try:
            yield box
        finally:
            self._free.put(box)

    def run(self, program: Run) -> Ended:
        """Runs a program on the next free box; what goes wrong with the sandbox is an end too."""
        try:
            with self._box() as box:
                return box.run(program)
        except BoxLost as error:
            return Ended(end="lost", detail=str(error))

    def version(self, language: str) -> str:
        """What the toolchain says of itself; raises ToolchainMissing."""
        if language not in self._versions:
            recipe = recipes.RECIPES[language]
            ended = None
            if all(_resolve(command[0]) for command in (recipe.version, recipe.run) if command):
                limits = dataclasses.replace(_PROBE, pids=recipe.pids)
                probe = Run(argv=self._argv(recipe.version, {}), env=_env(recipe), limits=limits)
                ended = self.run(probe)
                if ended.end == "lost":
                    raise BoxLost(f"the sandbox failed: {ended.detail}")
            if ended is None or ended.status != 0:
                how = f"apt-get install {recipe.package}" if recipe.package else "install it"
                raise ToolchainMissing(f"{language} is not installed here: {how}")
            self._versions[language] = (
                (ended.stdout + ended.stderr).decode(errors="replace").strip()
            )
        return self._versions[language]

    def build(self, language: str, source: str, function: str = "") -> Built:
        """Compiles a source, or takes what was compiled before; for calls of `function`, if given.

        A name of a function may be `Class.method`.
        """
        name, recipe = recipes.find(language)
        version, source = self.version(name), recipe.source(source)
        built = Built(recipe=recipe, language=name, source=source, main=recipe.main(source))
        if not recipe.compile:
            return built
        tried = []
        for is_lent in drivers.lends(recipe, source, function):
            tried.append(
                self._built(dataclasses.replace(built, is_lent=is_lent), version, function)
            )
            if not tried[-1].failure:
                return tried[-1]
        return tried[0]

    def _built(self, built: Built, version: str, function: str) -> Built:
        recipe, name, source = built.recipe, built.language, built.source
        flags = recipe.flags
        if function and recipe.compile_call:
            if missing := [one for one in recipe.call_needs if _resolve(one) is None]:
                raise ToolchainMissing(
                    f"calls in {name} need {', '.join(missing)}, not installed here: "
                    f"apt-get install {' '.join(missing)}"
                )
            built = dataclasses.replace(built, function=function)
            driver = drivers.driver(recipe, source, function)
            flags = repr((recipe.compile_call, function, driver, built.is_lent))
        key = artefacts.key_of(name, flags, version, source)
        with self._lock:
            lock = self._building.setdefault(key, threading.Lock())
        with lock:
            note = self._cache.note(key)
            was_cached = note is not None
            if note is None:
                note = self._compile(built, key)
        with self._lock:
            self._building.pop(key, None)
        return dataclasses.replace(
            built, artefact=key, was_cached=was_cached, failure=note.get("failure", ""),
            lost=note.get("lost", ""), compile_s=note.get("cpu_s", 0.0),
        )  # fmt: skip

    def _compile(self, built: Built, key: str) -> dict:
        recipe, source = built.recipe, built.source
        command, beside = recipe.compile, {}
        if built.function:
            command = recipe.compile_call
            beside = {recipe.driver: drivers.driver(recipe, source, built.function)}
            source = drivers.source(recipe, source, built.function, is_lent=built.is_lent)
        ended = self.run(
            Run(
                argv=self._argv(command, _words(built, 512)),
                env=_env(recipe),
                files={_file(built): _bytes(source)} | beside,
                collect=True,
                limits=Limits(
                    cpu_s=recipe.compile_s, wall_s=3 * recipe.compile_s,
                    memory_bytes=recipe.compile_bytes, disk_bytes=256 * MB, disk_files=16384,
                    output_bytes=MB, pids=128,
                ),
            )
        )  # fmt: skip
        note: dict[str, Any] = {"cpu_s": ended.cpu_s}
        if ended.end == "lost":
            return note | {"lost": ended.detail}  # not remembered
        if ended.end != "exited":
            note["failure"] = f"the compiler ran out of {_WHAT[ended.end]}"
        elif ended.status != 0 or not ended.files:
            said = (ended.stderr + ended.stdout).decode(errors="replace").strip()
            note["failure"] = said[:2000] or f"the compiler ended with status {ended.status}"
        self._cache.put(key, {} if "failure" in note else ended.files, note)
        return note

    def execute(
        self,
        built: Built,
        limits: Limits,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> Ended:
        """Runs what `build` made, with files beside it in /tmp and arguments after its command."""
        recipe = built.recipe
        limits = self.adjusted(recipe, limits)
        sources = {} if recipe.compile else {_file(built): _bytes(built.source)}
        if built.language == "python" and self._uses_fork:
            mode, argv = "python", ["/tmp/main.py"]
        else:
            heap = limits.memory_bytes // MB - recipe.runtime_bytes // MB
            mode, argv = "exec", self._argv(recipe.run, _words(built, max(heap, 16)))
        return self.run(
            Run(
                mode=mode, argv=[*argv, *arguments], env=_env(recipe), stdin=stdin,
                files=sources | dict(files or {}), artefact=built.artefact, limits=limits,
            )
        )  # fmt: skip

    def call(self, built: Built, call: bytes, limits: Limits) -> Ended:
        """Runs one call of a source whose recipe has a driver; its value is the result."""
        recipe = built.recipe
        limits = self.adjusted(recipe, limits)
        files = {"call.json": call}
        if not built.function:
            files[recipe.driver] = drivers.driver(recipe, built.source)
            if not recipe.compile:
                files[_file(built)] = _bytes(built.source)
        forks = built.language == "python" and self._uses_fork
        heap_mb = max((limits.memory_bytes - recipe.runtime_bytes) // MB, 16)
        argv = [recipe.call[-1]] if forks else self._argv(recipe.call, _words(built, heap_mb))
        return self.run(
            Run(
                mode="python" if forks else "exec", argv=argv, env=_env(recipe), files=files,
                reports=True, artefact=built.artefact, limits=limits,
            )
        )  # fmt: skip

    def check(self, built: Built) -> str:
        """What the language says against the source, if it can say so without running it."""
        if not built.recipe.check:
            return ""
        ended = self.run(
            Run(
                argv=self._argv(built.recipe.check, _words(built, 64)), env=_env(built.recipe),
                files={_file(built): _bytes(built.source)},
                limits=dataclasses.replace(_PROBE, cpu_s=10.0, wall_s=30.0),
            )
        )  # fmt: skip
        if ended.end != "exited" or ended.status == 0:
            return ""
        return (ended.stderr + ended.stdout).decode(errors="replace").strip()[:2000] or "syntax"

    def adjusted(self, recipe: Recipe, limits: Limits) -> Limits:
        """The limits plus what the language's runtime takes; an address space where none counts."""
        memory_bytes = limits.memory_bytes + recipe.runtime_bytes
        address_bytes = 0
        if recipe.has_bounded_address_space and "memory" not in self.group_counts_now():
            address_bytes = memory_bytes + 256 * MB
        return dataclasses.replace(
            limits, memory_bytes=memory_bytes, address_bytes=address_bytes, pids=recipe.pids
        )

    @functools.cached_property
    def _counts(self) -> tuple[str, ...]:
        return self.group_counts()

    def group_counts_now(self) -> tuple[str, ...]:
        return self._counts

    def _argv(self, command: tuple[str, ...], words: Mapping[str, str]) -> list[str]:
        first, *rest = [_fill(word, words) for word in command]
        if first == "python3":
            return [self.mechanism.interpreter, *rest]
        return [_resolve(first) or first, *rest]


_WHAT = {"cpu": "time", "wall": "time", "memory": "memory", "output": "output", "artefact": "space"}


def _resolve(command: str) -> str | None:
    if command == "python3" or command.startswith("/app/"):
        return command
    return shutil.which(command, path=_PATH)


def _fill(word: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        word = word.replace("{" + name + "}", value)
    return word


def _words(built: Built, heap_mb: int) -> dict[str, str]:
    return {
        "source": f"/tmp/{_file(built)}",
        "driver": f"/tmp/{built.recipe.driver}",
        "main": built.main,
        "heap": str(heap_mb),
    }


def _file(built: Built) -> str:
    return built.recipe.file.replace("{main}", built.main)


def _env(recipe: Recipe) -> dict[str, str]:
    return _ENV | dict(recipe.env)


def _bytes(source: str) -> bytes:
    return source.encode("utf-8", "surrogatepass")

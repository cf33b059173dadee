"""Runs sources: finds toolchains, compiles once, runs many times, on as many boxes as asked for."""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import queue
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loong_jax.errors import VerifierError
from loong_jax.sandbox import languages, mechanism
from loong_jax.sandbox.box import PROGRAM, Box, Ended, Limits, Run
from loong_jax.sandbox.languages import MB, Language
from loong_jax.sandbox.mechanism import BoxLost, Mechanism

_PATH = "/usr/local/bin:/usr/bin:/bin"
_ENV = {"PATH": _PATH, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
_MAX_WAIT_S = 1800.0  # for a free box
_PROBE = dataclasses.replace(PROGRAM, cpu_s=20.0, wall_s=60.0, memory_bytes=1024 * MB)
_WHAT = {"cpu": "time", "wall": "time", "memory": "memory", "output": "output", "artefact": "space"}

_CACHES = "loong-artefacts-"
_MAKING_S = 60.0  # between a directory's making and its lock, at the very most
_NOTE = ".note.json"  # beside the entry: what the compiler said
_MAX_CACHE_BYTES = 2 * 2**30


class ToolchainMissing(VerifierError):
    """The language is known, but what compiles or runs it is not installed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """A source ready to run, or what its compiler said against it."""

    name: str
    language: Language
    source: str
    function: str = ""  # compiled with a driver that calls it
    is_lent: bool = False  # with what sites put before a method
    artefact: str = ""
    failure: str = ""  # of the compilation, by the answer's fault
    lost: str = ""  # the sandbox failed
    was_cached: bool = False
    compile_s: float = 0.0  # CPU

    @property
    def main(self) -> str:
        return self.language.main(self.source)

    @property
    def file(self) -> str:
        return self.language.file.replace("{main}", self.main)


class Executor:
    """Boxes and a cache. Safe to share between threads; a run waits for a free box."""

    def __init__(
        self, *, num_boxes: int = 1, cache: "ArtefactCache | None" = None, uses_fork: bool = True
    ):
        if num_boxes < 1:
            raise VerifierError(f"num_boxes={num_boxes} is below 1. One box runs one program.")
        self.mechanism: Mechanism = mechanism.isolation(for_programs=True)
        self._cache = cache or ArtefactCache()
        self._uses_fork = uses_fork
        self._boxes = [Box(self.mechanism, self._cache.directory) for _ in range(num_boxes)]
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

    @functools.cached_property
    def group_counts(self) -> tuple[str, ...]:
        """The limits that the kernel enforces for a run as a whole; the rest is sampled."""
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

    def version(self, name: str) -> str:
        """The version text of a language's toolchain; raises ToolchainMissing."""
        if name not in self._versions:
            language = languages.LANGUAGES[name]
            ended = None
            if all(_resolve(command.split()[0]) for command in (language.version, language.run)):
                limits = dataclasses.replace(_PROBE, pids=language.pids)
                argv = self._argv(language.version, {})
                ended = self.run(Run(argv=argv, env=_env(language), limits=limits))
                if ended.end == "lost":
                    raise BoxLost(f"the sandbox failed: {ended.detail}")
            if ended is None or ended.status != 0:
                how = f"apt-get install {language.package}" if language.package else "install it"
                raise ToolchainMissing(f"{name} is not installed here: {how}")
            said = (ended.stdout + ended.stderr).decode(errors="replace")
            self._versions[name] = said.strip()
        return self._versions[name]

    def build(self, language: str, source: str, function: str = "") -> Built:
        """Compiles a source, or takes what was compiled before; for calls of `function`, if given.

        A name of a function may be `Class.method`.
        """
        name, known = languages.find(language)
        version, source = self.version(name), known.source(source)
        built = Built(name=name, language=known, source=source)
        if not known.compile:
            return built
        tried = []
        for is_lent in languages.lends(known, source, function):
            one = dataclasses.replace(built, is_lent=is_lent)
            tried.append(self._built(one, version, function))
            if not tried[-1].failure:
                return tried[-1]
        return tried[0]

    def _built(self, built: Built, version: str, function: str) -> Built:
        language = built.language
        flags = repr((language.file, language.compile, sorted(language.env.items())))
        if function and language.compile_call:
            if missing := [one for one in language.call_needs if _resolve(one) is None]:
                raise ToolchainMissing(
                    f"calls in {built.name} need {', '.join(missing)}, not installed here: "
                    f"apt-get install {' '.join(missing)}"
                )
            built = dataclasses.replace(built, function=function)
            driver = languages.driver(language, built.source, function)
            flags = repr((language.compile_call, function, driver, built.is_lent))
        made_of = "\0".join([built.name, flags, version, built.source])
        key = hashlib.sha256(_bytes(made_of)).hexdigest()[:40]
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

    def _compile(self, built: Built, key: str) -> dict[str, Any]:
        language, source = built.language, built.source
        command, beside = language.compile, {}
        if built.function:
            command = language.compile_call
            beside = {language.driver: languages.driver(language, source, built.function)}
            source = languages.source(language, source, built.function, is_lent=built.is_lent)
        limits = dataclasses.replace(
            PROGRAM, cpu_s=language.compile_s, wall_s=3 * language.compile_s,
            memory_bytes=language.compile_bytes, disk_bytes=256 * MB, disk_files=16384,
            output_bytes=MB, pids=128,
        )  # fmt: skip
        ended = self._run(built, command, limits, heap_mb=512, collect=True,
                          files={built.file: _bytes(source)} | beside)  # fmt: skip
        note: dict[str, Any] = {"cpu_s": ended.cpu_s}
        if ended.end == "lost":
            return note | {"lost": ended.detail}  # not remembered
        if ended.end != "exited":
            note["failure"] = f"the compiler ran out of {_WHAT[ended.end]}"
        elif ended.status != 0 or not ended.files:
            note["failure"] = _said(ended) or f"the compiler ended with status {ended.status}"
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
        sources = {} if built.language.compile else {built.file: _bytes(built.source)}
        return self._run_built(
            built, built.language.run, limits, stdin=stdin, arguments=arguments,
            files=sources | dict(files or {}),
        )  # fmt: skip

    def call(self, built: Built, call: bytes, limits: Limits) -> Ended:
        """Runs one call of a source whose language has a driver; its value is the result."""
        language = built.language
        files = {"call.json": call}
        if not built.function:
            files[language.driver] = languages.driver(language, built.source)
            if not language.compile:
                files[built.file] = _bytes(built.source)
        return self._run_built(built, language.call, limits, files=files, reports=True)

    def check(self, built: Built) -> str:
        """The errors that a language finds in the source without running it; "" for none."""
        if not built.language.check:
            return ""
        limits = dataclasses.replace(_PROBE, cpu_s=10.0, wall_s=30.0)
        ended = self._run(built, built.language.check, limits, heap_mb=64,
                          files={built.file: _bytes(built.source)})  # fmt: skip
        if ended.end != "exited" or ended.status == 0:
            return ""
        return _said(ended) or "syntax"

    def _run_built(self, built: Built, command: str, limits: Limits, **run: Any) -> Ended:
        """Within the limits plus what the runtime takes; an address space where none counts."""
        language = built.language
        heap_mb = max(limits.memory_bytes // MB, 16)
        memory_bytes = limits.memory_bytes + language.runtime_bytes
        bounds_address = language.has_bounded_address_space and "memory" not in self.group_counts
        limits = dataclasses.replace(
            limits, memory_bytes=memory_bytes, pids=language.pids,
            address_bytes=memory_bytes + 256 * MB if bounds_address else 0,
        )  # fmt: skip
        return self._run(built, command, limits, heap_mb=heap_mb, artefact=built.artefact, **run)

    def _run(
        self,
        built: Built,
        command: str,
        limits: Limits,
        *,
        heap_mb: int,
        arguments: tuple[str, ...] = (),
        artefact: str = "",
        **run: Any,
    ) -> Ended:
        words = {
            "source": f"/tmp/{built.file}",
            "driver": f"/tmp/{built.language.driver}",
            "main": built.main,
            "heap": str(heap_mb),
        }
        argv = self._argv(command, words)
        forks = built.name == "python" and self._uses_fork and command != built.language.check
        if forks:  # the script alone, without an interpreter before it
            argv = argv[-1:]
        return self.run(
            Run(
                mode="python" if forks else "exec", argv=[*argv, *arguments],
                env=_env(built.language), artefact=artefact, limits=limits, **run,
            )
        )  # fmt: skip

    def _argv(self, command: str, words: Mapping[str, str]) -> list[str]:
        argv = []
        for word in shlex.split(command):
            for name, value in words.items():
                word = word.replace("{" + name + "}", value)
            argv.append(word)
        if argv[0] == "python3":
            return [self.mechanism.interpreter, *argv[1:]]
        return [_resolve(argv[0]) or argv[0], *argv[1:]]


def _resolve(command: str) -> str | None:
    if command == "python3" or command.startswith("/app/"):
        return command
    return shutil.which(command, path=_PATH)


def _env(language: Language) -> dict[str, str]:
    return _ENV | dict(language.env)


def _said(ended: Ended) -> str:
    return (ended.stderr + ended.stdout).decode(errors="replace").strip()[:2000]


def _bytes(source: str) -> bytes:
    return source.encode("utf-8", "surrogatepass")


# ---- compiled programs on disk, named by what they were made of


class ArtefactCache:
    """Entries below one directory, at most `_MAX_CACHE_BYTES`; the longest unused go first.

    An entry is written aside and renamed into place, so that a reader sees all of it or nothing.
    Runs see one entry alone, mounted read-only. Without a directory it makes one and removes it on
    close. Any user must be able to reach it, because programs run as another user than root.
    """

    def __init__(self, directory: Path | None = None):
        self._is_ours = directory is None
        self._owned_fd = -1
        if directory is None:
            _remove_stale_caches()
        self.directory = directory or Path(tempfile.mkdtemp(prefix=_CACHES))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if self._is_ours:
                self._owned_fd = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(self._owned_fd, fcntl.LOCK_EX)
                self.directory.chmod(0o755)
        except OSError as error:
            raise VerifierError(
                f"the artefact cache {self.directory} cannot be used: {error}. Name a directory "
                "that can be written."
            ) from error
        self._lock = threading.Lock()

    def note(self, key: str) -> dict | None:
        """The note that `put` was given beside the files; None without such an entry."""
        try:
            note = json.loads((self.directory / (key + _NOTE)).read_text())
        except (OSError, ValueError):
            return None
        if not (self.directory / key).is_dir():
            return None
        with contextlib.suppress(OSError):
            os.utime(self.directory / (key + _NOTE))
        return note

    def put(self, key: str, files: Mapping[str, tuple[bytes, bool]], note: dict) -> None:
        """Stores the files of an artefact, and what is to be remembered about its making."""
        with self._lock:
            aside = Path(tempfile.mkdtemp(prefix=".new-", dir=self.directory))
            try:
                for name, (content, is_executable) in files.items():
                    path = aside / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                    path.chmod(0o555 if is_executable else 0o444)
                aside.chmod(0o755)
                note = note | {"num_bytes": sum(len(content) for content, _ in files.values())}
                (aside.with_suffix(".note")).write_text(json.dumps(note))
                with contextlib.suppress(OSError):  # another process was faster: the same content
                    os.rename(aside, self.directory / key)
                os.replace(aside.with_suffix(".note"), self.directory / (key + _NOTE))
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            self._evict(key)

    def _evict(self, newest: str) -> None:
        notes = sorted(self.directory.glob("*" + _NOTE), key=lambda path: path.stat().st_mtime)
        sizes = {}
        for path in notes:
            with contextlib.suppress(OSError, ValueError, KeyError):
                sizes[path] = json.loads(path.read_text())["num_bytes"]
        excess = sum(sizes.values()) - _MAX_CACHE_BYTES
        for path, size in sizes.items():
            key = path.name.removesuffix(_NOTE)
            if excess <= 0 or key == newest:
                break
            path.unlink(missing_ok=True)
            shutil.rmtree(self.directory / key, ignore_errors=True)
            excess -= size

    def close(self) -> None:
        if self._is_ours:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._owned_fd >= 0:
            os.close(self._owned_fd)
            self._owned_fd = -1


def _remove_stale_caches() -> None:
    """Directories whose owner was killed: nobody holds their lock, and they are not being made."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_CACHES}*"):
        with contextlib.suppress(OSError):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if time.time() - os.fstat(fd).st_ctime > _MAKING_S:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(fd)

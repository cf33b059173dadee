"""Lean without a server: a pool of local REPL processes behind the same call as the client's.

Speaks the protocol of leanprover-community/repl: a JSON object {"cmd", "env"} and an empty line on
stdin; a JSON object {"env", "messages", "sorries"} or {"message"}, and an empty line, on stdout.

Importing a library takes far longer than a proof, so a process keeps the environment of one header
and every proof runs on that environment, never on one that another proof has made. A process ends
after `max_uses` proofs, above `max_resident_bytes`, after a time-out, and when it breaks.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import resource
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.child import Child, ChildLost
from loong_jax.errors import VerifierError

MAX_REPLY_BYTES = 16 * 2**20
_HEADER_LINE = "import "


class Repl(Child):
    """One process that has imported one header. One caller at a time."""

    def __init__(self, command: Sequence[str], header: str, **options: Any):
        super().__init__(command, **options)
        self.header = header
        self.num_uses = 0
        self.env: int | None = None  # made by the header

    def limit(self, memory_bytes: int) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))

    def ask(self, source: str, env: int | None, timeout_s: float) -> dict[str, Any]:
        """The reply to one command; raises TimeoutError, or ChildLost for what is no reply."""
        deadline = time.monotonic() + timeout_s
        command: dict[str, Any] = {"cmd": source} | ({} if env is None else {"env": env})
        self.write(json.dumps(command).encode() + b"\n\n", deadline)
        raw = self.receive_until(b"\n\n", deadline, MAX_REPLY_BYTES)
        try:
            reply = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ChildLost(f"it sent no JSON: {error}") from None
        if not isinstance(reply, dict):
            raise ChildLost("it sent no object")
        return reply

    def resident_bytes(self) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * resource.getpagesize()
        return 0


@dataclasses.dataclass(eq=False)
class LeanReplPool:
    """Up to `num_repls` processes of `command`, started when they are needed. Safe in threads.

    The processes get `env` and nothing else of ours; `cwd` is where the project with its libraries
    lies. `timeout_s` is for one proof, `header_timeout_s` for imports, both by the clock.
    """

    command: Sequence[str]
    _: dataclasses.KW_ONLY
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    num_repls: int = 2
    timeout_s: float = 60.0
    header_timeout_s: float = 300.0
    max_uses: int = 200
    memory_bytes: int = 16 * 2**30
    max_resident_bytes: int = 8 * 2**30

    def __post_init__(self):
        limits = (self.num_repls, self.timeout_s, self.header_timeout_s, self.max_uses,
                  self.memory_bytes, self.max_resident_bytes)  # fmt: skip
        if not self.command or min(limits) <= 0:
            raise VerifierError(
                f"command={list(self.command)}, limits={limits}: a command and limits above 0 are "
                "needed."
            )
        self._idle: list[Repl] = []  # the longest unused first
        self._lock = threading.Lock()
        self._threads = concurrent.futures.ThreadPoolExecutor(self.num_repls, "lean-repl")
        self.num_started = 0

    def check(self, codes: Sequence[tuple[str, str]]) -> dict[str, Mapping[str, Any]]:
        """One result for each (id, source), in the shapes of a server's."""
        results = self._threads.map(lambda code: self._result(*code), codes)
        return {name: result for (name, _), result in zip(codes, results, strict=True)}

    def pids(self) -> list[int]:
        """Processes that wait for work."""
        with self._lock:
            return [repl.pid for repl in self._idle]

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        with self._lock:
            idle, self._idle = self._idle, []
        for repl in idle:
            repl.stop()

    # ---- one proof

    def _result(self, name: str, source: str) -> dict[str, Any]:
        (header, body), repl = split(source), None
        try:
            repl, refused = self._take(header)
            if refused is not None:  # the header's own errors
                return {"custom_id": name, "response": refused}
            reply = repl.ask(body, repl.env, self.timeout_s)
            repl.num_uses += 1
            if repl.num_uses >= self.max_uses or repl.resident_bytes() > self.max_resident_bytes:
                repl.stop()
            else:
                with self._lock:
                    self._idle.append(repl)
            return {"custom_id": name, "response": reply}
        except TimeoutError:
            why = f"Lean REPL command timed out in {self.timeout_s:g} seconds"
        except (ChildLost, OSError) as error:
            why = f"Lean process exited: {error}"
        if repl is not None:
            repl.stop()
        return {"custom_id": name, "error": why}

    def _take(self, header: str) -> tuple[Repl, dict[str, Any] | None]:
        """A process that has this header; what it says where the header fails."""
        with self._lock:
            found = next((repl for repl in self._idle if repl.header == header), None)
            if found is None and len(self._idle) == self.num_repls:
                found = self._idle[0]
            if found is not None:
                self._idle.remove(found)
        if found is not None and found.header == header and found.is_alive():
            return found, None
        if found is not None:
            found.stop()
        return self._start(header)

    def _start(self, header: str) -> tuple[Repl, dict[str, Any] | None]:
        env = {"PATH": os.defpath} | dict(self.env or {})
        repl = Repl(self.command, header, cwd=self.cwd, env=env)
        with self._lock:
            self.num_started += 1
        try:
            repl.limit(self.memory_bytes)
            reply = repl.ask(header, None, self.header_timeout_s) if header else None
        except TimeoutError:
            repl.stop()
            raise ChildLost(f"the imports took more than {self.header_timeout_s:g} s") from None
        except BaseException:
            repl.stop()
            raise
        if reply is None:
            return repl, None
        messages = reply.get("messages") or []
        failed = any(isinstance(m, dict) and m.get("severity") == "error" for m in messages)
        repl.env = reply.get("env")
        if not failed and isinstance(repl.env, int):
            return repl, None
        repl.stop()
        why = {"message": f"the header fails: {messages!r:.200}"}
        return repl, reply if "message" in reply else why


def split(source: str) -> tuple[str, str]:
    """A source's imports and what follows them."""
    lines = source.splitlines(keepends=True)
    count = 0
    for count, line in enumerate(lines):  # noqa: B007 - where the loop ends is the result
        if line.strip() and not line.startswith(_HEADER_LINE):
            break
    return "".join(lines[:count]).strip(), "".join(lines[count:]).strip()

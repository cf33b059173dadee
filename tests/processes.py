"""Programs in processes of their own, and waiting for what other threads and processes do."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_python(
    *arguments: object, timeout: float = 120.0, cwd: Path | str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A run of Python that can import the tests; `environment` is added to ours."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def wait_until(claim: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)

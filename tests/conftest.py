"""What every test meets: eight CPU devices, strict ranks, checked shapes, no skip in CI.

The settings must stand before JAX is imported.
"""

import gc
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

from loong_jax import process
from tests import xla_flags

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
_RUNS_RECIPES = "LOONG_TESTS_RUN_RECIPES" in os.environ  # as `make test-slow` says
_FLAGS = xla_flags.NOT_OPTIMIZED if _RUNS_RECIPES else xla_flags.QUICK_TO_COMPILE
for _flag in ("--xla_force_host_platform_device_count=8", *_FLAGS.split()):
    if _flag.split("=")[0] not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_flag}".strip()
# Programs come again, in the other workers and in later steps of `.ci/run`.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
# Lines of Python in a program are read by nobody here, and a sixteenth of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
process.prepare()
# The same examples every time, and none too slow: the cores may be shared.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile("house")
# Where arrays are annotated, shapes and types are checked; an int is a fine float, as everywhere in
# Python. Elsewhere pyright reads the annotations, and checks at every call would take most of the
# time of the tests.
_PACKAGE = Path(__file__).parent.parent / "loong_jax"
jaxtyping.install_import_hook(
    [
        ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
        for path in sorted(_PACKAGE.rglob("*.py"))
        if "jaxtyping" in path.read_text()
    ],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)


_STEPS = {"slow", "quickstart", "peers", "release"}  # marks that make a test one of another step


def bubblewrap_works() -> bool:
    if shutil.which("bwrap") is None:
        return False
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("bubblewrap") and not bubblewrap_works():
        pytest.skip("bubblewrap is not usable here: apt-get install bubblewrap")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file says which marks its tests have: by them the Makefile finds the files of a step."""
    for path, inside in itertools.groupby(items, lambda item: item.path):
        text = path.read_text(encoding="utf-8")
        for name in {mark.name for item in inside for mark in item.iter_markers()} & _STEPS:
            if f"mark.{name}" not in text and not (name == "release" and "thinned" in text):
                raise pytest.UsageError(f"{path}: tests carry mark.{name}, and no line says so")


def pytest_collection_finish() -> None:
    """Garbage is not looked for among modules and tests, which takes a sixteenth of the time.

    Nor is it rarer to look among all the rest: compiled programs would pile up.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 5)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """With CI=true a test that is skipped for want of bubblewrap fails."""
    outcome = yield
    report = outcome.get_result()
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if "bubblewrap" in reason.lower() or "bwrap" in reason.lower():
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} must run in CI, and was skipped: {reason}"

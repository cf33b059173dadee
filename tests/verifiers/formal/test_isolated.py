"""Commands of proof checkers in the sandbox: outputs, limits, and what is not the proof's fault."""

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers.formal import isolated
from tests.verifiers import conftest

pytestmark = pytest.mark.bubblewrap
LIMITS = isolated.limits(1, memory_bytes=128 * 2**20, file_bytes=2**20)


@pytest.fixture(scope="module", autouse=True)
def _namespaces():
    conftest.require_namespaces()


def run(script: str, *outputs: str, **files: bytes):
    return isolated.run(["/bin/sh", "-c", script], files, outputs, LIMITS)


def test_named_outputs_come_back_and_nothing_else():
    ran = run("cat a; echo x > b; echo y > c; echo said >&2", "b", "none", a=b"in\n")
    assert (ran.status, isolated.said(ran)) == (0, "in\nsaid\n")
    assert ran.files == {"b": (b"x\n", False)}
    assert run("exit 3", "b").status == 3
    assert run("kill -9 $$").status != 0
    assert run("ln -s /etc/ld.so.cache b", "b").files == {}
    assert run("ls").stdout == b"out\n"  # nothing of the runs before


def test_cpu_time_is_told_from_wall_time_and_both_from_memory():
    assert run("while :; do :; done").end == "cpu"
    assert run("sleep 100").end == "wall"
    with pytest.raises(VerifierError, match="memory are used up"):
        isolated.run(["/bin/sh", "-c", "tail /dev/zero"], {}, (), LIMITS)


def test_processes_and_files_are_bounded():
    many = run("for i in $(seq 300); do sleep 30 & done; echo never; kill -9 0")
    assert many.status != 0 or "fork" in isolated.said(many)
    assert run("head -c 100000000 /dev/zero > big").status != 0

"""Hostile programs against the code verifier, through the fork server and through plain runs."""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loong_jax.sandbox import PROGRAM, Run, mechanism
from loong_jax.sandbox.mechanism import Mechanism
from loong_jax.verifiers import get_verifier
from tests.verifiers.code.conftest import judged_or_skipped, zygote_pids
from tests.verifiers.code.hostile import HOSTILE, LIMIT_MB, Hostile

pytestmark = pytest.mark.bubblewrap
REPOSITORY = str(Path(__file__).parents[3])


@pytest.fixture(
    scope="module",
    params=[
        "fork",
        pytest.param("plain", marks=pytest.mark.slow),
        pytest.param("own namespaces", marks=pytest.mark.release),
    ],
)
def verifier(request, needs_isolation):
    """Through the fork server, by plain starts, and without bubblewrap."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "own namespaces":
            patch.setattr(mechanism, "isolation", own_namespaces)
        one = get_verifier("code", num_boxes=1, uses_fork=request.param != "plain")
    yield one
    one.close()


_isolation = mechanism.isolation.__wrapped__


def own_namespaces(*, for_programs: bool = True) -> Mechanism:
    """What is taken where bubblewrap is missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism.shutil, "which", lambda name: None)
        return _isolation(for_programs=for_programs)


def test_namespaces_without_bubblewrap(needs_isolation, host, monkeypatch):
    assert own_namespaces().name == "own namespaces"
    monkeypatch.setattr(mechanism, "isolation", own_namespaces)
    with contextlib.closing(get_verifier("code", num_boxes=1)) as one:
        for number in (23, 24, 26, 28, 30, 31, 33, 36, 37, 38, 46):
            (tried,) = (other for other in HOSTILE if other.number == number)
            judged = judge(one, tried, placed(tried, host))
            assert judged.is_correct, (tried.name, judged)
            assert judged.isolation == "namespaces"


@pytest.fixture(scope="module")
def host():
    """A port and an abstract socket of this machine that programs are to reach for."""
    port = socket.create_server(("127.0.0.1", 0))
    name = f"loong-test-{os.getpid()}"
    unix = socket.socket(socket.AF_UNIX)
    unix.bind("\0" + name)
    unix.listen()
    yield {"HOST_PORT": str(port.getsockname()[1]), "HOST_SOCKET": repr(name)}
    port.close()
    unix.close()


def placed(one: Hostile, host: dict[str, str]) -> str:
    source = one.source.replace("REPOSITORY", repr(REPOSITORY))
    for name, value in host.items():
        source = source.replace(name, value)
    return source


def judge(verifier, one: Hostile, source: str):
    test = {"function": "answer", "returns": 42} if one.call else {"stdout": "survived\n"}
    record = {"language": "python", "answer": source, "tests": [test], "memory_mb": LIMIT_MB}
    time_limit_s = 0.6 if "TLE" in one.statuses else 10.0  # so that a busy machine changes nothing
    return verifier.verify_record(record | {"time_limit_s": time_limit_s})


@pytest.mark.parametrize("one", HOSTILE, ids=lambda one: f"{one.number}-{one.name}")
def test_hostile_program(verifier, host, one):
    pids = verifier.executor.pids()
    start = time.monotonic()
    judged = judge(verifier, one, placed(one, host))
    took_s = time.monotonic() - start
    assert judged.outcome != "ungradable", judged
    (result,) = judged.details["tests"]
    assert result["status"] in one.statuses, result
    assert judged.is_correct == (result["status"] == "OK")
    assert "PWNED" not in result["stdout"]
    assert judged.isolation == "namespaces"
    assert took_s < 30
    if pids:  # the zygote outlived it
        assert verifier.executor.pids() == pids


@pytest.mark.parametrize("number", [48, 20])
def test_a_second_run_finds_nothing_of_the_first(verifier, host, number):
    (one,) = (one for one in HOSTILE if one.number == number)
    for _ in range(2):
        assert judge(verifier, one, placed(one, host)).is_correct
    for pid in zygote_pids(verifier):
        assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "one",
    [
        pytest.param(
            one,
            id=f"{one.number}-{one.name}",
            marks=pytest.mark.release if one.number == 11 else (),  # on a disk it takes its time
        )
        for one in HOSTILE
        if one.outside
    ],
)
def test_it_works_outside_the_sandbox(one, host, tmp_path):
    """So that a pass inside means a wall, and not a program that could do no harm anywhere."""
    how = one.outside
    if how == "root" and os.geteuid() != 0:
        pytest.skip("only root gets so far, even outside")
    source = placed(one, host)
    for place in ("/tmp", "/dev/shm"):
        source = source.replace(place, str(tmp_path))
    if how == "fools":
        expression = "isinstance(answer(), object) and answer() == 42"
        source += f"\nprint('PWNED' if {expression} else 'survived')"
    path = tmp_path / "main.py"
    path.write_text(source)
    shell = 'ulimit -c 0; ulimit -n 4096; exec "$0" -I "$1"'
    with (
        (tmp_path / "said").open("w+") as said,
        open(os.devnull) as inherited,
        subprocess.Popen(
            ["/bin/sh", "-c", shell, sys.executable, str(path)],
            stdout=said, stderr=said, env={**os.environ, "SECRET": "1"}, cwd=tmp_path,
            start_new_session=True, pass_fds=[inherited.fileno()],
        ) as process,
    ):  # fmt: skip
        try:
            status = process.wait(1.0 if how == "goes on" else 60.0)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    size = os.path.getsize(tmp_path / "said")
    text = (tmp_path / "said").open(errors="replace").read(4096)
    if one.number == 48:  # what it has left is there
        assert (tmp_path / "left").exists()
    elif how == "goes on":
        assert status is None
    elif how == "floods":
        assert size >= 50 * 2**20
    else:
        assert text.strip().endswith("PWNED"), text
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)  # too deep for shutil
    (tmp_path / "said").unlink()


def bombs(*names: str):
    sources = {
        "templates": "template<class T, int N> struct A { A<T*, N-1> a; A<T const*, N-1> b; };\n"
        "template<class T> struct A<T, 0> {}; A<int, 40> a; int main() {}",
        "includes": '#include "/tmp/main.cpp"\n#include "/tmp/main.cpp"\nint main(){}',
        "terminal": "#include </dev/tty>\nint main(){}",
        "zeros": "#include </dev/zero>\nint main(){}",
        "accounts": "#include </etc/passwd>\nint main(){}",
    }
    return [pytest.param(sources[name], id=name) for name in names]


def check_bomb(verifier, source: str) -> None:
    record = {"language": "cpp", "answer": source, "tests": [{"stdout": "PWNED"}]}
    refuse_compiled(verifier.verify_record(record))


def refuse_compiled(judged) -> None:
    """A compile error, whatever it cost, and nothing of this machine in what the compiler says."""
    assert judged.reason == "compile error", judged
    assert "root:" not in str(judged.details)


@pytest.mark.parametrize("source", bombs("includes", "terminal", "accounts"))
def test_compile_time_attacks(verifier, source):
    check_bomb(verifier, source)


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("c", '#include <stdio.h>\n__asm__(".incbin \\"PLACE\\"");int main(){}'),
        ("assembly", 'section .data\nx: incbin "PLACE"'),
        ("rust", 'fn main() { print!("{}", include_str!("PLACE")); }'),
    ],
)
@pytest.mark.parametrize("place", ["/etc/passwd", "/etc/shadow", __file__])
def test_compilers_read_no_file_of_the_host(verifier, language, source, place):
    answer = source.replace("PLACE", place)
    refuse_compiled(judged_or_skipped(verifier, language, answer, {"stdout": "PWNED"}))


@pytest.mark.slow
@pytest.mark.parametrize("source", bombs("templates", "zeros"))
def test_compile_time_bombs(code, source):
    check_bomb(code, source)


def test_a_compiler_cannot_be_made_to_hand_out_a_link(verifier):

    for command in (
        "ln -s /etc/passwd /tmp/out/main",
        "mkfifo /tmp/out/main || ln -s x /tmp/out/main",
        "head -c 60000000 /dev/zero > /tmp/out/main",
    ):
        ended = verifier.executor.run(
            Run(
                argv=["/bin/sh", "-c", command],
                collect=True,
                limits=dataclasses.replace(PROGRAM, collect_bytes=2**20),
            )
        )
        assert ended.status != 0 or ended.end != "exited"
        assert not ended.files


def test_artefacts_are_read_only_and_others_are_hidden(verifier):
    source = """
    #include <stdio.h>
    #include <fcntl.h>
    #include <unistd.h>
    #include <dirent.h>
    int main() {
        int n = 0;
        if (open("/app/main", O_RDWR) >= 0 || open("/app/x", O_CREAT | O_RDWR, 0666) >= 0) n = 1;
        if (!unlink("/app/main") || !rename("/app", "/tmp/app")) n = 2;
        DIR *d = opendir("/cache");
        for (struct dirent *e; d && (e = readdir(d));) if (e->d_name[0] != '.') n = 3;
        puts(n ? "PWNED" : "survived");
    }
    """
    tests = [{"stdout": "survived"}] * 2
    judged = verifier.verify_record({"language": "c", "answer": source, "tests": tests})
    assert judged.is_correct, judged


def test_output_is_drained_from_many_runs_at_once(needs_isolation):
    record = {"language": "python", "answer": "print('x' * 500_000)"}
    record["tests"] = [{"stdout": "x" * 500_000}] * 4
    with (
        contextlib.closing(get_verifier("code", num_boxes=2)) as one,
        ThreadPoolExecutor(3) as threads,
    ):
        judged = list(threads.map(one.verify_record, [record] * 3, timeout=60))
    assert [verdict.is_correct for verdict in judged] == [True] * 3

"""The code verifier's contract: records, statuses, comparison, checkers, caching, leaks."""

import json
import math
import os
import time
from pathlib import Path

import psutil
import pytest

from loong_jax import cli
from loong_jax.errors import VerifierError
from loong_jax.problems.problem import Problem
from loong_jax.sandbox import Run
from loong_jax.verifiers import Verifier, get_verifier
from loong_jax.verifiers.code import cases, compare
from tests.verifiers.code.conftest import zygote_pids

pytestmark = pytest.mark.bubblewrap

ECHO = "import sys\nprint(sys.stdin.read(), end='')"


def record(answer: str, *tests: dict, language: str = "python", **more) -> dict:
    return {"language": language, "answer": answer, "tests": list(tests), **more}


def test_a_file_of_records(tmp_path, capsys, needs_isolation):
    lines = [
        json.dumps(record(ECHO, {"stdin": "a b", "stdout": "a b\n"}, id="first")),
        json.dumps(record("print(1)", {"stdout": "2"})),
        "not json",
        json.dumps(record(ECHO)),
        json.dumps(record("x = ", {"stdout": ""})),
        json.dumps(record("x", {"stdout": ""}, language="klingon")),
        json.dumps(
            record("def f(a, b=0): return a, {b}", {"call": "f(1, b=2)", "returns": [1, [2]]})
        ),
        json.dumps({"language": "python", "answer": 5, "tests": [{"stdout": ""}]}),
        json.dumps(record("print(1)", {"stdout": "1"}, {"stdout": 3})),
    ]
    source, destination = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines))
    assert cli.main(["verify", "code", "--input", str(source), "--output", str(destination)]) == 0
    verdicts = [json.loads(line) for line in destination.read_text().splitlines()]
    assert [v["verdict"] for v in verdicts] == [
        "correct", "wrong", "ungradable", "ungradable", "wrong", "ungradable", "correct",
        "ungradable", "ungradable",
    ]  # fmt: skip
    first = verdicts[0]
    assert (first["id"], first["isolation"], first["passed"]) == ("first", "namespaces", 1)
    assert first["tests"][0]["stdout"] == "a b"
    assert verdicts[1]["tests"][0]["status"] == "WA"
    assert verdicts[4]["tests"][0]["status"] == "CE"
    assert "3 correct" not in capsys.readouterr().err


def test_an_answer_may_stand_in_a_code_fence(code):
    tests = {"stdin": "4", "stdout": "16"}
    program = "print(int(input())**2)"
    assert code.verify_record(record(f"```python\n{program}\n```", tests)).is_correct
    assert code.verify_record(record(f"\n~~~\n{program}\n~~~\n", tests)).is_correct
    quoting = f'note = """\n```\nprint(0)\n```\n"""\n{program}'
    assert code.verify_record(record(quoting, tests)).is_correct


def test_it_is_a_verifier_of_whole_responses(code):
    assert isinstance(code, Verifier)
    arguments = {"language": "python", "tests": [{"stdin": "4", "stdout": "16"}]}
    problem = Problem(
        uid="p", domain="code", environment="e", level=1, seed=0, canonical="c", prompt="square",
        verifier="code", arguments=arguments,
    )  # fmt: skip
    response = "```python\nprint(0)\n```</think>So:\n```python\nprint(int(input())**2)\n```\nDone."
    assert code.verify(problem, response).is_correct
    assert not code.verify(problem, "```python\nprint(0)\n```").is_correct


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("print(1)", "OK"),
        ("print('1 ')\nprint()", "OK"),
        ("print(' 1')", "WA"),
        ("print(2)", "WA"),
        ("pass", "WA"),
        ("1 / 0", "RE"),
        ("print(1)\nraise SystemExit(3)", "RE"),
        ("print(1)\nexit()", "OK"),
        ("import threading\nthreading.Thread(target=lambda: print(1)).start()", "OK"),
        ("import atexit\natexit.register(lambda: print(1))", "OK"),
        ("if __name__ == '__main__': print(1)", "OK"),
        ("import subprocess\nsubprocess.run(['/bin/echo', '1'])", "OK"),
        ("import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1])[0])", "OK"),
        ("x = [0] * 10**9", "MLE"),
        ("while True: print('x' * 10**6)", "OLE"),
    ],
)
@pytest.mark.parametrize("uses_fork", [True, False])
def test_statuses_are_alike_with_and_without_the_fork(pair, source, status, uses_fork):
    judged = pair[uses_fork].verify_record(record(source, {"stdout": "1\n"}, memory_mb=128))
    assert judged.details["tests"][0]["status"] == status, judged


@pytest.fixture(scope="module")
def pair(needs_isolation):
    both = {fork: get_verifier("code", num_boxes=1, uses_fork=fork) for fork in (True, False)}
    yield both
    for one in both.values():
        one.close()


def test_captured_output_is_bounded_and_flagged(code):
    judged = code.verify_record(record("print('x' * 100_000)", {"stdout": "x" * 100_000}))
    (result,) = judged.details["tests"]
    assert judged.is_correct
    assert len(result["stdout"]) <= 4096
    assert (result["stdout_truncated"], result["stderr_truncated"]) == (True, False)


def test_several_outputs_tolerance_and_checker(code):
    any_of = {"stdout": ["1 2", "2 1"]}
    assert code.verify_record(record("print(2, 1)", any_of)).is_correct
    assert not code.verify_record(record("print(2, 2)", any_of)).is_correct
    third = record("print(1/3)", {"stdout": "0.33333"}, tolerance=1e-4)
    assert code.verify_record(third).is_correct
    assert not code.verify_record(third | {"tolerance": 1e-9}).is_correct
    checker = {
        "language": "python",
        "source": "import sys\nn, got = (open(p).read() for p in sys.argv[1:3])\n"
        "sys.exit(0 if int(got) % int(n) == 0 else 1)",
    }
    checked = record("print(int(input()) * 7)", {"stdin": "6"}, checker=checker)
    assert code.verify_record(checked).is_correct
    assert code.verify_record(checked | {"answer": "print(7)"}).reason == "wrong answer"
    for source in ("raise SystemExit(9)", "import sys; sys.exit("):
        broken = checked | {"checker": checker | {"source": source}}
        assert code.verify_record(broken).outcome == "ungradable", source


@pytest.mark.parametrize(
    ("returned", "expected", "is_right"),
    [
        ("(1, [2.0])", [1, [2]], True), ("{3, 1}", [1, 3], True), ("{1: None}", {"1": None}, True),
        ("True", 1, False), ("1", True, False), ("'1'", 1, False), ("float('nan')", 0, False),
        ("10**40", 10**40, True), ("[1, 2]", [2, 1], False), ("None", None, True),
        ("float('nan')", math.nan, True), ("1.0", math.nan, False),
        ("[float('inf')]", [math.inf], True), ("float('inf')", math.nan, False),
        ("b'1'", "1", False), ("lambda: 1", None, False),
    ],
)  # fmt: skip
def test_values_are_compared_outside(code, returned, expected, is_right):
    source = f"class Solution:\n    def run(self): return {returned}"
    judged = code.verify_record(record(source, {"call": "Solution.run", "returns": expected}))
    assert judged.outcome == ("correct" if is_right else "wrong"), judged


@pytest.mark.parametrize(
    ("source", "call", "returns", "is_right"),
    [
        ("function f(a, b) { return [a + b, {k: a}] }", "f(1, 2)", [3, {"k": 1}], True),
        ("const f = (x) => x * 0.5", "f(3)", 1.5, True),
        ("class S { run(x) { return new Set([x, 1]) } }", "S.run(2)", [1, 2], True),
        ("module.exports = {f: async () => new Map([[1, null]])}", "f()", {"1": None}, True),
        ("var f = () => 10n ** 40n", "f()", 10**40, True),
        ("var f = () => true", "f()", 1, False),
        ("var f = () => NaN", "f()", 0, False),
        ("var f = () => NaN", "f()", math.nan, True),
        ("var f = () => -Infinity", "f()", -math.inf, True),
        ("var f = () => Infinity", "f()", math.nan, False),
        ("process.exit(0)", "f()", 1, False),
        ("JSON.stringify = () => '1'; var f = () => 0", "f()", 1, False),
        ("require('fs').writeSync(3, '[]'); var f = () => 1", "f()", 1, False),
        ("let f = 1", "f()", 1, False),
    ],
)  # fmt: skip
def test_calls_of_javascript(code, source, call, returns, is_right):
    asked = record(source, {"call": call, "returns": returns}, language="javascript")
    judged = code.verify_record(asked)
    if judged.reason == "toolchain":
        pytest.skip(judged.evidence)
    assert judged.outcome == ("correct" if is_right else "wrong"), judged


def test_calls_need_a_driver_and_plain_arguments(code):
    one = {"call": "f", "args": [1], "returns": 1}
    assert "calls are tested in" in code.verify_record(record("x", one, language="bash")).evidence
    named = record("var f = (x) => x", one | {"kwargs": {"x": 1}}, language="javascript")
    assert code.verify_record(named).outcome == "ungradable"


@pytest.mark.parametrize(
    "bad",
    [
        {"tests": []}, {"tests": "x"}, {"tests": [5]}, {"tests": [{}]}, {"tests": [{"call": "f"}]},
        {"tests": [{"call": "f", "returns": 1, "stdout": ""}]}, {"time_limit_s": "soon"},
        {"tests": [{"call": "f(x)", "returns": 1}]}, {"tests": [{"call": "f; g", "returns": 1}]},
        {"memory_mb": -1}, {"checker": 5}, {"language": None}, {"tolerance": True},
        {"tests": [{"stdin": "", "input": "", "stdout": ""}]}, {"answer": "x" * 2**21},
    ],
)  # fmt: skip
def test_unclear_records_are_refused(bad):
    with pytest.raises(VerifierError):
        cases.read_case(record("x", {"stdout": ""}) | bad)


def test_numbers_are_close_only_within_the_tolerance():
    assert compare.matches_output(b"1.0000001 x", ["1 x"], 1e-6)
    for got in (b"nan", b"inf", b"1_0", b"1.1", b"", b"1 1"):
        assert not compare.matches_output(got, ["1"], 1e-3)


def test_a_verifier_without_boxes_is_refused():
    with pytest.raises(VerifierError, match="num_boxes=-1 is below 1"):
        get_verifier("code", num_boxes=-1)


def test_compiles_once_for_all_tests_and_verifiers(tmp_path, needs_isolation):
    tmp_path.chmod(0o755)
    shared = Path(os.path.realpath("/var/tmp")) / f"loong-test-{os.getpid()}"
    source = '#include <stdio.h>\nint main(){int x;scanf("%d",&x);printf("%d",x);}'
    asked = record(source, {"stdin": "4", "stdout": "4"}, language="c")
    try:
        cached = []
        for _ in range(2):
            one = get_verifier("code", num_boxes=1, cache_dir=shared)
            for _ in range(2):
                judged = one.verify_record(asked)
                assert judged.is_correct
                cached.append(judged.details["compile"]["cached"])
            changed = one.verify_record(asked | {"answer": source + "\n"})
            one.close()
        assert cached == [False, True, True, True]
        assert changed.is_correct
    finally:
        import shutil

        shutil.rmtree(shared, ignore_errors=True)


def test_a_killed_zygote_costs_no_verdict(code):
    for pid in code.executor.pids():
        os.kill(pid, 9)
    assert code.verify_record(record("print(1)", {"stdout": "1"})).is_correct


_MADE = "made-by-a-run"


def leaks(verifier, num_runs: int) -> dict[str, int]:
    """What is there after so many runs beyond what was there before."""

    def count() -> dict[str, int]:
        children = len(psutil.Process().children())
        mounts = len(Path("/proc/self/mountinfo").read_text().splitlines())
        status = Path("/proc/self/status").read_text()
        (rss,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        zygote = sum(
            int(line.split()[1])
            for pid in zygote_pids(verifier)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        )
        files = len(os.listdir(verifier.executor._cache.directory))
        fds = psutil.Process().num_fds()
        return {
            "children": children, "mounts": mounts, "kB": rss + zygote, "files": files, "fds": fds,
        }  # fmt: skip

    source = f"open({_MADE!r}, 'w')".encode()
    program = Run(argv=["/tmp/main.py"], mode="python", files={"main.py": source})  # fmt: skip
    list(verifier.executor.threads.map(verifier.executor.run, [program] * 40))
    before = count()
    for _ in range(num_runs // 100):  # futures of all runs at once would take memory of their own
        ended = verifier.executor.threads.map(verifier.executor.run, [program] * 100)
        assert all(one.status == 0 for one in ended)
    return {name: after - before[name] for name, after in count().items()}


@pytest.mark.timeout(900)  # 10,000 runs take a minute of two idle cores
@pytest.mark.parametrize("num_runs", [100, pytest.param(10_000, marks=pytest.mark.release)])
def test_nothing_leaks(code, num_runs):
    start = time.monotonic()
    grown = leaks(code, num_runs)
    assert grown["children"] <= 0
    assert grown["mounts"] == 0
    assert grown["files"] == 0
    assert not any(Path(at, _MADE).exists() for at in ("/tmp", "."))
    assert grown["fds"] == 0
    assert grown["kB"] < 4096, (grown, time.monotonic() - start)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_unprivileged_user_gets_the_same_isolation(tmp_path_factory, needs_isolation):
    import shutil
    import subprocess
    import tempfile

    import loong_jax

    interpreter = "/usr/bin/python3"
    if not os.path.exists(interpreter):
        pytest.skip("no interpreter that another user can reach")
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        package = Path(loong_jax.__file__).parent
        shutil.copytree(package, Path(directory) / "loong_jax")
        script = (
            "from loong_jax.verifiers import get_verifier\n"
            "v = get_verifier('code', num_boxes=1)\n"
            "def run(source): return v.verify_record({'language': 'python', 'answer': source,"
            " 'tests': [{'stdout': '1'}], 'time_limit_s': 0.5, 'memory_mb': 100})\n"
            "spin = 'import os\\nfor _ in range(9):\\n if not os.fork():\\n  while 1: pass'\n"
            "area = 'import mmap\\nm = mmap.mmap(-1, 1 << 30)\\n'\n"
            "area += 'for i in range(0, 1 << 30, 4096): m[i] = 1'\n"
            "for source in ('print(1)', 'while 1: pass', 'x = [1] * 10**9', 'open(\"/etc/x\")',"
            " spin, area):\n"
            "    r = run(source)\n"
            "    print(r.details['tests'][0]['status'], r.isolation)\n"
            "v.close()\n"
        )
        done = subprocess.run(
            [interpreter, "-c", script], user=4242, group=4242, extra_groups=[], text=True,
            capture_output=True, timeout=100, env={"PYTHONPATH": directory, "TMPDIR": "/tmp"},
            cwd="/",
        )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 6, done.stderr
    assert {line.split()[1] for line in lines} == {"namespaces"}
    statuses = [line.split()[0] for line in lines]
    assert statuses[:4] == ["OK", "TLE", "MLE", "RE"]
    assert statuses[4] in ("WA", "TLE")  # its parent ends at once, and takes all with it
    assert statuses[5] in ("MLE", "RE")  # the map may be refused


def test_batches_go_through_the_pool(needs_isolation):
    from loong_jax.verifiers.pool import LocalVerifierPool, VerifierRequest
    from loong_jax.verifiers.worker import WorkerConfig

    arguments = {"language": "python", "tests": [{"stdin": "4", "stdout": "16"}]}
    problem = Problem(
        uid="p", domain="code", environment="e", level=1, seed=0, canonical="c", prompt="square",
        verifier="code", arguments=arguments,
    )  # fmt: skip
    pool = LocalVerifierPool(1, WorkerConfig(options={"code": {"num_boxes": 1}}))
    try:
        sources = ["print(int(input())**2)", "print(0)", "x = (", "print(16)"] * 3
        requests = [
            VerifierRequest(key=str(i), problem=problem, response_text=source, deadline_s=60.0)
            for i, source in enumerate(sources)
        ]
        outcomes = [future.result(120).outcome for future in pool.submit(requests)]
        assert outcomes == ["correct", "wrong", "wrong", "correct"] * 3
    finally:
        pool.close()

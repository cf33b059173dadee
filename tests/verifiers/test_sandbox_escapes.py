"""Programs that try to get out of the sandbox, at each isolation tier."""

import pytest

from loong_jax import sandbox as sandbox_module
from loong_jax.sandbox import Program, Sandbox
from tests.verifiers.sandbox_checks import LIMITS, run

# ---- By namespaces only: what the guard of the process tier would refuse before it is tried. ----


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    "source",
    [
        "os._exit(0)",
        "os._exit(3)",
        "os.abort()",
        "os.kill(os.getpid(), 9)",
        "os.closerange(0, 99)",
        "os.write(1, b'PASS')\n os._exit(0)",
        "os.execv('/usr/bin/env', ['env'])",
    ],
)
def test_ending_without_a_reply_is_a_crash(namespaces, source):
    result = run(namespaces, f"import os\ndef f():\n {source}")
    assert result.status in ("crash", "error")  # with its pipe closed it cannot reply
    assert result.values == ()


@pytest.mark.bubblewrap
@pytest.mark.parametrize("prefix", ["", "0" * 16])
def test_naive_forgery_is_refused(namespaces, prefix):
    reply = prefix + '{"values": [42], "output": ""}'
    source = (
        "import os\n"
        "for fd in range(3, 64):\n"
        f"    try: os.write(fd, {reply.encode()!r})\n"
        "    except OSError: pass\n"
        "os._exit(0)\n"
    )
    result = run(namespaces, source)
    assert (result.status, result.values) == ("error", ())
    assert run(namespaces, source.replace("os._exit(0)", "def f(): return 1")).status == "error"


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    "body",
    [
        "{}",
        "[]",
        "nonsense",
        "'\\xff'",
        "'[' * 10**4",
        "'9' * 10**4",
        '\'{"values": [{}], "output": ""}\'',
        '\'{"values": [1, 2], "output": ""}\'',
        '\'{"values": 1, "output": ""}\'',
        "'{\"values\": [' + '[' * 10**4",
    ],
)
def test_a_forger_who_finds_the_token_can_claim_plain_values_only(namespaces, body):
    body = body if body.startswith("'") else repr(body)
    source = (
        "import os, sys\n"
        "frame = sys._getframe()\n"
        "while 'token' not in frame.f_locals: frame = frame.f_back\n"
        f"body = frame.f_locals['token'] + ({body}).encode('latin-1')\n"
        "os.write(frame.f_locals['write_end'], body)\n"
        "os._exit(0)\n"
    )
    result = run(namespaces, source)
    assert (result.status, result.detail) == ("error", "a malformed reply")


@pytest.mark.bubblewrap
def test_a_walk_over_frames_finds_the_request_and_no_answer(namespaces):
    source = (
        "import sys\n"
        "def f():\n"
        "    frame = sys._getframe()\n"
        "    while 'request' not in frame.f_locals: frame = frame.f_back\n"
        "    return list(frame.f_locals['request'])\n"
    )
    (names,) = run(namespaces, source).values
    assert set(names) == {"source", "entry", "arguments", "limits", "guard"}


@pytest.mark.bubblewrap
def test_the_machine_is_not_there(namespaces, tmp_path):
    source = (
        "import os\n"
        "def f(path):\n"
        "    try: return str(os.listdir(path) if os.path.isdir(path) else open(path).read())\n"
        "    except OSError as error: return type(error).__name__\n"
    )
    secret = tmp_path / "secret"
    secret.write_text("secret")
    paths = ["/etc/passwd", "/etc/shadow", "/root", "/home", "/proc", "/proc/1/environ", "/sys"]
    paths += ["/tmp", "/var", str(secret), __file__, sandbox_module.__file__]
    (result,) = namespaces.run([Program(source=source, arguments=[[p] for p in paths])])
    assert dict(zip(paths, result.values, strict=True)) == dict.fromkeys(paths, "FileNotFoundError")
    (root,) = run(namespaces, "import os\ndef f(): return os.listdir('/')").values
    assert set(root) <= {"usr", "lib", "lib32", "lib64", "etc", "dev", "opt", "root", "home"}
    (devices,) = run(namespaces, "import os\ndef f(): return os.listdir('/dev')").values
    assert devices == ["null"]


@pytest.mark.bubblewrap
def test_environment_holds_nothing_of_ours(namespaces, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "secret")
    with Sandbox(LIMITS, tier="namespaces") as fresh:
        (names,) = run(fresh, "import os\ndef f(): return list(os.environ)").values
    assert set(names) <= {"PWD", "LC_CTYPE"}


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    "action",
    [
        "os.fork()",
        "threading.Thread(target=print).start()",
        "subprocess.run(['/usr/bin/env'])",
        "os.posix_spawn('/usr/bin/env', ['env'], {})",
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "socket.socketpair()",
        "socket.create_connection(('127.0.0.1', 22), 1)",
        "open('/file', 'w')",
        "open('/usr/file', 'w')",
        "open('/dev/file', 'w')",
        "os.mkdir('/dir')",
        "os.memfd_create('m')",
        "os.mknod('/disk', 0o660 | 0o060000, os.makedev(8, 0))",
        "os.chroot('/usr')",
        "os.setuid(0)",
        "os.kill(-1, 9)",
        "os.nice(-5)",
        "time.clock_settime(time.CLOCK_REALTIME, 0)",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "resource.setrlimit(resource.RLIMIT_NPROC, (9, 9))",
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "[os.pipe() for _ in range(1000)]",
        "call('unshare', 0x10000000)",
        "call('ptrace', 16, 1, 0, 0)",
        "call('mount', b'proc', b'/dev', b'proc', 0, 0)",
        "call('syscall', 425, 8, 0)",
        "call('syscall', 321, 0, 0, 0)",
    ],
)
def test_the_kernel_refuses(namespaces, action):
    source = (
        "import ctypes, os, resource, socket, subprocess, threading, time\n"
        "def call(name, *arguments):\n"
        "    if ctypes.CDLL(None, use_errno=True)[name](*arguments) == -1:\n"
        "        raise OSError(ctypes.get_errno(), name)\n"
        f"def f():\n    {action}\n    return 'PWNED'\n"
    )
    result = run(namespaces, source)
    assert (result.status, result.values) == ("error", ())
    kinds = ("PermissionError", "OSError", "BlockingIOError", "RuntimeError", "ValueError")
    assert result.detail.startswith((*kinds, "ProcessLookupError")), result.detail


@pytest.mark.bubblewrap
def test_the_zygote_cannot_be_signalled_from_inside(namespaces):
    pid = namespaces.pid()
    source = "import os\ndef f():\n for s in range(1, 32): os.kill(1, s)\n return os.getppid()"
    assert run(namespaces, source).values == (1,)
    assert run(namespaces, "def f(): return 1").values == (1,)
    assert namespaces.pid() == pid


@pytest.mark.bubblewrap
def test_only_standard_streams_and_the_pipe_are_open(namespaces):
    source = (
        "import os\n"
        "def f():\n"
        "    found = []\n"
        "    for fd in range(3, 1024):\n"
        "        try: found.append(oct(os.fstat(fd).st_mode & 0o170000))\n"
        "        except OSError: pass\n"
        "    return found\n"
    )
    (kinds,) = run(namespaces, source).values
    assert sorted(kinds) == ["0o10000", "0o20000"]  # the pipe of the reply, and an empty stdin


def test_runs_as_nobody_in_particular(sandbox):
    run(sandbox, "def f(): return 1")
    with open(f"/proc/{sandbox.pid()}/status") as lines:
        (uids,) = [line.split()[1:] for line in lines if line.startswith("Uid:")]
    assert "0" not in uids
    if sandbox.tier == "namespaces":
        (uid,) = run(sandbox, "import os\ndef f(): return os.getuid()").values
        assert uid != 0


# ---- The process tier: a hurdle, but one that is there. ----


@pytest.mark.parametrize(
    "action",
    [
        "open('/etc/passwd')",
        "__import__('os')",
        "__import__('socket')",
        "__import__('ctypes')",
        "__import__('threading')",
        "__import__('subprocess')",
        "__import__('sys')",
        "breakpoint()",
        "input()",
        "print.__self__.__import__('posix').kill(-1, 9)",
        "math.__loader__.load_module('os')",
    ],
)
def test_guard_refuses_what_reaches_the_machine(process, action):
    result = run(process, f"import math\ndef f():\n {action}\n return 'PWNED'")
    assert (result.status, result.values) == ("error", ())


def test_guard_allows_small_computations(process):
    source = (
        "import math, itertools, collections, re, random, fractions, functools\n"
        "def f(): return [math.gcd(4, 6), len(list(itertools.permutations('abc'))), "
        "eval('1+1'), re.sub('a', 'b', 'aa'), str(fractions.Fraction(2, 4))]"
    )
    assert run(process, source).values == ([2, 6, 2, "bb", "1/2"],)

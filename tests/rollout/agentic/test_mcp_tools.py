"""Tools of real MCP servers, over stdio and HTTP, that work, fail, hang, freeze, die and flood."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loong_jax.errors import ConfigError
from loong_jax.rollout.agentic.agent import Toolbox, ToolError
from tests.doubles.fake_model import fake_problem
from tests.processes import wait_until

pytest.importorskip("mcp", reason="the extra `tools` is not installed")

from loong_jax.rollout.agentic.mcp_tools import HttpServer, McpServer, StdioServer

SERVER = str(Path(__file__).parent / "mcp_server.py")
NAMES = {"add", "fail", "hang", "freeze", "die", "flood", "number", "secret"}


@contextlib.contextmanager
def http_process(port):
    process = subprocess.Popen(
        [sys.executable, SERVER, "http", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: is_there(port))
        yield process
    finally:
        process.kill()
        process.wait(10)


def is_there(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def stdio():
    os.environ["LOONG_SECRET"] = "do not pass on"
    try:
        with McpServer(
            StdioServer(command=sys.executable, args=(SERVER, "stdio")), start_timeout_s=60
        ) as server:
            yield server
    finally:
        del os.environ["LOONG_SECRET"]


@pytest.fixture(scope="module")
def http():
    port = free_port()
    where = HttpServer(url=f"http://127.0.0.1:{port}/mcp")
    with http_process(port), McpServer(where, start_timeout_s=60) as server:
        yield server


@pytest.fixture(params=["stdio", "http"])
def server(request):
    return request.getfixturevalue(request.param)


def test_tools_are_listed_with_schemas_that_calls_are_checked_by(server):
    toolbox = Toolbox(server.tools)
    assert set(toolbox) == NAMES
    add = toolbox["add"]
    assert add.description == "Adds two whole numbers."
    assert add.parameters["required"] == ["a", "b"]
    assert add.call({"a": 2, "b": 40}, problem=fake_problem(0), timeout_s=30) == "42"


def test_what_a_tool_raises_is_told(server):
    with pytest.raises(ToolError, match="no such luck"):
        server.call("fail", {"text": "no such luck"}, timeout_s=30)
    assert server.call("add", {"a": 1, "b": 1}, timeout_s=30) == "2"


def test_a_call_that_hangs_ends_in_time_and_the_server_stays(server):
    before, start_s = server.num_restarts, time.monotonic()
    with pytest.raises(TimeoutError):
        server.call("hang", {"seconds": 600}, timeout_s=0.5)
    assert time.monotonic() - start_s < 30
    assert server.call("add", {"a": 1, "b": 2}, timeout_s=30) == "3"
    assert server.num_restarts == before


def test_ten_megabytes_are_cut(server):
    answer = server.call("flood", {"megabytes": 10}, timeout_s=60)
    assert len(answer) < server.max_answer_chars + 100
    assert answer.endswith(f"...[cut, {10 * 2**20} characters in all]")


def test_a_dead_child_is_replaced_and_the_call_is_not_repeated(stdio):
    first = stdio.call("number", {}, timeout_s=30)
    with pytest.raises((ToolError, TimeoutError)):
        stdio.call("die", {}, timeout_s=10)
    wait_until(lambda: answers(stdio, "number") not in (None, first))
    assert stdio.num_restarts == 1


def test_a_frozen_child_is_given_up(stdio):
    first, before = stdio.call("number", {}, timeout_s=30), stdio.num_restarts
    with pytest.raises(TimeoutError):
        stdio.call("freeze", {"seconds": 600}, timeout_s=0.5)
    wait_until(lambda: answers(stdio, "number") not in (None, first))
    assert stdio.num_restarts == before + 1


def test_a_child_does_not_see_our_environment(stdio):
    assert stdio.call("secret", {}, timeout_s=30) == "nothing"


def test_an_http_server_that_comes_back_is_used_again():
    port = free_port()
    with http_process(port):
        server = McpServer(HttpServer(url=f"http://127.0.0.1:{port}/mcp"), start_timeout_s=60)
    with pytest.raises((ToolError, TimeoutError)):
        server.call("add", {"a": 1, "b": 1}, timeout_s=5)
    with http_process(port):
        wait_until(lambda: answers(server, "add", a=1, b=1) == "2")
    server.close()
    server.close()


def test_what_is_no_server_is_refused_with_its_last_words():
    program = "import sys; sys.exit('not today')"
    with pytest.raises(ConfigError, match="not today"):
        McpServer(StdioServer(command=sys.executable, args=("-c", program)), start_timeout_s=20)


def answers(server, name, **arguments):
    try:
        return server.call(name, arguments, timeout_s=10)
    except (ToolError, TimeoutError):
        return None

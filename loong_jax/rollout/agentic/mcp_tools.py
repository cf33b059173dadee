"""Tools of MCP servers, as child processes (stdio) or over streamable HTTP.

    with McpServer(StdioServer(command="my-server")) as server:
        agent = Agent(toolbox=Toolbox(server.tools))

The connection lives in a thread with an event loop of its own. A server that dies, or that answers
no ping after a call ran out of time, is given up and connected anew by the next call: the calls
under way fail, which the policy is told, and none is made twice. A child gets the few variables of
our environment that the `mcp` package passes on, and those it is given here, and no others.

Needs the package `mcp` (the extra `tools`). Protocol: modelcontextprotocol.io/specification.
"""

import asyncio
import contextlib
import dataclasses
import io
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import IO, Any

import httpx2
import mcp
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from loong_jax.errors import ConfigError
from loong_jax.problems.problem import Problem
from loong_jax.rollout.agentic.agent import ToolError

PING_S = 2.0
MAX_PAGES = 50  # of the list of tools
GRACE_S = 5.0  # beyond a call's time, in which the event loop has to say that it is over
CLOSE_S = 15.0  # stdio: two seconds for the child to go by itself, then it is killed
MAX_WORDS = 500  # of a child's last words


@dataclasses.dataclass(frozen=True, kw_only=True)
class StdioServer:
    """A program that speaks MCP on its standard input and output."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)  # beside the default ones


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpServer:
    """A streamable HTTP endpoint; `headers` may hold credentials."""

    url: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class McpTool:
    """One tool of a server, as the server describes it."""

    server: "McpServer"
    name: str
    description: str
    parameters: Mapping[str, Any]

    def call(self, arguments: Mapping[str, Any], *, problem: Problem, timeout_s: float) -> str:
        """Raises ToolError and TimeoutError."""
        return self.server.call(self.name, arguments, timeout_s=timeout_s)


class McpServer:
    """A connection that is made anew when it breaks. Safe to share between threads."""

    def __init__(
        self,
        where: StdioServer | HttpServer,
        *,
        start_timeout_s: float = 20.0,
        max_answer_chars: int = 65_536,
        max_restarts: int = 16,
    ):
        """Connects and lists the tools. Raises ConfigError where that fails.

        A longer answer is cut. `max_restarts` bounds the connections made after the first one.
        """
        self.where = where
        self.start_timeout_s = start_timeout_s
        self.max_answer_chars = max_answer_chars
        self.max_restarts = max_restarts
        self.num_restarts = -1  # the first connection is none
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._words: IO[str] = io.StringIO()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()
        try:
            tools = self._ask(self._list_tools(), start_timeout_s)
        except (ToolError, TimeoutError) as error:
            words = self._last_words()
            self.close()
            raise ConfigError(
                f"no tools from {where}: {error or 'no answer in time'}. {words}Check that it "
                f"speaks MCP, or raise start_timeout_s={start_timeout_s}."
            ) from None
        self.tools = tuple(
            McpTool(self, tool.name, tool.description or "", tool.input_schema) for tool in tools
        )

    def __enter__(self) -> "McpServer":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def call(self, name: str, arguments: Mapping[str, Any], *, timeout_s: float) -> str:
        """The answer as text. Raises ToolError where the tool or the server fails, TimeoutError."""
        result = self._ask(self._call(name, dict(arguments), timeout_s), timeout_s)
        text = "\n".join(_text_of(part) for part in result.content)
        if len(text) > self.max_answer_chars:
            text = f"{text[: self.max_answer_chars]}...[cut, {len(text)} characters in all]"
        if result.is_error:
            raise ToolError(text)
        return text

    def close(self) -> None:
        """Ends the connection, a child process with it; may be called twice."""
        if self._loop.is_closed():
            return
        ending = asyncio.run_coroutine_threadsafe(self._drop(self._connection), self._loop)
        with contextlib.suppress(Exception):
            ending.result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()
        self._words.close()

    # ---- in the thread of the event loop ---------------------------------------------------------

    def _ask(self, work: Any, timeout_s: float) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s + GRACE_S)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    async def _list_tools(self) -> list[Any]:
        async with asyncio.timeout(self.start_timeout_s):
            connection = await self._connected()
            found, cursor = [], None
            for _ in range(MAX_PAGES):
                with _as_tool_error():
                    page = await (await connection.client).list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return found
        raise ToolError(f"its list of tools has more than {MAX_PAGES} pages")

    async def _call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        deadline_s = time.monotonic() + timeout_s
        connection = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected()
                with _as_tool_error():
                    left_s = deadline_s - time.monotonic()
                    client = await connection.client
                    return await client.call_tool(
                        name, arguments, read_timeout_seconds=left_s + GRACE_S
                    )
        except (TimeoutError, ToolError):
            if connection is not None:
                connection.keep(asyncio.create_task(self._look_after(connection)))
            raise

    async def _look_after(self, connection: "_Connection") -> None:
        """Gives a connection up that answers nothing any more."""
        try:
            async with asyncio.timeout(PING_S):
                await (await connection.client).list_tools()
        except Exception:
            await self._drop(connection)

    async def _connected(self) -> "_Connection":
        async with self._connecting:
            connection = self._connection
            if connection is not None and not connection.task.done():
                return connection
            if self.num_restarts >= self.max_restarts:
                raise ToolError(f"the server was lost {self.num_restarts + 1} times")
            self.num_restarts += 1
            connection = _Connection()
            connection.task = asyncio.create_task(self._hold(connection))
            try:
                await asyncio.wait_for(asyncio.shield(connection.client), self.start_timeout_s)
            except Exception as error:
                connection.task.cancel()
                why = str(_first_of(error)) or "no answer"
                raise ToolError(f"the server cannot be reached: {why}") from None
            self._connection = connection
            return connection

    async def _drop(self, connection: "_Connection | None") -> None:
        if connection is None:
            return
        if self._connection is connection:
            self._connection = None
        connection.closing.set()
        await asyncio.wait((connection.task,), timeout=CLOSE_S)

    async def _hold(self, connection: "_Connection") -> None:
        """Opens and closes a connection in one task, as its cancel scopes need."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                transport = await self._transport(stack)
                client = await stack.enter_async_context(mcp.Client(transport, cache=None))
                connection.client.set_result(client)
                await connection.closing.wait()
        except Exception as error:  # also groups of those of the transport's tasks
            if not connection.client.done():
                connection.client.set_exception(error)

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Any:
        if isinstance(self.where, HttpServer):
            headers = dict(self.where.headers)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
            return streamable_http_client(self.where.url, http_client=http)
        self._words.close()
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the child runs
        where = self.where
        parameters = mcp.StdioServerParameters(
            command=where.command, args=list(where.args), env=dict(where.env)
        )
        return stdio_client(parameters, errlog=self._words)  # pyright: ignore[reportArgumentType]

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._words.seek(0)
            text = self._words.read()[-MAX_WORDS:].strip()
            return f"It said: {text!r}. " if text else ""
        return ""


class _Connection:
    task: asyncio.Task[None]

    def __init__(self):
        self.client: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
        self.closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Holds a task until it is done: the event loop itself does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@contextlib.contextmanager
def _as_tool_error():
    """Whatever the package raises, but for time-outs and the end of our own task."""
    try:
        yield
    except TimeoutError:
        raise
    except Exception as error:
        found = _first_of(error)
        raise ToolError(f"{type(found).__name__}: {found}") from None


def _first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text_of(part: Any) -> str:
    if part.type == "text":
        return part.text
    if part.type == "resource" and hasattr(part.resource, "text"):
        return part.resource.text
    return f"[{part.type} left out]"

"""Both interfaces in one event loop, from the first connection to a graceful end."""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grpc
import uvicorn

from loong_jax.errors import ConfigError, LoongError
from loong_jax.rollout.serving import grpc_service, http
from loong_jax.rollout.serving.frontend import Frontend

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """The address to listen at; port 0 takes a free one, and None leaves the interface out."""

    host: str = "127.0.0.1"
    port: int | None = 8000  # of HTTP
    grpc_port: int | None = None

    def __post_init__(self):
        if self.port is None and self.grpc_port is None:
            raise ConfigError("neither port nor grpc_port is given. Name at least one.")
        for name in ("port", "grpc_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 2**16:
                raise ConfigError(f"{name}={value} is not in 0..65535. Use 0 for a free one.")

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK


class _Http(uvicorn.Server):
    """Signals are handled below, for both interfaces."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Bound(NamedTuple):
    """The ports that were taken."""

    port: int | None
    grpc_port: int | None


async def serve(
    frontend: Frontend,
    address: Address,
    *,
    on_ready: Callable[[Bound], None] = lambda bound: None,
    stop: asyncio.Event | None = None,
) -> bool:
    """Answers until `stop` is set, or SIGTERM or SIGINT comes; then drains.

    `frontend.scheduler` must have been started, and is stopped here. True where every request ended
    on its own. Raises LoongError where a port cannot be had.
    """
    limits = frontend.limits
    stop = stop or asyncio.Event()
    with _signals_set(stop):
        server = sock = service = None
        serving = None
        try:
            if address.port is not None:
                sock = _listen(address.host, address.port)
                server = _Http(_uvicorn_config(frontend))
                serving = asyncio.create_task(server.serve(sockets=[sock]))
            service_port = None
            if address.grpc_port is not None:
                service, service_port = await _start_grpc(frontend, address)
            while server and serving and not (server.started or serving.done()):
                await asyncio.sleep(0.01)  # the socket is bound, and nobody listens yet
            on_ready(Bound(None if sock is None else sock.getsockname()[1], service_port))
            waiting = asyncio.create_task(stop.wait())
            await asyncio.wait(
                [waiting, *([serving] if serving else [])], return_when=asyncio.FIRST_COMPLETED
            )
            waiting.cancel()
        finally:
            log.info("stopping: no new requests, %s s for those that run", limits.drain_timeout_s)
            all_ended = await asyncio.to_thread(frontend.scheduler.stop, limits.drain_timeout_s)
            if service is not None:
                await service.stop(grace=1.0)
            if server is not None and serving is not None:
                server.should_exit = True
                await asyncio.wait_for(serving, limits.send_timeout_s + 10)
            if sock is not None:
                sock.close()
    return all_ended


def _uvicorn_config(frontend: Frontend) -> uvicorn.Config:
    return uvicorn.Config(
        http.make_app(frontend),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=frontend.limits.max_connections,
        timeout_keep_alive=int(max(1, frontend.limits.body_timeout_s)),
        timeout_graceful_shutdown=int(max(1, frontend.limits.send_timeout_s)),
    )


def refuse_busy(address: Address) -> None:
    """Raises LoongError where a port that is asked for cannot be had now."""
    for port in filter(None, (address.port, address.grpc_port)):
        _listen(address.host, port).close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise LoongError(f"{host}:{port} cannot be had: {error}. Choose another port.") from None
    return sock


async def _start_grpc(frontend: Frontend, address: Address) -> tuple[grpc.aio.Server, int]:
    server = grpc_service.make_server(frontend)
    host = f"[{address.host}]" if ":" in address.host else address.host
    try:
        port = server.add_insecure_port(f"{host}:{address.grpc_port}")
    except RuntimeError as error:
        raise LoongError(
            f"{host}:{address.grpc_port} cannot be had: {error}. Choose another port."
        ) from None
    await server.start()
    return server, port


@contextlib.contextmanager
def _signals_set(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`; nothing is changed outside the main thread."""
    loop, names = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    try:
        for name in names:
            loop.add_signal_handler(name, stop.set)
    except (ValueError, RuntimeError):
        yield
        return
    try:
        yield
    finally:
        for name in names:
            loop.remove_signal_handler(name)

"""The OpenAI-compatible HTTP interface, with /health and /metrics beside it."""

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from loong_jax.rollout.serving import connection
from loong_jax.rollout.serving.completions import Completions
from loong_jax.rollout.serving.frontend import Frontend
from loong_jax.rollout.serving.openai_schema import ApiError


def make_app(frontend: Frontend) -> Starlette:
    """The ASGI application."""

    async def models(request: HttpRequest) -> Response:
        connection.let_in(frontend, request.headers.get("authorization"))
        return JSONResponse({"object": "list", "data": [_model(frontend)]})

    async def model(request: HttpRequest) -> Response:
        connection.let_in(frontend, request.headers.get("authorization"))
        connection.check_model(frontend, request.path_params["name"])
        return JSONResponse(_model(frontend))

    async def health(_: HttpRequest) -> Response:
        status = frontend.scheduler.status()
        return JSONResponse(status._asdict(), 200 if status.is_ready else 503)

    async def metrics(_: HttpRequest) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(frontend.scheduler.metrics.text(), media_type=kind)

    routes = [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/v1/completions", Completions(frontend, is_chat=False), methods=["POST"]),
        Route("/v1/chat/completions", Completions(frontend, is_chat=True), methods=["POST"]),
        Route("/health", health),
        Route("/metrics", metrics),
    ]
    handlers = {ApiError: _told, HTTPException: _routing_error, 500: _told}
    return Starlette(routes=routes, exception_handlers=handlers)


def _model(frontend: Frontend) -> dict[str, Any]:
    return {
        "id": frontend.model_name,
        "object": "model",
        "created": frontend.started_s,
        "owned_by": "loong_jax",
        "max_model_len": frontend.scheduler.engine.config.room(0),
    }


async def _told(_: HttpRequest, error: Exception) -> Response:
    return connection.error_response(error)


async def _routing_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:100]}: {error.detail}."
    return connection.error_response(ApiError(error.status_code, message, headers=error.headers))

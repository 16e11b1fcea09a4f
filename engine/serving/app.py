"""The routes of the OpenAI-compatible server, and its answers to errors."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from headway.engine.serving.client import EngineClient
from headway.engine.serving.errors import ErrorBody, ErrorDetail, ServingError, Unavailable
from headway.engine.serving.metrics import Metrics
from headway.engine.serving.responses import Health, ModelCard, ModelList
from headway.engine.serving.service import Bounds, ServedModel, Service, TextCodec


def _json(data: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")


DEFAULT_BOUNDS = Bounds()


def create_app(
    engine: EngineClient,
    tokenizer: TextCodec,
    model: ServedModel,
    *,
    bounds: Bounds = DEFAULT_BOUNDS,
    seed: int = 0,
    routers: Sequence[APIRouter] = (),
) -> FastAPI:
    """The server of one model. It starts `engine` when it starts, and closes it when it ends.

    Args: `seed` starts the sequence of seeds for requests that bring none; `routers` are mounted beside the routes
    here.
    """
    metrics = Metrics(lambda: engine.gauges)
    service = Service(engine, tokenizer, model, bounds, seed, metrics)
    card = ModelCard(model.name, int(time.time()), model.context)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        yield
        await engine.close()

    app = FastAPI(title="Headway", lifespan=lifespan, openapi_url=None)
    app.add_api_route("/v1/chat/completions", service.chat, methods=["POST"])
    app.add_api_route("/v1/completions", service.completions, methods=["POST"])
    for router in routers:
        app.include_router(router)

    @app.get("/v1/models")
    async def models() -> Response:
        return _json(ModelList([card]))

    @app.get("/v1/models/{name:path}")
    async def model_card(name: str) -> Response:
        service.check_model(name)
        return _json(card)

    @app.get("/health")
    async def health() -> Response:
        reason = engine.unavailable()
        return _json(Health()) if reason is None else reason.response()

    @app.get("/metrics")
    async def exposition() -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(ServingError)
    async def serving_error(_: Request, failure: ServingError) -> Response:
        if failure.status < 500:
            metrics.ended("refused")
        elif isinstance(failure, Unavailable):
            metrics.ended("unavailable")
        return failure.response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, failure: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {failure.detail}"
        return _json(ErrorBody(ErrorDetail(message, "invalid_request_error")), failure.status_code)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, failure: Exception) -> Response:
        # The server's log gets the traceback, the client does not.
        return ServingError(f"internal error: {type(failure).__name__}", code="internal_error").response()

    return app

"""The application: pages, forms and the API, behind the request guard."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from ..errors import PostroomError
from ..store.base import Base
from ..store.job_ids import UnknownJobError
from ..system.shortage import explain
from .access_token import AccessToken
from .api import api, outside
from .context import AppContext, Context
from .forms import forms
from .pages import pages
from .request_guard import LOOPBACK, Refused, RequestGuard


def create_app(
    base: Base, token: AccessToken, *, hosts: Iterable[str] = LOOPBACK, here: str = "/"
) -> RequestGuard:
    """Everything that `postroom ui` serves."""
    context = AppContext(base, token, here=here)

    @contextlib.asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        yield
        context.close()

    app = FastAPI(
        title="Postroom",
        description="The queue of one base. Every request carries the token: "
        "`Authorization: Bearer TOKEN`.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # it would load scripts from another host
        redoc_url=None,
        lifespan=living,
    )
    app.state.context = context
    app.add_api_route("/static/{name}", static, include_in_schema=False)
    for router in (api, outside, forms, pages):
        app.include_router(router)
    app.add_exception_handler(PostroomError, _refused)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(OSError, _refused)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _broken)
    return RequestGuard(app, token, hosts, stop=context.live_updates.close)


async def static(context: Context, name: str) -> Response:
    """A style sheet or a script; its address changes with its content."""
    asset = context.assets.get(name)
    if asset is None:
        raise HTTPException(404, "There is no such file.")
    headers = {"cache-control": "private, max-age=86400"}
    return Response(asset.data, media_type=asset.kind, headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status = error.status_code
        sentence = {
            404: "There is no such page.",
            405: "This address does not accept that method.",
        }.get(status, str(error.detail))
    elif isinstance(error, Refused):
        status, sentence = error.status, error.sentence
    elif isinstance(error, UnknownJobError):
        status, sentence = 404, str(error)
    elif isinstance(error, OSError):
        status, sentence = 503, f"the base cannot be read or written: {explain(error)}"
    else:
        status, sentence = 400, str(error)
    return _answer(request, status, sentence)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Without the input itself, which may not be valid JSON.
    faults = [{key: one[key] for key in ("loc", "msg", "type")} for one in error.errors()]
    if request.url.path.startswith("/api/"):
        return JSONResponse({"detail": jsonable_encoder(faults)}, 422)
    where = ".".join(str(step) for step in faults[0]["loc"][1:])
    return _answer(request, 422, f"{where}: {faults[0]['msg']}")


async def _broken(request: Request, error: Exception) -> Response:
    logging.getLogger("uvicorn.error").error("%s %r", request.method, request.url.path)
    sentence = (
        f"the page has an internal error ({type(error).__name__}); jobs are not affected. See the "
        "output of `postroom ui`"
    )
    return _answer(request, 500, sentence)


def _answer(request: Request, status: int, sentence: str) -> Response:
    if request.url.path.startswith(("/api/", "/metrics", "/events", "/static/")):
        return JSONResponse({"detail": sentence}, status)
    context = request.app.state.context
    assert isinstance(context, AppContext)
    return context.page(request, "error.html", status=status, sentence=sentence)

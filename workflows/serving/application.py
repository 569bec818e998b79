"""Paths of the service: the page, the JSON API, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Protocol

from fastapi import FastAPI
from fastapi import Query as InAddress
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request

from sparring.components.config import UserError, code_of, key_of, mistake
from sparring.workflows import ROOT
from sparring.workflows.report.page import templates
from sparring.workflows.serving.access import GONE, Application, Gate, problem
from sparring.workflows.serving.answering import Answering, Unknown
from sparring.workflows.serving.batching import Busy
from sparring.workflows.serving.marks import qrels, queries
from sparring.workflows.serving.metrics import FORMAT
from sparring.workflows.serving.model_requests import (
    EmbeddingRequest,
    EmbeddingResponse,
    ErrorResponse,
    ListedModel,
    ModelList,
    RerankRequest,
    RerankResponse,
)
from sparring.workflows.serving.models import Models
from sparring.workflows.serving.questions import Answer, Asked, Mark, Problem, Question, Systems

TEMPLATES = ROOT / "workflows" / "serving" / "templates"
ABOUT = """Search with the systems of a run of Sparring, and use their models. If the service requires a token, send it
as `Authorization: Bearer TOKEN`. Only `/` and `/health` need none."""
STATUSES: dict[type[UserError], int] = {Unknown: 404, Busy: 429}
"""Status of a mistake, if it is not 422."""

UNDECODED = "the body cannot be read: it is no UTF-8, or its lists are too deep, or a number has too many digits"


class KeepsMarks(Protocol):
    """A place for marks: a file (`marks.Marks`), or the actor that replicas share."""

    def all(self) -> list[Mark]:
        """List the marks that hold."""

    def add(self, mark: Mark) -> None:
        """Add a mark. OSError if it cannot be written."""


def application(
    answering: Answering,
    marks: KeepsMarks,
    *,
    facts: dict[str, Any],
    token: str | None,
    loopback: bool,
    metrics: Callable[[], bytes] | None = None,
) -> Application:
    """Build the application with all paths behind their gate.

    `facts` are the keys of `/health` besides the status. `metrics` computes the text of `/metrics`. If None, it has the
    metrics of this process alone.
    """
    app = FastAPI(
        title="Sparring",
        description=ABOUT,
        version="1",
        docs_url=None,
        redoc_url=None,
        responses={422: {"model": Problem}},
    )
    page = templates(TEMPLATES).get_template("page.html").render(title="Search")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def shown() -> str:
        return page

    @app.get("/systems")
    async def systems() -> Systems:
        """List the systems, and the limits of a request."""
        return answering.described()

    @app.post("/search", response_model=Answer)
    async def search(request: Request, question: Question) -> Response:
        """Search for one or more queries. Documents come best first."""
        return await _awaited(request, answering.answer(question))

    @app.get("/search", response_model=Answer)
    async def search_one(request: Request, query: Annotated[Asked, InAddress()]) -> Response:
        """Search for one query in the address."""
        names = [name for name, _ in request.query_params.multi_items()]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"{twice}: given twice; accepted: once (POST takes several queries)")
        if (query.q is None) == (query.id is None):
            raise UserError("the address: accepted: either `q`, a text, or `id`, a document's")
        queries, ids = ([value] if value is not None else None for value in (query.q, query.id))
        question = Question(queries=queries, ids=ids, k=query.k, system=query.system)
        return await _awaited(request, answering.answer(question))

    _add_models(app, Models(answering))

    # These handlers wait for the disk or for an actor, so they are no coroutines: FastAPI runs them in threads.
    @app.get("/marks")
    def marked() -> list[Mark]:
        """List all marks that hold."""
        return marks.all()

    @app.post("/marks")
    def mark(mark: Mark) -> Mark:
        """Mark a document right or wrong for a query, or remove the mark."""
        answering.check_document("doc_id", mark.doc_id)
        try:
            marks.add(mark)
        except OSError as error:
            raise HTTPException(507, f"the marks cannot be written: {error.strerror}") from error
        return mark

    @app.get("/marks/qrels", response_class=PlainTextResponse)
    def marked_qrels() -> Response:
        """Return the marks as TREC qrels: `query 0 document relevance`."""
        return _download(qrels(marks.all()), "marks.qrels")

    @app.get("/marks/queries", response_class=PlainTextResponse)
    def marked_queries() -> Response:
        """Return the ids of the marked queries, as in the qrels, and their texts, separated by a tab."""
        return _download(queries(marks.all()), "marks.queries.tsv")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return the health of the service, and the identity of its systems."""
        return {"status": "ok", **facts}

    @app.get("/metrics", response_class=PlainTextResponse)
    def measured() -> Response:
        """Return counts of requests and errors, latencies and batch sizes, for Prometheus."""
        return Response((metrics or answering.metrics.text)(), media_type=FORMAT)

    app.add_api_route("/health", health, methods=["HEAD"], include_in_schema=False)  # as `wget --spider` asks
    _tell_errors(app)
    paths = frozenset({"/", "/openapi.json", "/v2/rerank", *(path for path in app.openapi()["paths"])})
    return Gate(app, token=token, loopback=loopback, paths=paths, metrics=answering.metrics)


def _add_models(app: FastAPI, models: Models) -> None:
    """Add the paths of the models, in the forms of OpenAI, Jina and Cohere."""
    failed: Any = {status: {"model": ErrorResponse} for status in (400, 404, 429)}

    @app.get("/v1/models")
    async def listed() -> ModelList:
        """List the models."""
        return models.listed()

    @app.get("/v1/models/{model:path}", responses=failed)
    async def described(model: str) -> ListedModel:
        """Describe a model."""
        return models.find(model)

    @app.post("/v1/embeddings", response_model=EmbeddingResponse, responses=failed)
    async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
        """Represent texts as vectors."""
        return await _awaited(request, models.embed(body))

    @app.post("/v2/rerank", include_in_schema=False)  # as Cohere's newer client asks
    @app.post("/v1/rerank", response_model=RerankResponse, responses=failed)
    async def rerank(request: Request, body: RerankRequest) -> Response:
        """Order documents for a query, best first."""
        return await _awaited(request, models.rerank(body))


def _tell_errors(app: FastAPI) -> None:
    """Answer a failed request with one sentence that says what is wrong."""

    @app.exception_handler(UserError)
    async def mistaken(request: Request, error: UserError) -> JSONResponse:
        status = STATUSES.get(type(error), 422)
        headers = {"retry-after": "1"} if status == 429 else None
        return problem(request.scope["path"], status, str(error), key=error.key, code=error.code, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def unreadable(request: Request, error: RequestValidationError) -> JSONResponse:
        first, kind, path = error.errors()[0], request.headers.get("content-type", ""), request.scope["path"]
        if first["loc"] == ("body",) and kind.partition(";")[0] != "application/json":
            # Without it a page of another site could send what a browser does not ask about first.
            return problem(path, 422, f"content-type: got {kind!r}; accepted: application/json")
        if first["type"] == "json_invalid":
            return problem(path, 422, f"the body is not JSON: {first['ctx']['error']}")
        if first["loc"] == ("body",):
            return problem(path, 422, "the body: accepted: a JSON object")
        place = first["loc"][1:]  # without `body`
        described = "; /openapi.json lists the keys" if first["type"] == "extra_forbidden" else ""
        detail = str(UserError(mistake(first, place) + described))
        return problem(path, 422, detail, key=key_of(first, place), code=code_of(first))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        # What FastAPI says of a body that it cannot even decode names nothing.
        details = {400: UNDECODED, 404: "there is no such path; /openapi.json lists the paths"}
        detail = details.get(error.status_code, error.detail)
        return problem(request.scope["path"], error.status_code, detail, headers=error.headers)

    @app.exception_handler(OSError)
    async def lost(request: Request, error: OSError) -> JSONResponse:
        where = f"{error.filename}: " if error.filename else ""
        detail = f"{where}{error.strerror or error}: what the service reads is gone; start it again"
        return problem(request.scope["path"], 500, detail)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        # The error is raised again afterwards, and the log has it.
        return problem(request.scope["path"], 500, "the service failed; its log says why")


async def _awaited(request: Request, answer: Coroutine[Any, Any, BaseModel]) -> Response:
    """Wait for an answer, until the client hangs up."""
    answering, hung_up = asyncio.ensure_future(answer), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((answering, hung_up), return_when=asyncio.FIRST_COMPLETED)
        return _json(answering.result()) if answering.done() else Response(status_code=GONE)
    finally:
        answering.cancel()
        hung_up.cancel()


async def _gone(request: Request) -> None:
    """Wait until a request's client hangs up. The body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(answer: BaseModel) -> Response:
    """Write an answer with pydantic. FastAPI would check the whole answer again first."""
    return Response(answer.model_dump_json(), media_type="application/json")


def _download(text: str, name: str) -> Response:
    return PlainTextResponse(text, headers={"content-disposition": f'attachment; filename="{name}"'})

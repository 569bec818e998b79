"""Requests to a service's models and their responses, in the forms of OpenAI, Jina and Cohere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, StringConstraints

from sparring.components.config import Invalid
from sparring.workflows.serving.questions import Identifier, Query, Strict

INPUTS = 2_048
"""Maximum number of texts or documents in one request."""
CHARACTERS = 100_000
"""Maximum length of a text."""
TOKENS = 8_192
"""Maximum length of a list of token ids."""
BYTES = 2**23
"""Maximum size of a request, in bytes."""
SIDES = {
    "search_query": "query",
    "search_document": "document",
    "retrieval.query": "query",
    "retrieval.passage": "document",
    "passage": "document",
}
"""Other services' names of the two sides."""

Text = Annotated[str, StringConstraints(max_length=CHARACTERS)]


def _inputs(value: Any) -> list[str] | list[list[int]]:
    """Return inputs as a list of texts, or as a list of lists of token ids."""
    rows = [value] if isinstance(value, str) or _is_ids(value) else value
    if not isinstance(rows, list) or not rows:
        raise Invalid("accepted: a text, a list of texts, a list of token ids, or a list of such lists", "wrong-type")
    if len(rows) > INPUTS:
        raise Invalid(f"got {len(rows):,} texts; accepted: at most {INPUTS:,}", "too-long")
    if all(isinstance(row, str) for row in rows):
        longest, most, unit = max(map(len, rows)), CHARACTERS, "characters"
    elif all(map(_is_ids, rows)):
        longest, most, unit = max(map(len, rows)), TOKENS, "token ids"
    else:
        raise Invalid("accepted: texts alone, or lists of token ids alone", "wrong-type")
    if longest > most:
        raise Invalid(f"got {longest:,} {unit}; accepted: at most {most:,} in a text", "too-long")
    return rows


def _is_ids(value: Any) -> bool:
    """Tell whether a value is a list of token ids."""
    return isinstance(value, list) and bool(value) and all(type(token) is int and token >= 0 for token in value)


def _side(value: Any) -> Any:
    """Translate another service's name of a side."""
    return SIDES.get(value, value) if isinstance(value, str) else value


def _document(value: Any) -> Any:
    """Return a document as an object with its text."""
    if not isinstance(value, (str, dict)):
        raise Invalid("accepted: a text, or an object with a `text`", "wrong-type")
    return {"text": value} if isinstance(value, str) else value


Inputs = Annotated[
    list[str] | list[list[int]],
    PlainValidator(_inputs, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]


class EmbeddingRequest(Strict):
    """Texts to represent as vectors."""

    input: Inputs
    """A text, a list of texts, a list of token ids, or a list of such lists. Token ids are those of the model's own
    tokenizer, with or without special tokens around them."""
    model: Identifier | None = None
    """Id of a model (`/v1/models`). Null is the default system's retriever, or the only one."""
    encoding_format: Literal["float", "base64"] = "float"
    """`base64`: the vector's little-endian fp32 numbers."""
    dimensions: Annotated[int | None, Field(strict=True, ge=1)] = None
    """Number of first dimensions to which vectors are cut, one that the model was trained for. Null: all."""
    input_type: Annotated[
        Literal["query", "document"] | None,
        BeforeValidator(_side),
        Field(validation_alias=AliasChoices("input_type", "task")),
    ] = None
    """`query` or `document`: the side of the texts, whose prompt is added. Null: documents, without a prompt."""
    user: str | None = None
    """Ignored."""


class Embedding(BaseModel):
    """Vector of a text."""

    object: Literal["embedding"] = "embedding"
    index: int
    """Position of the text in the request."""
    embedding: list[float] | str
    """The numbers, or their base64."""


class EmbeddingUsage(BaseModel):
    """Number of tokens that the model read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    """Vectors of all texts, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Document(BaseModel):
    """A document to score. Further keys are returned as they are."""

    model_config = ConfigDict(extra="allow")

    text: Text


class RerankRequest(Strict):
    """Documents to order for a query."""

    query: Query
    documents: Annotated[
        list[Annotated[Document, BeforeValidator(_document, json_schema_input_type=str | Document)]],
        Field(min_length=1, max_length=INPUTS),
    ]
    """Texts, or objects with a `text`. If a document has a title, begin the text with it."""
    model: Identifier | None = None
    """Id of a model (`/v1/models`). Null is the default system's last ranker, or the only one."""
    top_n: Annotated[int | None, Field(strict=True, ge=1)] = None
    """Number of documents in the response. Null: all."""
    return_documents: bool = False
    """Return the documents too."""
    raw_scores: bool = False
    """Return the ranker's own scores. Otherwise they are mapped to numbers between 0 and 1 by the sigmoid."""


class Reranked(BaseModel):
    """A document's score."""

    index: int
    """Position of the document in the request."""
    relevance_score: float
    document: Annotated[Document | None, Field(exclude_if=lambda document: document is None)] = None


class RerankUsage(BaseModel):
    """Number of tokens that the model read, queries included."""

    total_tokens: int


class RerankTokens(BaseModel):
    """Number of tokens that the model read, by Cohere's name."""

    input_tokens: int


class RerankMeta(BaseModel):
    """Cohere's form of the usage."""

    tokens: RerankTokens


class RerankResponse(BaseModel):
    """Documents, best first. Documents with equal scores stay in their order."""

    model: str
    results: list[Reranked]
    usage: RerankUsage
    meta: RerankMeta


class ListedModel(BaseModel):
    """A model that requests can name."""

    id: str
    """The stage's name, such as `dense` or `ranker`. If the service has several such models, `SYSTEM/STAGE`."""
    object: Literal["model"] = "model"
    created: int
    """Time at which the service opened it, in seconds since 1970."""
    owned_by: Literal["sparring"] = "sparring"
    kind: Literal["embedding", "rerank"]
    max_tokens: int
    """Maximum number of tokens that it reads of a document, or of a query with a document. Longer texts are cut."""
    dimensions: list[int] | None
    """Accepted values of `dimensions`. Null for a ranker."""


class ModelList(BaseModel):
    """The models of a service."""

    object: Literal["list"] = "list"
    data: list[ListedModel]


class ErrorDetails(BaseModel):
    """Description of a mistake or failure."""

    message: str
    type: str
    param: str | None
    """Key of the request that is wrong."""
    code: str | None


class ErrorResponse(BaseModel):
    """Reason why a request was not answered, in OpenAI's form."""

    error: ErrorDetails

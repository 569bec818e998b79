"""The config of a contender: a system that the user runs today, which is a row of the table and may be chosen."""

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from sparring.components.config import Config, listing
from sparring.components.models.configs import CrossEncoderConfig
from sparring.components.models.endpoints import Endpoint, Price, checked_url
from sparring.components.retrieval.kind import RetrieverConfig

FIRST = "BM25"
"""Row whose documents are reranked if a contender names no embedder and no row."""


class Contender(Config):
    """A system that the user runs today: an embedder, a reranker, or both. Each is a model, or an address with one."""

    embedder: RetrieverConfig | None = None
    """Embedder: a folder of sentence-transformers, or a model id of the Hugging Face hub. It is a name, or keys:
    `{model: NAME, query_prompt: "query: "}`. Lengths that are left out are the model's own, up to `tokens.max_tokens`.
    Null embeds nothing."""
    reranker: CrossEncoderConfig | None = None
    """Reranker: a model that sentence-transformers loads as `CrossEncoder`, or a causal language model with
    `true_token`. It is a name, or keys: `{model: NAME, label: 1}`. Lengths as for the embedder. Null reranks
    nothing."""
    embedder_url: str | None = None
    """Address of an embedder with OpenAI's `/v1/embeddings`. Vectors are scaled to length 1 and searched exactly."""
    rerank_url: str | None = None
    """Address of a reranker with the `/v1/rerank` of Jina and Cohere. One request scores the documents of a query."""
    chat_url: str | None = None
    """Address of a language model with OpenAI's `/v1/chat/completions`, as a reranker. A prompt asks for the order of
    20 documents at a time, in windows from the last document to the first (RankGPT; Sun et al., 2023). One request
    orders a window. Such a contender cannot teach, because it writes no scores."""
    model: str | None = None
    """Name of the model at the address. Null sends none."""
    key_from: str | None = None
    """Environment variable with the key for the address. It must be set on every machine that runs workers. Null sends
    no key."""
    query_prompt: str = ""
    """Text before every query that is sent to `embedder_url`."""
    document_prompt: str = ""
    """Text before every document that is sent to `embedder_url`."""
    price: Price | None = None
    """Price of the answers. Null shows no money."""
    requests_per_second: float | None = Field(None, gt=0)
    """Most requests per second. Null sets no limit. If the address asks to wait, the run waits in any case."""
    requests_at_once: int = Field(4, ge=1)
    """Most requests that wait for an answer at the same time."""
    of: str | None = None
    """Row whose documents are reranked, such as `BM25`, `start model` or an earlier contender. Null is the contender's
    embedder, or `BM25` if it has none."""
    depth: int = Field(50, ge=1)
    """Number of documents of each query that are reranked. The remaining documents follow in their old order."""
    queries: int | None = Field(None, ge=1)
    """Number of each split's judged queries to rerank, the same queries for every system. All systems are
    then chosen by this sample. Null reranks all."""

    @field_validator("embedder", "reranker", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @field_validator("embedder_url", "rerank_url", "chat_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        return None if url is None else checked_url(url)

    @property
    def embeds(self) -> bool:
        """True if it has an embedder."""
        return self.embedder is not None or self.embedder_url is not None

    @property
    def reranks(self) -> bool:
        """True if it has a reranker."""
        return self.teaches or self.chat_url is not None

    @property
    def teaches(self) -> bool:
        """True if it has a reranker with scores that other models can learn from."""
        return self.reranker is not None or self.rerank_url is not None

    @property
    def _urls(self) -> list[str | None]:
        return [self.embedder_url, self.rerank_url, self.chat_url]

    @property
    def endpoint(self) -> Endpoint:
        """The address."""
        shared = {key: getattr(self, key) for key in Endpoint.model_fields if key != "url"}
        return Endpoint(url=next(filter(None, self._urls), ""), **shared)

    @model_validator(mode="after")
    def _has_parts(self) -> Self:
        embedders, rerankers = ("embedder", "embedder_url"), ("reranker", "rerank_url", "chat_url")
        if not (self.embeds or self.reranks):
            raise ValueError(f"it has no part; accepted: {listing([*embedders, *rerankers])}")
        addresses = ("embedder_url", "rerank_url", "chat_url")
        for keys in (embedders, rerankers, addresses):
            stated = [key for key in keys if getattr(self, key) is not None]
            if len(stated) > 1:
                raise ValueError(
                    f"{stated[-1]}: there is `{stated[0]}` too; accepted: one of them. A reranker over another "
                    "contender names it as `of`"
                )
        if self.of is not None and (self.embeds or not self.reranks):
            raise ValueError("of: it is for a reranker without an embedder; accepted: left out")
        if not any(self._urls):
            for key in ("model", "key_from", "price", "requests_per_second"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key}: it is for an address; accepted: left out, or {listing(addresses)}")
        if self.embedder_url is None and (self.query_prompt or self.document_prompt):
            raise ValueError("query_prompt and document_prompt are for `embedder_url`; those of a model are its keys")
        return self

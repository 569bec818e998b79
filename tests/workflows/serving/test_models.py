"""The models of a service, asked by OpenAI's client and by plain requests, against sentence-transformers."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
import openai
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoTokenizer

from sparring.components.systems.config import VERSION, SystemConfig
from sparring.components.systems.loaded import LoadedEncoder, LoadedRetriever, PairScorer
from sparring.components.systems.system import LoadedSystem
from sparring.workflows.serving import batching, model_requests
from sparring.workflows.serving.access import Application
from sparring.workflows.serving.answering import Answering, Summary
from sparring.workflows.serving.application import application
from sparring.workflows.serving.marks import Marks
from sparring.workflows.serving.metrics import Metrics
from sparring.workflows.serving.questions import Question
from tests.support import asgi, toy
from tests.support.asgi import DENSE, LEXICAL, get, post
from tests.support.live import live

TEXTS = ["bara comi", "dutol", "feven gira loba muco nami xq7 " * 6, "", "bara"]
OPTIONS = {"precision": "fp32", "threads": 1, "cuda": False, "batch_tokens": 256}
RANKER = {"kind": "ranker", "of": "dense", "depth": 5}


def encoder_of(artifact: Path) -> LoadedEncoder:
    """Open a retriever's model, whose stored vectors would be rounded."""
    return LoadedEncoder(artifact / "model", vectors="float16", **OPTIONS)


def system(name: str, stages: Mapping[str, Any], models: Mapping[str, Any]) -> LoadedSystem:
    """Make a system of some models, which is never searched."""
    documents = asgi.documents()
    parts = {
        stage: LoadedRetriever(model, documents, nearest=None)  # type: ignore[arg-type]
        if isinstance(model, LoadedEncoder)
        else model
        for stage, model in models.items()
    }
    tree = {"version": VERSION, "name": name, "documents": asgi.COUNT, "stages": stages}
    return LoadedSystem(SystemConfig.model_validate(tree), documents, parts)


def answering_of(*systems: LoadedSystem, default: str | None = None) -> Answering:
    """Make a service's systems, the first of which is the default."""
    named = {loaded.config.name: loaded for loaded in systems}
    return Answering(named, systems[0].documents, default or next(iter(named)), {}, Metrics(), Summary("demo"))


def app_of(answering: Answering, folder: Path, **options: Any) -> Application:
    """Build the application of a service."""
    options = {"token": None, "loopback": True, "facts": {}, **options}
    return application(answering, Marks(folder / "marks.jsonl"), **options)


class Toys(NamedTuple):
    """Folders of models."""

    plain: Path
    prompted: Path
    """A retriever with two towers and prompts."""
    cut: Path
    """A retriever that was trained to be cut to 8 or 16 dimensions."""
    ranker: Path


@pytest.fixture(scope="module")
def toys_of_service(tmp_path_factory: pytest.TempPathFactory, encoder: Path, retriever: Path, ranker: Path) -> Toys:
    folder = tmp_path_factory.mktemp("models")
    prompted = toy.retriever_config(
        encoder, towers="separate", projection=12, query_prompt="bara: ", document_prompt="comi: ", pooling="mean"
    )
    nested = toy.write_encoder(folder / "nested", matryoshka_dimensions=[8, 16])
    cut = toy.retriever_config(nested, pooling="mean", similarity="cosine")
    return Toys(retriever, toy.started(folder / "prompted", prompted), toy.started(folder / "cut", cut), ranker)


@pytest.fixture(scope="module")
def answering(toys_of_service: Toys) -> Answering:
    """A service of systems that share models."""
    plain, ranker = encoder_of(toys_of_service.plain), PairScorer(toys_of_service.ranker / "model", **OPTIONS)
    prompted, cut = encoder_of(toys_of_service.prompted), encoder_of(toys_of_service.cut)
    return answering_of(
        system("near", {"dense": DENSE}, {"dense": plain}),
        system("reranked", {"dense": DENSE, "ranker": RANKER}, {"dense": plain, "ranker": ranker}),
        system("prompted", {"dense": DENSE}, {"dense": prompted}),
        system("cut", {"short": DENSE}, {"short": cut}),
    )


@pytest.fixture(scope="module")
def url(answering: Answering, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live(app_of(answering, tmp_path_factory.mktemp("served"))) as address:
        yield address


def client_of(url: str, key: str = "none") -> openai.OpenAI:
    """OpenAI's client of a service."""
    plain = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=plain)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with client_of(url) as opened:
        yield opened


def vectors_of(response: Any) -> np.ndarray:
    """Collect the vectors of a response, in its order."""
    assert [row.index for row in response.data] == list(range(len(response.data)))
    return np.array([row.embedding for row in response.data], np.float32)


def reference(artifact: Path) -> SentenceTransformer:
    """Open a folder as its users do."""
    return SentenceTransformer(str(artifact / "model"), device="cpu", local_files_only=True)


@pytest.mark.parametrize(("model", "name"), [("near/dense", "plain"), ("prompted/dense", "prompted"), ("short", "cut")])
@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openai_client_gets_the_vectors_of_sentence_transformers(
    client: openai.OpenAI, toys_of_service: Toys, model: str, name: str, encoding: Any
) -> None:
    options = {} if encoding is None else {"encoding_format": encoding}
    response = client.embeddings.create(model=model, input=TEXTS, **options)
    vectors = vectors_of(response) if encoding != "base64" else decoded(response)
    folder = getattr(toys_of_service, name)
    expected = reference(folder).encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    tower = folder / "model" if (folder / "model" / "tokenizer.json").exists() else folder / "model" / "document"
    tokenizer = AutoTokenizer.from_pretrained(str(tower))
    count = sum(map(len, tokenizer(TEXTS, truncation=True, max_length=24)["input_ids"]))
    assert (response.usage.prompt_tokens, response.usage.total_tokens, response.model) == (count, count, model)


def decoded(response: Any) -> np.ndarray:
    """Decode the vectors of a client that was told to expect base64."""
    return np.stack([np.frombuffer(base64.b64decode(row.embedding), "<f4") for row in response.data])


@pytest.mark.parametrize(
    ("side", "fields"),
    [
        ("query", {"input_type": "query"}),
        ("query", {"input_type": "search_query"}),
        ("query", {"task": "retrieval.query"}),
        ("document", {"input_type": "document"}),
        ("document", {"task": "retrieval.passage"}),
    ],
)
def test_the_side_of_texts_can_be_named(client: openai.OpenAI, toys_of_service: Toys, side: str, fields: Any) -> None:
    texts = ["bara comi", "dutol"]
    response = client.embeddings.create(model="prompted/dense", input=texts, extra_body=fields)
    encode = getattr(reference(toys_of_service.prompted), f"encode_{side}")
    np.testing.assert_allclose(vectors_of(response), encode(texts, show_progress_bar=False), atol=1e-5)


def test_token_ids_stand_for_their_text(client: openai.OpenAI, toys_of_service: Toys) -> None:
    """With the tokenizer's special tokens and without, of one text or several."""
    tokenizer = AutoTokenizer.from_pretrained(str(toys_of_service.plain / "model"))
    expected = vectors_of(client.embeddings.create(model="near/dense", input=TEXTS[:3]))
    for special in (False, True):
        ids = tokenizer(TEXTS[:3], add_special_tokens=special)["input_ids"]
        response = client.embeddings.create(model="near/dense", input=ids)
        np.testing.assert_allclose(vectors_of(response), expected, atol=1e-6)
        single = client.embeddings.create(model="near/dense", input=ids[1])
        np.testing.assert_allclose(vectors_of(single), expected[1:2], atol=1e-6)
    of_query = client.embeddings.create(
        model="prompted/dense",
        input=tokenizer("dutol", add_special_tokens=False)["input_ids"],
        extra_body={"input_type": "query"},
    )
    text = client.embeddings.create(model="prompted/dense", input="dutol", extra_body={"input_type": "query"})
    np.testing.assert_allclose(vectors_of(of_query), vectors_of(text), atol=1e-6)


def test_vectors_are_cut_to_sizes_that_were_trained(client: openai.OpenAI, toys_of_service: Toys) -> None:
    short = reference(toys_of_service.cut)
    for size in (8, 16, 32):
        response = client.embeddings.create(model="short", input=TEXTS, dimensions=size)
        expected = short.encode(TEXTS, truncate_dim=size, normalize_embeddings=True, show_progress_bar=False)
        np.testing.assert_allclose(vectors_of(response), expected, atol=1e-5)
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="short", input="bara", dimensions=9)
    assert (caught.value.param, caught.value.code) == ("dimensions", "unknown-value")
    assert "accepted: 8, 16, 32" in caught.value.message
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="near/dense", input="bara", dimensions=8)


def test_many_texts_keep_their_order(client: openai.OpenAI, toys_of_service: Toys) -> None:
    texts = [toy.WORDS[number % 32] + " " + toy.WORDS[number // 32] for number in range(2 * batching.TEXTS + 9)]
    response = client.embeddings.create(model="near/dense", input=texts, user="someone")
    expected = reference(toys_of_service.plain).encode(texts, show_progress_bar=False)
    np.testing.assert_allclose(vectors_of(response), expected, atol=1e-5)


DOCUMENTS = ["dutol feven", "bara comi", "gira " * 40, "bara", "bara comi"]


def test_documents_are_reranked_by_the_scores_of_the_cross_encoder(url: str, toys_of_service: Toys) -> None:
    query = "bara comi"
    ranker = CrossEncoder(str(toys_of_service.ranker / "model"), device="cpu", local_files_only=True)
    scores = ranker.predict([(query, text) for text in DOCUMENTS])  # the folder's activation is the identity
    order = np.argsort(-scores, kind="stable").tolist()
    with httpx2.Client(base_url=url, trust_env=False) as plain:
        response = plain.post("/v1/rerank", json={"query": query, "documents": DOCUMENTS, "model": "ranker"}).json()
        assert [row["index"] for row in response["results"]] == order
        relevances = [row["relevance_score"] for row in response["results"]]
        assert relevances == pytest.approx((1 / (1 + np.exp(-scores[order]))).tolist(), abs=1e-5)
        assert all("document" not in row for row in response["results"])
        tokenizer = AutoTokenizer.from_pretrained(str(toys_of_service.ranker / "model"))
        pairs = tokenizer([query] * len(DOCUMENTS), DOCUMENTS, truncation=True, max_length=24)
        count = sum(map(len, pairs["input_ids"]))
        assert (response["usage"], response["meta"]) == ({"total_tokens": count}, {"tokens": {"input_tokens": count}})
        objects = [{"text": text, "id": number} for number, text in enumerate(DOCUMENTS)]
        request = {"query": query, "documents": objects, "top_n": 2, "return_documents": True, "raw_scores": True}
        for path in ("/v1/rerank", "/v2/rerank"):
            rows = plain.post(path, json=request).json()["results"]
            assert [row["document"] for row in rows] == [objects[number] for number in order[:2]]
            assert [row["relevance_score"] for row in rows] == pytest.approx(scores[order[:2]].tolist(), abs=1e-5)


def test_models_that_systems_share_are_listed_once(client: openai.OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    assert list(models) == ["near/dense", "prompted/dense", "short", "ranker"]
    assert [model.kind for model in models.values()] == ["embedding"] * 3 + ["rerank"]  # type: ignore[attr-defined]
    assert [model.dimensions for model in models.values()] == [[32], [12], [8, 16, 32], None]  # type: ignore[attr-defined]
    assert [model.max_tokens for model in models.values()] == [24] * 4  # type: ignore[attr-defined]
    assert client.models.retrieve("prompted/dense") == models["prompted/dense"]
    embeddings = client.embeddings.create(model="reranked/dense", input="bara")  # shared with `near`
    assert embeddings.model == "near/dense"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.code == "model_not_found"


def test_a_model_that_is_not_named_is_the_default_systems_or_the_only_one(
    toys_of_service: Toys, tmp_path: Path
) -> None:
    plain, prompted = encoder_of(toys_of_service.plain), encoder_of(toys_of_service.prompted)
    words = asgi.system("words", lexical=LEXICAL)[0]
    near, far = system("near", {"dense": DENSE}, {"dense": plain}), system("far", {"dense": DENSE}, {"dense": prompted})
    for services, expected in {(near, far): "near/dense", (words, far): "dense", (words, near, far): None}.items():
        response = post(app_of(answering_of(*services), tmp_path), "/v1/embeddings", {"input": "bara"})
        if expected is None:
            assert (response.status, response.json["error"]["param"]) == (400, "model")
        else:
            assert response.json["model"] == expected
    response = post(app_of(answering_of(words), tmp_path), "/v1/rerank", {"query": "bara", "documents": ["comi"]})
    assert (response.status, response.json["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        ("/v1/embeddings", {"model": "short"}, 400, "input", "missing-key"),
        ("/v1/embeddings", {"input": []}, 400, "input", "wrong-type"),
        ("/v1/embeddings", {"input": ["bara", 1]}, 400, "input", "wrong-type"),
        ("/v1/embeddings", {"input": [[1, True]]}, 400, "input", "wrong-type"),
        ("/v1/embeddings", {"input": [[-1]]}, 400, "input", "wrong-type"),
        ("/v1/embeddings", {"input": [100_000]}, 400, "input", "too-large"),
        ("/v1/embeddings", {"input": ["x"] * (model_requests.INPUTS + 1)}, 400, "input", "too-long"),
        ("/v1/embeddings", {"input": "x" * (model_requests.CHARACTERS + 1)}, 400, "input", "too-long"),
        ("/v1/embeddings", {"input": [1] * (model_requests.TOKENS + 1)}, 400, "input", "too-long"),
        ("/v1/embeddings", {"input": "x", "model": "nearr/dense"}, 404, "model", "model_not_found"),
        ("/v1/embeddings", {"input": "x", "model": "ranker"}, 404, "model", "model_not_found"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, 400, "encoding_format", "unknown-value"),
        ("/v1/embeddings", {"input": "x", "input_type": "title"}, 400, "input_type", "unknown-value"),
        ("/v1/embeddings", {"input": "x", "truncate": True}, 400, "truncate", "unknown-key"),
        ("/v1/rerank", {"query": "x", "documents": []}, 400, "documents", "too-short"),
        ("/v1/rerank", {"query": " ", "documents": ["x"]}, 400, "query", "too-short"),
        ("/v1/rerank", {"query": "x", "documents": ["x", 1]}, 400, "documents.1", "wrong-type"),
        ("/v1/rerank", {"query": "x", "documents": [{"title": "x"}]}, 400, "documents.0.text", "missing-key"),
        ("/v1/rerank", {"query": "x", "documents": ["x"], "top_n": 0}, 400, "top_n", "too-small"),
        ("/v1/chat/completions", {}, 404, None, "not_found"),
        ("/v1/models", {}, 405, None, None),
    ],
)
def test_mistakes_are_told_in_the_form_of_openai(
    answering: Answering, tmp_path: Path, path: str, body: Any, status: int, param: str | None, code: str | None
) -> None:
    response = post(app_of(answering, tmp_path), path, body)
    error = response.json["error"]
    assert (response.status, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_the_token_and_the_size_of_a_request_are_checked_first(answering: Answering, tmp_path: Path) -> None:
    app = app_of(answering, tmp_path, token="a-token-of-sixteen-characters")
    response = get(app, "/v1/models")
    assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json["error"]["code"] == "invalid_api_key"
    with live(app) as url, client_of(url, "a-token-of-sixteen-characters") as client:
        assert len(list(client.models.list())) == 4
    with live(app) as url, client_of(url, "another") as client, pytest.raises(openai.AuthenticationError):
        client.embeddings.create(model="short", input="bara")
    large = {"input": "x" * model_requests.BYTES}
    response = post(app_of(answering, tmp_path), "/v1/embeddings", large)
    assert (response.status, response.json["error"]["code"]) == (413, "request_too_large")


class Held:
    """An encoder that waits before its first batch, and notes the batches that it reads."""

    sizes, limit = (2,), 24

    def __init__(self) -> None:
        self.go, self.batches = threading.Event(), list[list[str]]()

    def embed(self, texts: list[str], side: Any) -> tuple[np.ndarray, np.ndarray]:
        self.go.wait(10)
        self.batches.append(list(texts))
        return np.array([[len(text), 1] for text in texts], np.float32), np.ones(len(texts), np.int64)

    def cut(self, vectors: np.ndarray, size: int | None) -> np.ndarray:
        return vectors


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> tuple[Held, Answering]:
    """A service whose retriever's model waits, and whose searches do not use the model."""
    loaded, _ = asgi.system("near", dense=DENSE)
    model = Held()
    monkeypatch.setattr(LoadedSystem, "encoders", property(lambda _: {"dense": model}))
    return model, answering_of(loaded)


def embeddings(app: Application, texts: Any) -> Any:
    """Ask for the vectors of texts."""
    headers = {"content-type": "application/json"}
    return asgi.request(app, "POST", "/v1/embeddings", body=json.dumps({"input": texts}).encode(), headers=headers)


def test_texts_that_come_during_a_batch_are_read_together(held: tuple[Held, Answering], tmp_path: Path) -> None:
    model, answering = held
    app = app_of(answering, tmp_path)
    texts = ["x" * (1 + number) for number in range(20)]

    async def ask() -> list[Any]:
        waiting = [asyncio.create_task(embeddings(app, [text])) for text in texts]
        await asyncio.sleep(0.05)
        model.go.set()
        return await asyncio.gather(*waiting)

    answers = asyncio.run(ask())
    assert [answer.json["data"][0]["embedding"] for answer in answers] == [[len(text), 1] for text in texts]
    assert sorted(text for batch in model.batches for text in batch) == texts
    assert len(model.batches) <= 2  # the first may be read before the others come
    metrics = get(app, "/metrics").body.decode()
    counters = dict(re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", metrics, re.MULTILINE))
    assert counters['sparring_texts_total{model="dense"}'] == "20.0"
    assert counters['sparring_tokens_total{model="dense"}'] == "20.0"
    assert counters['sparring_part_seconds_count{part="embed"}'] == f"{len(model.batches)}.0"
    assert counters['sparring_requests_total{path="/v1/embeddings",status="200"}'] == "20.0"


def test_a_search_waits_for_a_part_of_a_long_request_only(held: tuple[Held, Answering], tmp_path: Path) -> None:
    model, answering = held
    app, parts = app_of(answering, tmp_path), 5

    async def ask() -> int:
        long = asyncio.create_task(embeddings(app, ["x"] * (parts * batching.TEXTS)))
        await asyncio.sleep(0.05)
        search = asyncio.create_task(answering.answer(Question(queries=["one"], k=3)))
        await asyncio.sleep(0.05)
        model.go.set()
        await search
        done = len(model.batches)
        assert len((await long).json["data"]) == parts * batching.TEXTS
        return done

    assert asyncio.run(ask()) < parts


def test_too_many_waiting_requests_are_refused(
    held: tuple[Held, Answering], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, answering = held
    monkeypatch.setattr(batching, "WAITING", 2)
    app = app_of(answering, tmp_path)

    async def ask() -> list[Any]:
        waiting = []
        for _ in range(5):  # one is read, two wait
            waiting.append(asyncio.create_task(embeddings(app, "x")))
            await asyncio.sleep(0.02)
        search = await asgi.request(app, "GET", "/search?q=one")
        model.go.set()
        return [*await asyncio.gather(*waiting), search]

    *answers, search = asyncio.run(ask())
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].headers["retry-after"] == "1"
    error = answers[-1].json["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert (search.status, set(search.json)) == (429, {"detail"})


def test_a_failure_is_told_in_the_form_of_openai(held: tuple[Held, Answering], tmp_path: Path) -> None:
    model, answering = held

    def broken(texts: Any, side: Any) -> Any:
        raise RuntimeError("broken")

    model.embed = broken  # type: ignore[method-assign]
    with live(app_of(answering, tmp_path)) as url, client_of(url) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.embeddings.create(model="dense", input="x")
        assert caught.value.type == "server_error"
        assert "broken" not in caught.value.message


def test_the_responses_are_what_the_schema_says(answering: Answering, tmp_path: Path) -> None:
    app = app_of(answering, tmp_path)
    schema = get(app, "/openapi.json").json
    assert {"/v1/models", "/v1/models/{model}", "/v1/embeddings", "/v1/rerank"} <= set(schema["paths"])
    parts = schema["components"]["schemas"]
    embedded = post(app, "/v1/embeddings", {"input": "bara"}).json
    ranked = post(app, "/v1/rerank", {"query": "bara", "documents": ["comi"]}).json
    for name, tree in {
        "EmbeddingResponse": embedded,
        "Embedding": embedded["data"][0],
        "RerankResponse": ranked,
        "ModelList": get(app, "/v1/models").json,
        "ListedModel": get(app, "/v1/models").json["data"][0],
    }.items():
        assert set(parts[name]["properties"]) == set(tree)

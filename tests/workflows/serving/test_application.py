"""The service's JSON, limits, token and counts, of systems that need no models."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI

from sparring.components.data.tables import document_text
from sparring.components.systems.reading import ReaderAnswer
from sparring.workflows.serving.access import GONE, Application
from sparring.workflows.serving.answering import Answering, Summary
from sparring.workflows.serving.application import application
from sparring.workflows.serving.batching import TOGETHER, Arrival
from sparring.workflows.serving.marks import Marks, qrels
from sparring.workflows.serving.metrics import Metrics
from sparring.workflows.serving.questions import BODY_BYTES, DOCUMENTS, QUERIES, QUERY_CHARACTERS, Question
from tests.support import asgi
from tests.support.asgi import DENSE, LEXICAL, get, post, request

SUMMARY = Summary("demo", "letters", ["what is d03", "what is d04"], {"near": 0.5})
TOKEN = "a-token-of-sixteen-characters"


class Made(NamedTuple):
    application: Application
    answering: Answering
    near: asgi.Lists
    marks: Marks


def made(folder: Path, **options: Any) -> Made:
    """A service of two systems."""
    near, lists = asgi.system("near", dense=DENSE)
    words, _ = asgi.system("words", lexical=LEXICAL)
    answering = Answering(
        {"near": near, "words": words}, near.documents, "near", {"other": "no reason"}, Metrics(), SUMMARY
    )
    marks = Marks(folder / "marks.jsonl")
    options = {"token": None, "loopback": True, **options}
    return Made(application(answering, marks, facts={"identity": "x"}, **options), answering, lists, marks)


@pytest.fixture
def service(tmp_path: Path) -> Made:
    return made(tmp_path)


def test_json_has_its_header(service: Made) -> None:
    """`curl -d` sends another one, and so would a form of another site."""
    kind = "application/x-www-form-urlencoded"
    response = post(service.application, "/search", {"queries": ["one"], "k": 1}, **{"content-type": kind})
    assert response.status == 422
    assert response.json == {"detail": f"content-type: got {kind!r}; accepted: application/json"}


def test_a_body_that_is_no_json_is_said_to_be_none(service: Made) -> None:
    headers = {"content-type": "application/json"}
    response = asyncio.run(request(service.application, "POST", "/search", body=b'{"queries": [one]}', headers=headers))
    assert (response.status, response.json) == (422, {"detail": "the body is not JSON: Expecting value"})


@pytest.mark.parametrize("body", [b'{"queries": ["\xff"]}', b"[" * 100_000, b'{"k": ' + b"9" * 5_000 + b"}"])
def test_a_body_that_cannot_be_decoded_is_said_to_be_none(service: Made, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = asyncio.run(request(service.application, "POST", "/search", body=body, headers=headers))
    assert response.status == 400
    assert response.json["detail"].startswith("the body cannot be read: it is no UTF-8, or ")


def test_whether_it_is_well_can_be_asked_without_a_body(service: Made) -> None:
    response = asyncio.run(request(service.application, "HEAD", "/health"))
    assert response.status == 200


@pytest.mark.parametrize("tree", [None, [], "x", 1])
def test_a_body_is_an_object(service: Made, tree: Any) -> None:
    response = post(service.application, "/search", tree)
    assert (response.status, response.json) == (422, {"detail": "the body: accepted: a JSON object"})


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("q=one&systen=words", "systen: unknown key; /openapi.json lists the keys"),
        ("q=one&q=two", "q: given twice; accepted: once (POST takes several queries)"),
        ("q=one&k=1_0", "k: got '1_0'; accepted: a whole number"),
        ("q=one&k=3.0", "k: got '3.0'; accepted: a whole number"),
        ("k=3", "the address: accepted: either `q`, a text, or `id`, a document's"),
        ("q=one&id=d03", "the address: accepted: either `q`, a text, or `id`, a document's"),
    ],
)
def test_an_address_is_read_as_strictly_as_a_body(service: Made, address: str, says: str) -> None:
    response = get(service.application, f"/search?{address}")
    assert (response.status, response.json) == (422, {"detail": says})


def test_a_file_that_is_gone_is_named(service: Made) -> None:
    def gone(texts: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory", "/run/vectors.npy")

    service.near.encode = gone  # type: ignore[method-assign]
    response = get(service.application, "/search?q=x")
    detail = "/run/vectors.npy: No such file or directory: what the service reads is gone; start it again"
    assert (response.status, response.json) == (500, {"detail": detail})


def test_marks_that_cannot_be_written(service: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(mark: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(service.marks, "add", full)
    response = post(service.application, "/marks", {"query": "one", "doc_id": "d03", "relevant": True})
    assert (response.status, response.json) == (507, {"detail": "the marks cannot be written: No space left on device"})


def test_an_answer_has_documents_scores_and_times(service: Made) -> None:
    response = post(service.application, "/search", {"queries": ["one", " four "], "k": 2})
    assert response.status == 200
    assert [result["query"] for result in response.json["results"]] == ["one", "four"]
    assert [[document["doc_id"] for document in result["documents"]] for result in response.json["results"]] == [
        ["d03", "d04"],
        ["d04", "d05"],
    ]
    first = response.json["results"][0]["documents"][0]
    assert [result["answer"] for result in response.json["results"]] == [None, None]
    assert first == {"doc_id": "d03", "title": "title of d03", "text": "d03", "score": 1.0, "scores": {"dense": 1.0}}
    assert (response.json["system"], response.json["together"]) == ("near", 2)
    assert set(response.json["seconds"]) == {"wait", "encode", "search", "text"}
    assert get(service.application, "/search?q=one&k=2").json["results"] == response.json["results"][:1]
    words = get(service.application, "/search?q=one&k=2&system=words").json
    assert set(words["results"][0]["documents"][0]["scores"]) == {"lexical"}
    assert "bm25" in words["seconds"]


def test_a_readers_answer_comes_with_the_documents(tmp_path: Path) -> None:
    """It is of as many documents as the reader's stage says, however many are asked for."""

    def reads(texts: list[str], documents: list[dict[str, Any]]) -> list[ReaderAnswer]:
        assert [list(of_query) for of_query in documents] == [["d03", "d04", "d05"], ["d04", "d05", "d06"]]
        return [ReaderAnswer(f"{text}!", "d04" if text == "one" else None) for text in texts]

    reader = {"kind": "reader", "of": "dense", "passages": 3, "passage_tokens": 24, "new_tokens": 4}
    loaded, _ = asgi.system("read", reads, dense=DENSE, reader=reader)
    answering = Answering({"read": loaded}, loaded.documents, "read", {}, Metrics(), Summary("reader"))
    app = application(answering, Marks(tmp_path / "marks.jsonl"), facts={"identity": "x"}, token=None, loopback=True)
    response = post(app, "/search", {"queries": ["one", "four"], "k": 1})
    assert [result["answer"] for result in response.json["results"]] == [
        {"text": "one!", "doc_id": "d04"},
        {"text": "four!", "doc_id": None},
    ]
    assert [len(result["documents"]) for result in response.json["results"]] == [1, 1]
    assert set(response.json["seconds"]) == {"wait", "encode", "search", "text", "read"}
    assert get(app, "/systems").json["systems"][0]["stages"] == ["dense", "reader"]


@pytest.mark.parametrize(("ranked", "found"), [(3, 3), (30, 10)])
def test_who_says_no_number_gets_ten_or_all_that_are_ranked(service: Made, ranked: int, found: int) -> None:
    near = service.answering.systems["near"]
    near.config = near.config.model_copy(update={"documents": ranked})
    for response in (
        post(service.application, "/search", {"queries": ["one"]}),
        get(service.application, "/search?q=one"),
    ):
        assert [len(result["documents"]) for result in response.json["results"]] == [found]


@pytest.mark.parametrize("system", ["near", "words"])
def test_a_document_that_is_asked_by_its_id_is_left_out(service: Made, system: str) -> None:
    """Its text is the query. Another document takes its place; a question with texts is answered with all."""
    name = f"d{len(document_text(*service.answering.documents.texts(['d03'])['d03'])) % asgi.COUNT:02d}"
    text = document_text(*service.answering.documents.texts([name])[name])
    single = get(service.application, f"/search?id={name}&k=6&system={system}").json["results"][0]
    assert (single["query"], single["id"]) == (text, name)
    both = post(service.application, "/search", {"queries": [text], "k": 7, "system": system}).json["results"][0]
    assert both["id"] is None
    everything, rest = ([hit["doc_id"] for hit in result["documents"]] for result in (both, single))
    assert rest == [doc_id for doc_id in everything if doc_id != name]
    assert len(rest) == 6


def test_the_answer_is_what_the_schema_says(service: Made) -> None:
    schema = get(service.application, "/openapi.json").json
    assert schema["openapi"].startswith("3.1")
    answers = schema["paths"]["/search"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert answers == {"$ref": "#/components/schemas/Answer"}
    body = post(service.application, "/search", {"queries": ["one"]}).json
    wanted = schema["components"]["schemas"]
    for name, tree in {
        "Answer": body,
        "Result": body["results"][0],
        "Found": body["results"][0]["documents"][0],
    }.items():
        assert set(wanted[name]["properties"]) == set(wanted[name]["required"]) == set(tree)
    assert {"/search", "/systems", "/marks", "/marks/qrels", "/health", "/metrics"} <= set(schema["paths"])
    assert "/" not in schema["paths"]


@pytest.mark.parametrize(
    ("question", "status", "says"),
    [
        ({"queries": []}, 422, "got none; accepted: at least 1"),
        ({"queries": ["x"] * (QUERIES + 1)}, 422, f"got {QUERIES + 1}; accepted: at most {QUERIES}"),
        ({"queries": ["x" * (QUERY_CHARACTERS + 1)]}, 422, f"at most {QUERY_CHARACTERS} characters"),
        ({"queries": ["  "]}, 422, "at least 1 character"),
        ({"queries": ["x"], "k": 0}, 422, "1 or more"),
        ({"queries": ["x"], "k": DOCUMENTS + 1}, 422, f"{DOCUMENTS} or less"),
        ({"queries": ["x"], "k": asgi.COUNT + 1}, 422, "the collection has 30 documents. Use 1 to 30."),
        ({"queries": ["x"], "k": True}, 422, "k: "),
        ({"queries": ["x"], "k": "2"}, 422, "k: "),
        ({"queries": ["x"], "depth": 3}, 422, "unknown key"),
        ({"queries": "x"}, 422, "accepted: a list"),
        ({}, 422, "the body: accepted: either `queries`, texts, or `ids`, documents'"),
        ({"queries": ["x"], "ids": ["d03"]}, 422, "the body: accepted: either `queries`, texts, or `ids`, documents'"),
        ({"ids": ["d03", "no"]}, 404, "ids: no document is called 'no'; accepted: the id of a document"),
        ({"queries": ["x"], "system": "no"}, 404, "there is none called 'no'; accepted: near, words"),
    ],
)
def test_a_question_beyond_the_limits(service: Made, question: Any, status: int, says: str) -> None:
    response = post(service.application, "/search", question)
    assert response.status == status
    assert says in response.json["detail"]
    assert "\n" not in response.json["detail"]
    assert service.near.batches == []


@pytest.mark.parametrize("said_length", [True, False])
def test_a_body_beyond_the_limit(service: Made, said_length: bool) -> None:
    body = json.dumps({"queries": ["x" * BODY_BYTES]}).encode()
    response = asyncio.run(asgi.request(service.application, "POST", "/search", body=body, said_length=said_length))
    assert response.status == 413
    assert response.json == {"detail": f"the request is too large; accepted: {BODY_BYTES:,} bytes"}


def test_all_but_the_page_and_health_want_the_token(tmp_path: Path) -> None:
    service = made(tmp_path, token=TOKEN).application
    for path in ("/systems", "/search?q=x", "/marks", "/marks/qrels", "/metrics", "/openapi.json", "/none"):
        for headers in (
            {},
            {"authorization": f"Bearer {TOKEN}x"},
            {"authorization": TOKEN},
            {"authorization": "Bearer é"},
        ):
            response = get(service, path, **headers)
            assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
    assert [get(service, path).status for path in ("/", "/health")] == [200, 200]
    assert get(service, "/search?q=x", authorization=f"Bearer {TOKEN}").status == 200


def test_tokens_are_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `hmac.compare_digest` and nothing beside it: where that says yes, the service does."""
    service, compared = made(tmp_path, token=TOKEN).application, []
    monkeypatch.setattr("hmac.compare_digest", lambda *pair: compared.append(pair) or True)
    assert get(service, "/systems", authorization="Bearer another").status == 200
    assert compared == [(b"another", TOKEN.encode())]


def test_on_this_machine_only_its_own_names_are_answered(tmp_path: Path) -> None:
    """A page of a site whose name points to this machine cannot ask."""
    local, everywhere = made(tmp_path).application, made(tmp_path, loopback=False).application
    for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000", "localhost", "LOCALHOST:80", "127.0.0.2", "[::1]"):
        assert get(local, "/health", host=host).status == 200
    for host in ("example.org:8000", "127.0.0.1.example.org", "localhost.example.org", "128.0.0.1", "[::1", ""):
        assert get(local, "/health", host=host).status == 403
    assert get(everywhere, "/health", host="example.org:8000").status == 200


def test_questions_that_come_during_a_search_are_answered_together_and_as_if_alone(service: Made) -> None:
    lists, answering = service.near, service.answering
    go, alone = threading.Event(), lists.encode

    def held(texts: Any) -> Any:
        go.wait(10)
        return alone(texts)

    lists.encode = held  # type: ignore[method-assign]
    texts = ["x" * (1 + number % 9) for number in range(TOGETHER + 9)]

    async def ask() -> list[Any]:
        waiting = [asyncio.create_task(answering.answer(Question(queries=[text], k=3))) for text in texts]
        await asyncio.sleep(0.05)
        task = waiting.pop(3)
        task.cancel()
        go.set()
        return await asyncio.gather(*waiting)

    answers = asyncio.run(ask())
    assert [len(batch) for batch in lists.batches][-1] <= TOGETHER
    assert len(lists.batches) <= 3
    assert max(answer.together for answer in answers) > 1
    del texts[3]
    for text, answer in zip(texts, answers, strict=True):
        (single,) = answering.together([Arrival(Question(queries=[text], k=3, system="near"), 0.0)])
        assert answer.results == single.results


def test_nothing_is_searched_for_a_client_that_is_gone(service: Made) -> None:
    """It is counted as one, and is no error; neither is one that Ray Serve cancels."""
    lists, go, alone = service.near, threading.Event(), service.near.encode

    def held(texts: Any) -> Any:
        go.wait(10)
        return alone(texts)

    lists.encode = held  # type: ignore[method-assign]

    async def ask() -> list[Any]:
        disconnect = asyncio.Event()
        first = asyncio.create_task(request(service.application, "GET", "/search?q=first"))
        await asyncio.sleep(0.05)
        requests = [request(service.application, "GET", "/search?q=other", disconnect=disconnect) for _ in range(3)]
        tasks = [asyncio.create_task(coroutine) for coroutine in requests]
        await asyncio.sleep(0.05)
        disconnect.set()
        await asyncio.wait(tasks)
        cancelled = asyncio.create_task(request(service.application, "GET", "/search?q=cancelled"))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        go.set()
        return [(await first).status, *(task.result().status for task in tasks)]

    assert asyncio.run(ask()) == [200, GONE, GONE, GONE]
    assert lists.batches == [["first"]]
    metrics = get(service.application, "/metrics").body.decode()
    assert 'sparring_requests_total{path="/search",status="499"} 4.0' in metrics
    assert "sparring_errors_total 0.0" in metrics


def test_a_client_that_hangs_up_within_its_body(service: Made) -> None:
    async def ask() -> None:
        disconnect = asyncio.Event()
        disconnect.set()
        await request(service.application, "POST", "/search", body=b"{", disconnect=disconnect, whole=False)

    asyncio.run(ask())
    assert 'status="499"} 1.0' in get(service.application, "/metrics").body.decode()


def test_a_search_that_fails_is_an_error_of_the_service_alone(service: Made) -> None:
    def broken(texts: Any) -> Any:
        raise RuntimeError("broken")

    whole = service.near.encode
    service.near.encode = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        get(service.application, "/search?q=x")
    service.near.encode = whole  # type: ignore[method-assign]
    assert get(service.application, "/search?q=x").status == 200
    assert "sparring_errors_total 1.0" in get(service.application, "/metrics").body.decode()


def test_metrics_count_requests_times_and_batches(service: Made) -> None:
    post(service.application, "/search", {"queries": ["a", "b", "c"]})
    for path in ("/search?q=", "/nowhere", "/elsewhere"):
        get(service.application, path)
    response = get(service.application, "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    metrics = dict(re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", response.body.decode(), re.MULTILINE))
    assert metrics['sparring_requests_total{path="/search",status="200"}'] == "1.0"
    assert metrics['sparring_requests_total{path="/search",status="422"}'] == "1.0"
    assert metrics['sparring_requests_total{path="other",status="404"}'] == "2.0"
    assert metrics['sparring_request_seconds_count{path="/search"}'] == "2.0"
    assert metrics["sparring_batch_queries_sum"] == "3.0"
    assert metrics['sparring_queries_total{system="near"}'] == "3.0"
    assert metrics['sparring_part_seconds_count{part="encode"}'] == "1.0"


def test_marks_are_kept_and_given_as_qrels(service: Made, tmp_path: Path) -> None:
    def mark(query: str, doc_id: str, relevant: bool | None) -> int:
        return post(service.application, "/marks", {"query": query, "doc_id": doc_id, "relevant": relevant}).status

    assert [mark("one", "d03", True), mark("one", "d04", True), mark("two  words", "d05", False)] == [200] * 3
    assert [mark("one", "d04", None), mark("one", "d99", True), mark("", "d01", True)] == [200, 404, 422]
    assert get(service.application, "/marks").json == [
        {"query": "one", "doc_id": "d03", "relevant": True},
        {"query": "two  words", "doc_id": "d05", "relevant": False},
    ]
    qrels, queries = (get(service.application, f"/marks/{name}") for name in ("qrels", "queries"))
    assert "attachment" in qrels.headers["content-disposition"]
    ids = dict(line.split("\t")[::-1] for line in queries.body.decode().splitlines())
    assert qrels.body.decode() == f"{ids['one']} 0 d03 1\n{ids['two words']} 0 d05 0\n"
    assert Marks(tmp_path / "marks.jsonl").all() == service.marks.all()


def test_marks_of_a_query_hold_however_its_words_are_apart(service: Made) -> None:
    """The last one does, and taking it away leaves none."""
    for query, relevant in (("two words", True), ("two  words", False), ("two\nwords", True)):
        post(service.application, "/marks", {"query": query, "doc_id": "d03", "relevant": relevant})
    assert [line.split()[2:] for line in qrels(service.marks.all()).splitlines()] == [["d03", "1"]]
    post(service.application, "/marks", {"query": " two words", "doc_id": "d03", "relevant": None})
    assert (get(service.application, "/marks").json, qrels(service.marks.all())) == ([], "")


def test_the_page_asks_nothing_of_others(service: Made) -> None:
    response = get(service.application, "/")
    assert "<title>Search · Sparring</title>" in response.body.decode()
    assert response.body.decode().strip().endswith("</html>")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.search(r"https?://|@import|url\(", response.body.decode())
    assert get(service.application, "/docs").status == 404


def test_the_schema_is_fastapi_s(service: Made) -> None:
    assert isinstance(service.application._application, FastAPI)  # type: ignore[attr-defined]

"""Models behind an address: answers are kept, failures are repeated, and the key appears nowhere."""

from __future__ import annotations

import time
from contextlib import closing
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sparring.components.config import UserError
from sparring.components.models import endpoints
from sparring.components.models.endpoints import (
    Answer,
    Answers,
    Client,
    Price,
    ask_all,
    pause,
    retry_after,
    scores,
    vectors,
)
from tests.support.endpoint import KEY, TOKENS, Endpoint, every_third_fails, score, vector

TEXTS = ["one", "two", "three"]


def asking(server: Endpoint, **keys: Any) -> endpoints.Endpoint:
    return endpoints.Endpoint(**{"url": f"{server.url}/rerank", "model": "m", "key_from": "RERANK_KEY", **keys})


def ask(server: Endpoint, **keys: Any) -> Answer:
    with closing(Client(asking(server, **keys))) as client:
        return scores(client, asking(server), "q", TEXTS)


def embed(server: Endpoint, **keys: Any) -> Answer:
    wanted = asking(server, url=f"{server.url}/embeddings", **keys)
    with closing(Client(wanted)) as client:
        return vectors(client, wanted, TEXTS)


def test_scores_come_in_the_order_of_the_documents(endpoint: Endpoint) -> None:
    answer = ask(endpoint)
    assert answer.content == [score("q", text) for text in TEXTS]
    assert {key: answer.usage[key] for key in ("searches", "tokens")} == {"searches": 1, "tokens": TOKENS}
    assert endpoint.bodies == [{"model": "m", "query": "q", "documents": TEXTS, "top_n": 3}]


def test_vectors_come_in_the_order_of_the_texts(endpoint: Endpoint) -> None:
    assert embed(endpoint, model=None).content == [vector(text) for text in TEXTS]
    assert endpoint.bodies == [{"input": TEXTS, "encoding_format": "float"}]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failed_request_is_repeated(endpoint: Endpoint, status: int) -> None:
    endpoint.fails = lambda call: status if call < 3 else None
    assert len(ask(endpoint).content) == 3
    assert endpoint.statuses == {status: 2, 200: 1}


def test_pauses_double_and_what_the_address_asks_for_is_waited() -> None:
    for failures in range(12):
        longest = min(0.5 * 2**failures, endpoints.LONGEST_PAUSE)
        assert longest / 2 <= pause(failures, None) <= longest
    assert len({pause(3, None) for _ in range(20)}) > 1
    assert 3.0 <= pause(0, 3.0) <= 3.3
    assert retry_after("7") == 7
    assert 50 < (retry_after(formatdate(time.time() + 60, usegmt=True)) or 0) <= 60
    assert retry_after("nan") is None


def test_a_request_that_keeps_failing_ends_the_step(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint.fails = lambda call: 500
    monkeypatch.setattr(endpoints, "TRIES", 3)
    with pytest.raises(UserError, match=r"status 500.*All answers so far are kept") as caught:
        ask(endpoint)
    assert (endpoint.calls, caught.value.code) == (3, "no-answer")
    endpoint.headers = {"Retry-After": "100000"}
    with pytest.raises(UserError, match="status 500"):
        ask(endpoint)
    assert endpoint.calls == 4  # it is not waited that long


def test_nobody_there_is_no_answer(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "TRIES", 2)
    monkeypatch.setattr(endpoints, "FIRST_PAUSE", 0.0)
    with pytest.raises(UserError, match="no answer"):
        ask(endpoint, url="http://127.0.0.1:9/v1/rerank")


def test_a_refusal_is_told_at_once_and_without_the_key(endpoint: Endpoint) -> None:
    endpoint.fails = lambda call: 400
    with pytest.raises(UserError, match=r"status 400: .*no, Bearer \*\*\*") as caught:
        ask(endpoint)
    assert (endpoint.calls, caught.value.code) == (1, "refused-request")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda answer: {"results": answer["results"][:2]},
        lambda answer: {"results": [{**entry, "index": 0} for entry in answer["results"]]},
        lambda answer: {"results": [{"index": entry["index"], "score": 1.0} for entry in answer["results"]]},
        lambda answer: {},
        lambda answer: [],
    ],
)
def test_an_answer_of_another_form_is_refused(endpoint: Endpoint, spoil: Any) -> None:
    endpoint.spoil = spoil
    with pytest.raises(UserError) as caught:
        ask(endpoint)
    assert caught.value.code == "unknown-answer"


def test_vectors_of_several_lengths_are_refused(endpoint: Endpoint) -> None:
    endpoint.spoil = lambda answer: {"data": [{"index": index, "embedding": [1.0] * (index + 1)} for index in range(3)]}
    with pytest.raises(UserError) as caught:
        embed(endpoint)
    assert caught.value.code == "unknown-answer"


def test_a_key_comes_from_the_environment_alone(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = asking(endpoint)
    assert wanted.model_dump() == {"url": wanted.url, "model": "m"}  # how to ask is no identity
    monkeypatch.delenv("RERANK_KEY")
    with pytest.raises(UserError, match="RERANK_KEY is not set") as caught:
        Client(wanted)
    assert caught.value.code == "missing-key-variable"
    monkeypatch.setenv("RERANK_KEY", "two words")
    with pytest.raises(UserError, match="RERANK_KEY") as caught:
        Client(wanted)
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize("url", ["api.example.com", "ftp://a/b", "http://", "https://me:secret@example.com/v1/rerank"])
def test_an_address_is_one_and_has_no_password(url: str) -> None:
    with pytest.raises(ValidationError):
        endpoints.Endpoint(url=url)


def test_nothing_is_asked_twice(endpoint: Endpoint, tmp_path: Path) -> None:
    wanted, path = asking(endpoint), tmp_path / "asked.jsonl"
    endpoint.fails = every_third_fails
    queries = [f"q{number}" for number in range(20)]
    requests = {query: lambda client, query=query: scores(client, wanted, query, TEXTS) for query in queries}
    some = dict(list(requests.items())[:7])
    ask_all(wanted, path, some)
    contents, usage = ask_all(wanted, path, requests)
    assert contents == [[score(query, text) for text in TEXTS] for query in queries]
    assert endpoint.asked_twice == []
    assert {key: usage[key] for key in ("answers", "searches", "tokens")} == {
        "answers": 20,
        "searches": 20,
        "tokens": 20 * TOKENS,
    }
    assert endpoint.statuses[429] + endpoint.statuses[500] >= 8


def test_answers_before_a_refusal_are_kept(endpoint: Endpoint, tmp_path: Path) -> None:
    wanted, path = asking(endpoint, requests_at_once=1), tmp_path / "asked.jsonl"
    requests = {q: lambda client, q=q: scores(client, wanted, q, TEXTS) for q in ("a", "b", "c", "d")}
    endpoint.fails = lambda call: 403 if call == 3 else None
    with pytest.raises(UserError, match="status 403"):
        ask_all(wanted, path, requests)
    assert ask_all(wanted, path, requests)[1]["answers"] == 4
    assert endpoint.asked_twice == []


def test_a_line_that_was_cut_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    answers = Answers(path)
    for key in ("a", "b"):
        answers.add(key, Answer([1.0], {"searches": 2, "tokens": None, "seconds": 0.5}))
    answers.close()
    path.write_bytes(path.read_bytes()[:-5])
    answers = Answers(path)
    assert "a" in answers
    assert "b" not in answers
    answers.add("b", Answer([2.0], {"searches": 1, "tokens": 3, "seconds": 0.5}))
    assert answers.usage() == {"answers": 2, "searches": 3, "tokens": None, "seconds": 1.0}
    answers.close()
    with closing(Answers(path)) as answers:
        assert [answers[key] for key in ("a", "b")] == [[1.0], [2.0]]


def test_a_price_is_of_one_unit() -> None:
    usage = {"searches": 1500, "tokens": 2_000_000}
    assert Price(thousand_searches=2.0).of(usage) == 3.0
    assert Price(million_tokens=0.5).of(usage) == 1.0
    assert Price(million_tokens=0.5).of({**usage, "tokens": None}) is None
    for keys in ({}, {"thousand_searches": 1, "million_tokens": 1}):
        with pytest.raises(ValidationError, match="it needs one unit"):
            Price(**keys)

"""The wording of users' mistakes: each message stands here once. Other tests assert its key and code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import Discriminator, Field
from torch import nn

from sparring.components.config import Config, UserError, distinct, parse
from sparring.components.data import groups, token_store
from sparring.components.evaluation import measures
from sparring.components.models import checkpoints, configs, layers, sentence_modules, special_tokens
from sparring.components.objectives.parts.editing import Editing
from sparring.components.retrieval import index, lucene
from sparring.components.sources import table_files, trec
from sparring.components.systems import config as systems
from sparring.components.training.terms import LossTerm
from sparring.components.yaml_files import read_based, read_text
from sparring.workflows.commands import submit
from sparring.workflows.distributed import job_package
from sparring.workflows.stages.contender import Contender
from sparring.workflows.stages.teacher import check_teacher
from sparring.workflows.systems import deployable


class Flat(Config):
    """One kind of index."""

    kind: Literal["flat"] = "flat"
    width: int = 8
    """How wide."""


class Deep(Config):
    """Another kind."""

    kind: Literal["deep"] = "deep"
    depth: Annotated[float, Field(gt=0, lt=9)]
    inner: Flat = Flat()


class Whole(Config):
    """An experiment."""

    name: Annotated[str, Field(min_length=1, max_length=8, pattern="^[a-z]")] = "x"
    index: Annotated[Flat | Deep, Discriminator("kind")] = Flat()
    maybe: Deep | None = None
    losses: Annotated[list[LossTerm], Field(max_length=1)] = []
    parts: dict[str, str | Annotated[list[str], Field(min_length=1)]] = {}
    limit: Annotated[int, Field(ge=1)] | Literal[False] = False
    count: Annotated[int, Field(le=3)] = 1
    on_bad: Literal["fail", "drop"] = "fail"
    flag: bool = False
    rows: Flat | Literal[False] = False


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"nam": 1},
            "nam: unknown key; accepted: name, index, maybe, losses, parts, limit, count, on_bad, flag, rows; did you "
            "mean name?",
        ),
        (
            {"depth": 1},
            "depth: unknown key; accepted: name, index, maybe, losses, parts, limit, count, on_bad, flag, rows; did "
            "you mean index.depth or maybe.depth?",
        ),
        ({"maybe": {}}, "maybe.depth: it is needed, and is not there"),
        ({"index": {"width": 1}}, "index.kind: it is needed, and is not there"),
        ({"index": {"kind": "round"}}, "index.kind: got 'round'; accepted: 'flat', 'deep'"),
        ({"index": {"kind": "flat", "width": True}}, "index.flat.width: got true; accepted: a whole number"),
        ({"maybe": {"depth": "far"}}, "maybe.depth: got 'far'; accepted: a number"),
        ({"maybe": {"depth": float("inf")}}, "maybe.depth: got inf; accepted: a finite number"),
        ({"maybe": {"depth": 0}}, "maybe.depth: got 0; accepted: more than 0"),
        ({"maybe": {"depth": 9}}, "maybe.depth: got 9; accepted: less than 9"),
        ({"count": 4}, "count: got 4; accepted: 3 or less"),
        ({"limit": -1}, "limit: got -1; accepted: 1 or more, or false"),
        ({"limit": "none"}, "limit: got 'none'; accepted: a whole number, or false"),
        ({"name": ["x"]}, "name: got ['x']; accepted: text"),
        ({"name": "X"}, "name: got 'X'; accepted: text that matches ^[a-z]"),
        ({"name": ""}, "name: got ''; accepted: at least 1 characters"),
        ({"name": "x" * 9}, "name: got 9 characters; accepted: at most 8 characters"),
        ({"parts": {"train": 5}}, "parts.train: got 5; accepted: text, or a list"),
        ({"parts": {"train": []}}, "parts.train: got none; accepted: at least 1 of them, or text"),
        ({"losses": 5}, "losses: got 5; accepted: a list, such as [5]"),
        ({"on_bad": "skip"}, "on_bad: got 'skip'; accepted: 'fail' or 'drop'"),
        ({"flag": "maybe"}, "flag: got 'maybe'; accepted: true or false"),
        ({"rows": 5}, "rows: got 5; accepted: keys and values: kind, width, or false"),
    ],
)
def test_a_key_or_value_that_a_config_does_not_take(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(Whole, tree, where="some.yaml")
    assert str(caught.value) == f"some.yaml: {message}"


KL = "components.losses.listwise.kl"


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (
            {"function": "released"},
            "got 'released', but 2 functions have this name. Use adversarial.released or simlm.released.",
        ),
        ({"function": f"{KL}l"}, "components.losses.listwise has no function 'kll'. Its functions are "),
        (
            {"function": "components.losses.list.kl"},
            "there is no module 'components.losses.list' for the function 'components.losses.list.kl'; looked among "
            "the installed packages, in PYTHONPATH and in the current folder",
        ),
        (
            {"function": "components.sampling.uniform"},
            "components.sampling.uniform takes scores, count, rng, positive. It must take scores, and after a `*` only "
            "options with a default.",
        ),
        ({"function": "own_losses.kl"}, "own_losses.kl has options without a default: base. It must take scores, "),
    ],
)
def test_a_function_that_is_no_loss(
    term: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_losses.py").write_text("def kl(scores, *, base): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        parse(Whole, {"losses": [term]}, where="some.yaml")
    assert str(caught.value).startswith(f"some.yaml: losses.0.function: {message}")


@pytest.mark.parametrize(
    ("name", "message"),
    [("two", "there is no built-in function 'two'. Use "), ("kll", "; did you mean kl?")],
)
def test_a_short_name_of_no_loss(name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(Whole, {"losses": [{"function": name}]}, where="some.yaml")
    assert message in str(caught.value)
    assert ", or MODULE.FUNCTION for your own" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, " has no option 'temprature'. Its options are temperature, teacher_temperature."),
        ({"temperature": "warm"}, ": temperature is 'warm'. Use a value like 1.0."),
        ({"temperature": float("nan")}, ": temperature is nan. Use a finite number."),
        ({"temperature": 0}, ": temperature is 0. Use a number above 0."),
    ],
)
def test_an_option_that_a_loss_does_not_take(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(Whole, {"losses": [{"function": "kl", "options": options}]}, where="some.yaml")
    assert str(caught.value) == f"some.yaml: losses.0.options: {KL}{message}"


def test_an_option_outside_of_options() -> None:
    with pytest.raises(UserError) as caught:
        parse(Whole, {"losses": [{"function": "kl", "temperature": 1}]}, where="some.yaml")
    rewritten = "`options: {temperature: ...}`"
    assert str(caught.value) == f"some.yaml: losses.0: temperature: this is an option of kl. Write {rewritten}."


def test_a_loss_that_declares_no_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "undeclared_losses.py").write_text("def taught(scores): return scores.teacher\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        parse(LossTerm, {"function": "undeclared_losses.taught"}, where="some.yaml")
    assert str(caught.value) == (
        "some.yaml: undeclared_losses.taught reads `scores.teacher` but does not declare it. Write "
        "`@needs(teacher=True)` above the function, or `@needs(teacher=False)` if it also works without (`from "
        "sparring.components.needs import needs`)."
    )


def collection(folder: Path) -> Path:
    """Write a collection of two documents, with a query in `test`."""
    columns = {"query_id": ["q"], "text": ["a"], "answers": [["b"]], "split": ["test"]}
    pq.write_table(pa.table(columns), folder / "queries.parquet")
    pq.write_table(pa.table({"doc_id": ["d", "e"]}), folder / "documents.parquet")
    return folder


def other_tokens(folder: Path) -> None:
    (folder / token_store.TOKENIZER).write_text('"00"')
    token_store.TokenStore(folder, folder)


def limited(source: Any, limit: int) -> None:
    model: Any = nn.Module()
    model.config = SimpleNamespace(rope_parameters=True, max_position_embeddings=limit)
    layers.check_length(model, source, "document_tokens")


def layered(kind: str, layers_kept: Any) -> None:
    model: Any = nn.Module()
    model.config = SimpleNamespace(num_hidden_layers=4, model_type=kind)
    layers.keep_layers(model, layers_kept)


def written(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


def unknown_token() -> None:
    tokenizer = SimpleNamespace(get_vocab=dict, convert_ids_to_tokens=lambda _: ["<", "e", ">"])
    called = type("Tokenizer", (SimpleNamespace,), {"__call__": lambda *_, **__: {"input_ids": []}})
    special_tokens.token_id(called(**vars(tokenizer)), "<e>", key="end_token")


def stages(**later: Any) -> None:
    """Read a system of BM25 and another stage."""
    named = {"lexical": {"kind": "lexical", "analysis": {}, "k": 10}, **later}
    tree = {"version": systems.VERSION, "name": "x", "documents": 50, "stages": named}
    parse(systems.SystemConfig, tree, where=next(iter(later)))


SOURCE = SimpleNamespace(model="some/model", document_tokens=9, query_prompt=None, document_prompt=None)


@pytest.mark.parametrize(
    ("provoke", "message"),
    [
        (lambda _: distinct([1, 2, 1]), "1 stands twice"),
        (lambda here: read_text(here / "a.yaml"), "HERE/a.yaml: there is no such file"),
        (read_text, "HERE: is a directory, not a file"),
        (
            lambda here: read_text(written(here / "a.yaml", b"\xff")),
            "HERE/a.yaml: not UTF-8 text (invalid start byte at byte 0)",
        ),
        (lambda here: read_text(here / ("x" * 300)), f"HERE/{'x' * 300}: cannot be read: File name too long"),
        (
            lambda here: read_based(written(here / "a.yaml", b"base: b.yml")),
            "HERE/a.yaml: base: HERE/b.yml: there is no such file; did you mean a.yaml?",
        ),
        (
            lambda here: groups.queries_of(collection(here), ["tset"], ["query_id"]),
            "splits: there are no queries in 'tset'. Use one of these splits: test. To split off a part of their "
            "queries, write `data: {..., hold_out: {tset: {share: 0.1}}}`.",
        ),
        (
            lambda here: groups.check_k(3, collection(here)),
            "k: got 3, but the collection has 2 documents. Use 1 to 2. (If sentences are "
            "retrieved, k is the largest cutoff of `retrieve`.)",
        ),
        (
            other_tokens,
            "HERE: these tokens were made with a different tokenizer (00) than that of HERE (11). Tokenise the "
            "collection for this model.",
        ),
        (
            lambda _: measures.canonical("bogus@10"),
            "measure 'bogus@10': not known; accepted: RR@k, nDCG@k, R@k, Success@k, P@k, AP@k (or RR, nDCG, AP "
            "without a cutoff), Answer@k; for example RR@10, or RR(rel=2)@10 where only relevance 2 and more "
            "counts, as in TREC DL",
        ),
        (
            lambda _: configs.locate_model("package:not-there"),
            "model: package:not-there: the package 'not_there' is not installed here.",
        ),
        (lambda here: configs.locate_model(f"{here}/m"), "model: HERE/m: there is no such directory"),
        (lambda here: checkpoints.weights_in(here / "m.pt"), "HERE/m.pt: there is no such file"),
        (lambda _: limited(SOURCE, 8), "document_tokens: got 9, but some/model reads at most 8 tokens. Use at most 8."),
        (
            lambda _: layered("bert", 5),
            "layers: got 5, but the model has 4 layers. Use 1 to 4, or a list of different positions from 0 to 3.",
        ),
        (
            lambda _: layered("modernbert", [1]),
            "layers: got [1], but the first layer of modernbert models lacks a norm that the remaining layers have. "
            "Use a list that starts with 0.",
        ),
        (
            lambda _: sentence_modules._check_prompts(SOURCE, {"query": "find: "}),  # type: ignore[arg-type]
            "query_prompt: some/model puts 'find: ' before every query. Write `query_prompt: 'find: '`.",
        ),
        (
            lambda _: unknown_token(),
            "end_token: '<e>' is not a single token of the model's vocabulary, but < e >. Write a token in the "
            "vocabulary's spelling.",
        ),
        (
            lambda _: Editing(
                *(None, SimpleNamespace(generates=True), None),  # type: ignore[arg-type]
                tokens=1,
                vocabulary=1,
                generator=None,
            ),
            "generator: got null, but these edits need a generator. Set it to a masked language model.",
        ),
        (
            lambda _: index.create("HNSW16,PQ8", 16),
            "search.index: 'HNSW16,PQ8': FAISS ranks by distance with it, not by inner product; accepted: another, "
            "such as HNSW32, HNSW32,SQ8, PQ48 or IVF1024,PQ48",
        ),
        (
            lambda _: lucene._package("jdk5py", "jdk5py<2"),
            "BM25 needs the package jdk5py: pip install 'jdk5py<2'",
        ),
        (
            lambda here: trec.read_ranking(written(here / "run.txt", b"q Q0 a\n")),
            "HERE/run.txt:1: expected 6 columns (query Q0 document rank score tag), got 3",
        ),
        (
            lambda here: trec.read_qrels(written(here / "qrels.txt", b"q 0 a 99999999999\n")),
            "HERE/qrels.txt:1: the relevance '99999999999' is not an integer of at most nine digits",
        ),
        (
            lambda here: trec.read_qrels(written(here / "qrels.txt", b"\n")),
            "HERE/qrels.txt: the file has no judgements",
        ),
        (
            lambda here: table_files.columns_of(written(here / "a.xlsx", b"")),
            "HERE/a.xlsx: this is not a table. Use one of .csv, .tsv, .jsonl, .json, .parquet, .txt, or TREC's qrels.",
        ),
        (
            lambda _: stages(near={"kind": "neighbours", "of": "lexical"}),
            "near: stages.near.of: 'lexical' has no vectors; accepted: a stage that has them",
        ),
        (
            lambda _: stages(ranker={"kind": "ranker", "of": "dense", "depth": 5}),
            "ranker: stages.ranker: it reads 'dense'; accepted: lexical",
        ),
        (
            lambda _: stages(more={"kind": "expansion", "of": "lexical"}),
            "more: stages.more: relevance, generate: accepted: one of them",
        ),
        (
            lambda _: check_teacher("x", {"a": Contender(rerank_url="http://a/v1/rerank")}, reads=True),
            "teacher: there is no contender 'x'. Use one of these: a.",
        ),
        (
            lambda _: check_teacher("a", {"a": Contender(embedder_url="http://a/v1/embeddings")}, reads=True),
            "teacher: the contender 'a' has no reranker with scores that could teach. Add one with a `reranker` or "
            "`rerank_url`.",
        ),
        (
            lambda _: check_teacher("a", {"a": Contender(rerank_url="http://a/v1/rerank")}, reads=False),
            "teacher: no loss reads the scores of 'a'. Use a loss such as `distillation`, or `teacher: null`.",
        ),
        (systems.read, "HERE: no system.json; accepted: a system's folder, as `export` writes it"),
        (
            lambda _: submit.places(argparse.Namespace(store="store", runs=Path("runs"), tune=None)),
            "--store store: is a place on this machine, and the job runs on the cluster; accepted: an absolute path "
            "that all nodes of the cluster see, or s3://BUCKET/PREFIX",
        ),
        (
            lambda _: deployable._check_budget(
                {"candidates": [{"system": "BM25"}], "budget": {"kept": False, "nearest": "BM25"}}
            ),
            "--system: no system of this run is within the budget. The nearest is 'BM25'. Name a system, or raise the "
            "limits.",
        ),
        (
            lambda here: job_package._check_assignments([f"start_from={here}/a.yaml"], "--set"),
            "--set: start_from=HERE/a.yaml: the file is not sent with a job; accepted: the key start_from in the "
            "experiment's own file, or a config of the repository",
        ),
    ],
)
def test_what_is_wrong_elsewhere(
    provoke: Callable[[Path], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_store, "store_digest", lambda *_: "11")
    with pytest.raises((UserError, ValueError)) as caught:
        provoke(tmp_path)
    assert str(caught.value).replace(str(tmp_path), "HERE") == message

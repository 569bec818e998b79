"""From queries to expansions, their ranks, a query reranker and its choice: every step, in one process and on Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from components import expansions, query_choice
from components.config import UserError
from components.cross_encoder import CrossEncoder
from components.fusion import FusionConfig, fuse
from components.generator_configs import GenerateConfig, GeneratorConfig
from components.pretrained import load_tokenizer
from components.query_reading import Reading
from components.relevance_model import RelevanceConfig
from components.tables import EXPANSIONS, QUERIES, check
from components.tables import RANKING as RANKED
from components.text import TokenStore
from tests import tiny, toy
from tests.trainings import lines
from tests.writers import write_generator
from workflows.cluster import Cluster
from workflows.steps import choose, expand, query_rerank
from workflows.steps.choose import answer_ranks, rank_groups
from workflows.steps.expand import FileConfig, expand_by_model, expand_by_relevance, expand_from_file
from workflows.steps.fuse import fuse_expansions
from workflows.steps.query_rerank import PredictConfig, candidates, predict
from workflows.steps.tokenize import TokenizeConfig, tokenize, tokenize_queries
from workflows.steps.train import train

RANKING = "components.losses.query_ranks.ranking"


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """Every query but q2 finds its own document and four others."""
    rows = {f"q{i}": [f"d{(i + 3 * k) % 40}" for k in range(5)] for i in range(24) if i != 2}
    return toy.write_ranking(tmp_path / "found", rows)


def place(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def by_relevance(out: Path, cluster: Cluster, data: Path, found: Path, splits: list[str], **config: Any) -> Any:
    options = RelevanceConfig(**{"number": 6, "terms": 2, "common": 1.0, **config})
    return expand_by_relevance(place(out), cluster, data=data, ranking=found, splits=splits, seed=[1], config=options)


def test_from_what_queries_find(tmp_path: Path, data: Path, found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = by_relevance(tmp_path / "out", toy.INLINE, data, found, ["train", "test"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "expansions.parquet", "queries.parquet", "qrels.parquet", "documents.parquet", "progress.json"
    }  # fmt: skip
    rows = check(pq.read_table(tmp_path / "out" / expansions.FILE), EXPANSIONS, what="out").to_pylist()
    texts = {
        row["doc_id"]: f"{row['title']} {row['text']}" for row in pq.read_table(data / "documents.parquet").to_pylist()
    }
    asked = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    for row in rows:
        whole = " ".join(texts[f"d{(int(row['query_id'][1:]) + 3 * k) % 40}"] for k in range(5)).split()
        assert set(row["text"].split()) <= set(whole)
        assert not set(row["text"].split()) & set(asked[row["query_id"]].split())
    assert {row["query_id"] for row in rows} == {f"q{i}" for i in range(24) if i % 3 or not i % 2} - {"q2"}
    assert summary["not_expanded"] == 1
    # Neither the size of a piece nor the splits asked for with it change what is drawn.
    monkeypatch.setattr(expand, "QUERIES_A_SHARD", 5)
    by_relevance(tmp_path / "again", toy.INLINE, data, found, ["test"])
    again = pq.read_table(tmp_path / "again" / expansions.FILE).to_pylist()
    assert again == [row for row in rows if int(row["query_id"][1:]) % 3 == 0]


def test_nothing_to_expand_from_is_an_error(tmp_path: Path, data: Path) -> None:
    nothing = toy.write_ranking(tmp_path / "nothing", {})
    with pytest.raises(UserError, match="none of 16 queries has an expansion"):
        by_relevance(tmp_path / "out", toy.INLINE, data, nothing, ["train"])


def test_an_interrupted_expansion_draws_only_what_is_left(
    tmp_path: Path, data: Path, found: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expand, "QUERIES_A_SHARD", 5)
    by_relevance(tmp_path / "wanted", toy.INLINE, data, found, ["train"])
    with monkeypatch.context() as power:
        toy.cut_off(power, expand.Sampler, 1)
        with pytest.raises(RuntimeError, match="power cut"):
            by_relevance(tmp_path / "out", toy.INLINE, data, found, ["train"])
    filled = toy.cut_off(monkeypatch, expand.Sampler, 9)
    by_relevance(tmp_path / "out", toy.INLINE, data, found, ["train"])
    assert len(filled) == 3  # of four
    ours, wanted = (tiny.contents(tmp_path / name) for name in ("out", "wanted"))
    assert ours.keys() == wanted.keys()
    assert all(ours[name] == wanted[name] for name in ours if name != "progress.json")


def test_through_ray_it_is_the_same(
    tmp_path: Path, data: Path, found: Path, ray: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expand, "QUERIES_A_SHARD", 4)
    by_relevance(tmp_path / "inline", toy.INLINE, data, found, ["train"], draws="sentence")
    by_relevance(tmp_path / "ray", ray, data, found, ["train"], draws="sentence")
    ours, theirs = (tiny.contents(tmp_path / name) for name in ("ray", "inline"))
    assert {k: v for k, v in ours.items() if k != "progress.json"} == {
        k: v for k, v in theirs.items() if k != "progress.json"
    }


def test_from_a_file(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "some.jsonl"
    rows = [{"_id": f"q{i}", "expansions": {"titles": f"ba *** co {i} *** ba"}} for i in (0, 6, 7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = FileConfig(path=str(path), field="titles", separator=" *** ")
    summary = expand_from_file(place(tmp_path / "out"), toy.INLINE, data=data, splits=["test"], config=config)
    asked = check(pq.read_table(tmp_path / "out" / "queries.parquet"), QUERIES, what="out")
    assert asked["query_id"].to_pylist() == ["q0#1", "q0#2", "q6#1", "q6#2"]
    assert summary == {"expansions": 4, "queries": 2, "a_query": 2.0, "not_expanded": 2}
    with pytest.raises(UserError, match="no expansion of a query of dev"):
        expand_from_file(place(tmp_path / "dev"), toy.INLINE, data=data, splits=["dev"], config=config)


def test_several_models_write_for_what_each_has_not_seen(
    tmp_path: Path, data: Path, ray: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []
    for seed in (0, 1):
        config = GeneratorConfig(model=str(write_generator(tmp_path / f"pretrained {seed}", seed=seed)))
        starts.append(toy.started(tmp_path / f"start {seed}", config))
    config = GenerateConfig(number=3, new_tokens=5, precision="fp32")

    def write(name: str, cluster: Cluster, models: list[Path]) -> dict[str, list[str]]:
        out = place(tmp_path / name)
        summary = expand_by_model(
            out, cluster, data=data, models=models, splits=["train", "test"], seed=[1], config=config
        )
        assert summary["generated"] == 3 * 20
        assert 0 < summary["tokens"] <= 3 * 20 * 6
        found: dict[str, list[str]] = {}
        for row in pq.read_table(out / expansions.FILE).to_pylist():
            found.setdefault(row["query_id"], []).append(row["text"])
        return found

    first, second, both = (write(n, toy.INLINE, m) for n, m in (("a", starts[:1]), ("b", starts[1:]), ("c", starts)))
    assert first != second
    for query, texts in both.items():
        assert texts == (first, second)[expansions.fold_of(query, 2)][query]
    monkeypatch.setattr(expand, "QUERIES_A_SHARD", 5)
    assert write("ray", ray, starts) == both


# From expansions to a choice


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Path]:
    """Expansions of all queries, what each finds, and their ranks. The first expansion finds the relevant document
    first, the k-th at k; q4's find nothing."""
    folder = tmp_path_factory.mktemp("chain")
    rows = {f"q{i}": [f"d{(i + 3 * k) % 40}" for k in range(5)] for i in range(24)}
    found = toy.write_ranking(folder / "found", rows)
    by_relevance(folder / "expanded", toy.INLINE, data, found, ["train", "dev", "test"])
    issued = {}
    for row in pq.read_table(folder / "expanded" / expansions.FILE).to_pylist():
        own, number = int(row["query_id"][1:]), row["number"]
        others = [f"d{(own + 1 + 2 * k) % 40}" for k in range(7)]
        if own != 4:
            issued[row["doc_id"]] = [*others[: number - 1], f"d{own}", *others[number - 1 :]][:4]
    ranking = toy.write_ranking(folder / "ranking", issued)
    ranks = place(folder / "ranks")
    answer_ranks(ranks, toy.INLINE, expanded=folder / "expanded", ranking=ranking, by_answer=False)
    return {"found": found, "expanded": folder / "expanded", "ranking": ranking, "ranks": ranks, "folder": folder}


def test_ranks_by_judgements(chain: dict[str, Path], data: Path) -> None:
    relevant: dict[str, set[str]] = {}
    for row in pq.read_table(data / "qrels.parquet").to_pylist():
        if row["relevance"] > 0:
            relevant.setdefault(row["query_id"], set()).add(row["doc_id"])
    issued: dict[str, list[str]] = {}
    for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist():
        issued.setdefault(row["query_id"], []).append(row["doc_id"])
    for row in pq.read_table(chain["ranks"] / "ranks.parquet").to_pylist():
        hits = [at for at, one in enumerate(issued.get(row["doc_id"], []), 1) if one in relevant[row["query_id"]]]
        assert row["rank"] == (hits[0] if hits else None)


def test_groups_have_ranks_and_queries_that_say_something(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    out = place(tmp_path / "groups")
    asked = {"data": data, "split": "train", "max_rank": 101, "queries": None, "seed": [1]}
    summary = rank_groups(out, toy.INLINE, ranks=chain["ranks"], candidates=None, **asked)
    ranks = {row["doc_id"]: row["rank"] for row in pq.read_table(chain["ranks"] / "ranks.parquet").to_pylist()}
    rows = pq.read_table(out / "groups.parquet").to_pylist()
    assert "q4" not in {row["query_id"] for row in rows}  # nothing finds anything: all of MAX_RANK
    assert summary["groups"] == len(rows) < summary["of"]
    for row in rows:
        assert row["targets"] == [101 if ranks[one] is None else ranks[one] for one in row["doc_ids"]]
        assert len(set(row["targets"])) > 1
    ranks = _same_ranks(chain, tmp_path)
    with pytest.raises(UserError, match="no query has expansions of which one finds more"):
        rank_groups(place(tmp_path / "none"), toy.INLINE, ranks=ranks, candidates=None, **asked)


def test_groups_of_fewer_candidates_are_drawn(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    asked = {"data": data, "split": "train", "max_rank": 101, "queries": None, "ranks": chain["ranks"], "seed": [1]}
    made = {}
    for name, most in (("all", None), ("two", 2), ("again", 2), ("many", 1000)):
        rank_groups(place(tmp_path / name), toy.INLINE, candidates=most, **asked)
        made[name] = {row["query_id"]: row for row in pq.read_table(tmp_path / name / "groups.parquet").to_pylist()}
    assert made["two"] == made["again"]
    assert made["many"] == made["all"]
    firsts = 0
    for query, row in made["two"].items():
        whole = made["all"][query]
        assert len(row["doc_ids"]) == len(set(row["targets"])) == 2
        assert set(zip(row["doc_ids"], row["targets"], strict=True)) <= set(
            zip(whole["doc_ids"], whole["targets"], strict=True)
        )
        firsts += row["doc_ids"] == whole["doc_ids"][:2]
    assert firsts < len(made["two"])  # a draw, and not the first ones


def test_groups_of_fewer_queries_are_drawn(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    """In their order, by the seed alone."""
    made = {}
    for name, queries, seed in (("all", None, 1), ("few", 5, 1), ("again", 5, 1), ("other", 5, 2), ("many", 1000, 1)):
        rank_groups(
            place(tmp_path / name), toy.INLINE, data=data, ranks=chain["ranks"], split="train", max_rank=101,
            queries=queries, candidates=None, seed=[seed],
        )  # fmt: skip
        made[name] = pq.read_table(tmp_path / name / "groups.parquet").to_pylist()
    assert made["few"] == made["again"] == [row for row in made["all"] if row in made["few"]]
    assert len(made["few"]) == 5
    assert made["few"] not in (made["all"][:5], made["other"])
    assert made["many"] == made["all"]


def _same_ranks(chain: dict[str, Path], tmp_path: Path) -> Path:
    from components.tables import ANSWER_RANKS, write

    rows = pq.read_table(chain["ranks"] / "ranks.parquet")
    import pyarrow as pa

    out = place(tmp_path / "same")
    table = rows.set_column(2, "rank", pa.array([3] * len(rows), pa.int32()))
    write(out / "ranks.parquet", table, ANSWER_RANKS)
    return out


@pytest.fixture(scope="module")
def rerankers(chain: dict[str, Path], data: Path, ranker: Path) -> Any:
    """The candidates of a reranker that reads passages (`rd`) or not (`ri`), and their tokens."""
    made = {}
    for kind, ranking in (("ri", None), ("rd", chain["ranking"])):
        out, tokens = place(chain["folder"] / kind), place(chain["folder"] / f"{kind} tokens")
        candidates(out, toy.INLINE, data=data, expanded=chain["expanded"], ranking=ranking)
        tokenize(tokens, toy.INLINE, data=out, model=ranker, config=TokenizeConfig())
        made[kind] = (out, tokens)
    return made


@pytest.mark.parametrize("kind", ["ri", "rd"])
def test_predictions_are_what_the_model_says_of_the_papers_template(
    chain: dict[str, Path], data: Path, rerankers: Any, ranker: Path, tmp_path: Path, kind: str
) -> None:
    """`question ? expansion`, and for RD the first passage as the second text, through Hugging Face's own tokenizer."""
    view, tokens = rerankers[kind]
    out = place(tmp_path / "out")
    config = PredictConfig(precision="fp32", shard=30)
    predict(out, toy.INLINE, expanded=chain["expanded"], candidates=view, tokens=tokens, reranker=ranker, config=config)
    predicted = {row["doc_id"]: row["score"] for row in pq.read_table(out / query_rerank.PREDICTED).to_pylist()}
    model, tokenizer = CrossEncoder.load(ranker / "model").eval(), load_tokenizer(ranker / "model")
    asked = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    top = {row["query_id"]: row["doc_id"] for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist()
           if row["rank"] == 1}  # fmt: skip
    documents = {row["doc_id"]: f"{row['title']} {row['text']}".strip()
                 for row in pq.read_table(data / "documents.parquet").to_pylist()}  # fmt: skip
    rows = pq.read_table(chain["expanded"] / expansions.FILE).to_pylist()
    assert len(predicted) == len(rows)
    for row in [row for row in rows if row["query_id"] != "q4"][::7]:
        texts = [f"{asked[row['query_id']]} ? {row['text']}"]
        if kind == "rd":
            texts.append(documents[top[row["doc_id"]]])
        wrapped = tokenizer(*texts, truncation="longest_first" if kind == "rd" else True, max_length=24)
        from components.text import Batch

        batch = Batch(*(torch.tensor([wrapped[name]]) for name in ("input_ids", "attention_mask", "token_type_ids")))
        if kind == "ri":
            batch = batch._replace(segments=None)
        with torch.inference_mode():
            assert predicted[row["doc_id"]] == pytest.approx(model(batch).item(), abs=1e-5)


def test_passages_are_looked_up_once_each(chain: dict[str, Path], rerankers: Any) -> None:
    view, _ = rerankers["rd"]
    names = pq.read_table(view / "documents.parquet")["doc_id"].to_pylist()
    first = [
        row["doc_id"] for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist() if row["rank"] == 1
    ]
    passages = [name for name in names if "#" not in name]
    assert sorted(passages) == sorted(set(first))
    top = np.load(view / "top.npy")
    assert (top >= len(names) - len(passages) - 1).all()
    assert {names[at] for at in top} == set(first) | {"#"}  # q4's read an empty one


@pytest.mark.parametrize("kind", ["ri", "rd"])
def test_a_trained_reranker_chooses_better_than_the_generator(
    chain: dict[str, Path], data: Path, rerankers: Any, ranker: Path, tmp_path: Path, kind: str
) -> None:
    """It learns its training queries' ranks: its choices come nearer to the oracle's than the first expansions, here
    the worst, are."""
    view, tokens = rerankers[kind]
    worst = _turned_round(chain, tmp_path)
    groups = place(tmp_path / "groups")
    rank_groups(
        groups, toy.INLINE, data=data, ranks=worst, split="train", max_rank=101, queries=None, candidates=None, seed=[1]
    )
    config = toy.train_config(
        steps=60, batch=8, learning_rate=5e-3, schedule="noam", clip=None, log_every=20,
        losses=[{"function": RANKING, "options": {"alpha": 0.1}}],
        validate_on_dev={"every": 30, "measure": "accuracy"},
    )  # fmt: skip
    out = place(tmp_path / "out")
    summary = train(
        out, toy.INLINE, objective="query_reranker", rows=groups, dev=groups, data=view, tokens=tokens, start=ranker,
        seed=[1], config=config,
    )  # fmt: skip
    assert summary["peak_learning_rate"] == pytest.approx(5e-3)
    assert summary["noam_multiplier"] == pytest.approx(5e-3 * 6**0.5)
    assert summary["best"]["value"] > 0.5
    losses = [line["ranking (group)"] for line in lines(out) if "ranking (group)" in line]
    assert losses[-1] < 0.7 * losses[0]
    predicted = place(tmp_path / "predicted")
    predict(
        predicted, toy.INLINE, expanded=chain["expanded"], candidates=view, tokens=tokens, reranker=out,
        config=PredictConfig(precision="fp32"),
    )  # fmt: skip
    ranks = {row["doc_id"]: row["rank"] or 101 for row in pq.read_table(worst / "ranks.parquet").to_pylist()}
    means = {}
    for name, scores in (("first", None), ("reranker", predicted), ("oracle", worst)):
        chosen = place(tmp_path / name)
        choose.choose(
            chosen, toy.INLINE, data=data, expanded=chain["expanded"], ranking=chain["ranking"], scores=scores,
            otherwise=chain["found"], split="train", number=None,
        )  # fmt: skip
        choices = pq.read_table(chosen / choose.CHOICES)["doc_id"].to_pylist()
        means[name] = np.mean([ranks[one] for one in choices])
    assert means["oracle"] <= means["reranker"] < means["first"]


def _turned_round(chain: dict[str, Path], tmp_path: Path) -> Path:
    """Ranks that say that the last expansion is the best."""
    import pyarrow as pa

    from components.tables import ANSWER_RANKS, write

    table = pq.read_table(chain["ranks"] / "ranks.parquet")
    numbers = [int(name.partition("#")[2]) for name in table["doc_id"].to_pylist()]
    out = place(tmp_path / "turned")
    write(out / "ranks.parquet", table.set_column(2, "rank", pa.array([70 - 10 * n for n in numbers], pa.int32())),
          ANSWER_RANKS)  # fmt: skip
    return out


def test_all_expansions_in_a_row(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    out = place(tmp_path / "concat")
    expand.concatenated(out, toy.INLINE, data=data, expanded=chain["expanded"])
    each: dict[str, list[str]] = {}
    for row in pq.read_table(chain["expanded"] / expansions.FILE).to_pylist():
        each.setdefault(row["query_id"], []).append(row["text"])
    for row in pq.read_table(out / expansions.FILE).to_pylist():
        assert (row["number"], row["text"]) == (1, " ".join(each.pop(row["query_id"])))
    assert not each


# The question as it is, what is chosen, and all that was found


@pytest.fixture(scope="module")
def questioned(chain: dict[str, Path], data: Path) -> Path:
    """The expansions with the questions of the test split beside them."""
    out = place(chain["folder"] / "questioned")
    expand.with_question(out, toy.INLINE, data=data, expanded=chain["expanded"], splits=["test", "train", "dev"])
    return out


def test_the_question_is_a_candidate(chain: dict[str, Path], questioned: Path, data: Path, tmp_path: Path) -> None:
    """With the number 0, before all others; never a generator's first choice, and there with any number of others."""
    rows = pq.read_table(questioned / expansions.FILE).to_pylist()
    before = pq.read_table(chain["expanded"] / expansions.FILE).to_pylist()
    assert [row for row in rows if row["number"]] == before
    assert sorted(row["query_id"] for row in rows if not row["number"]) == sorted(f"q{i}" for i in range(24))
    numbers = [(row["query_id"], row["number"]) for row in rows]
    assert numbers == sorted(numbers, key=lambda one: ([q for q, n in numbers if n == 0].index(one[0]), one[1]))
    asked = {row["query_id"]: row["text"] for row in pq.read_table(questioned / "queries.parquet").to_pylist()}
    plain = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    assert all(asked[f"{query}#0"] == f"{text} ?" for query, text in plain.items())

    scores = place(tmp_path / "scores")
    names = [row["doc_id"] for row in rows]
    table = {"doc_id": names, "score": [0.0 if name.endswith("#0") else 1.0 for name in names]}
    pq.write_table(pa.table(table, schema=query_choice.PREDICTIONS), scores / "predicted.parquet")

    def chosen(name: str, scores: Path | None, number: int | None) -> set[int]:
        out = place(tmp_path / name)
        choose.choose(
            out, toy.INLINE, data=data, expanded=questioned, ranking=chain["ranking"], scores=scores,
            otherwise=chain["found"], split="test", number=number,
        )  # fmt: skip
        return set(pq.read_table(out / choose.CHOICES)["number"].to_pylist())

    assert chosen("first", None, None) == {1}
    assert chosen("all", scores, None) == chosen("one", scores, 1) == {0}


def test_what_was_chosen_is_asked_instead(chain: dict[str, Path], data: Path, tokens: Path, retriever: Path,
                                           tmp_path: Path) -> None:  # fmt: skip
    """A collection with other queries, whose documents' tokens are those that are there."""
    choices, out, made, whole = (place(tmp_path / name) for name in ("choices", "out", "made", "whole"))
    choose.choose(
        choices, toy.INLINE, data=data, expanded=chain["expanded"], ranking=chain["ranking"], scores=None,
        otherwise=chain["found"], split="test", number=None,
    )  # fmt: skip
    expand.chosen_queries(out, toy.INLINE, data=data, choices=choices, split="test")
    first = {
        row["query_id"]: row["text"] for row in pq.read_table(chain["expanded"] / expansions.FILE).to_pylist()[::-1]
    }
    for row in pq.read_table(out / "queries.parquet").to_pylist():
        text = next(one["text"] for one in pq.read_table(data / "queries.parquet").to_pylist()
                    if one["query_id"] == row["query_id"])  # fmt: skip
        assert row["text"] == f"{text} ? {first[row['query_id']]}"
    tokenize_queries(made, toy.INLINE, data=out, model=retriever, documents=tokens, config=TokenizeConfig())
    tokenize(whole, toy.INLINE, data=out, model=retriever, config=TokenizeConfig())
    ours, theirs = (
        {name: digest for name, digest in tiny.contents(folder).items() if "/" not in name and name != "progress.json"}
        for folder in (made, whole)
    )
    assert ours == theirs


@pytest.mark.parametrize("how", ["interleave", "reciprocal"])
def test_all_that_expansions_find_is_fused_in_any_pieces(
    chain: dict[str, Path], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    """Against the fusion of each query's lists by itself; what no expansion finds keeps the question's ranking."""
    config = FusionConfig(how=how, depth=9)
    where = {"data": data, "expanded": chain["expanded"], "ranking": chain["ranking"], "otherwise": chain["found"]}
    whole = place(tmp_path / "whole")
    fuse_expansions(whole, toy.INLINE, **where, split="train", config=config)
    monkeypatch.setattr("components.tables.pieces.__kwdefaults__", {"columns": None, "rows": 5})
    parts = place(tmp_path / "parts")
    fuse_expansions(parts, toy.INLINE, **where, split="train", config=config)
    found = pq.read_table(whole / "ranking.parquet")
    assert pq.read_table(parts / "ranking.parquet") == found
    lists: dict[str, dict[str, list[Any]]] = {}
    for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist():
        query = row["query_id"].partition("#")[0]
        lists.setdefault(query, {}).setdefault(row["query_id"], []).append({**row, "query_id": query})
    for query in set(found["query_id"].to_pylist()) - {"q4"}:
        own = [pa.Table.from_pylist(rows, schema=RANKED) for rows in lists[query].values()]
        wanted = fuse(own, config).to_pylist()
        assert [row for row in found.to_pylist() if row["query_id"] == query] == wanted
    assert len(found.filter(pc.equal(found["query_id"], "q4"))) == 5


def test_expansions_of_several_generators_are_joined(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    """Nothing is drawn or retrieved again: what two generators have of different queries stands in one place."""
    parts = []
    for split in ("train", "dev"):
        by_relevance(tmp_path / split, toy.INLINE, data, chain["found"], [split])
        parts.append(tmp_path / split)
    out = place(tmp_path / "out")
    summary = expand.joined_expansions(
        out, toy.INLINE, data=data, expanded=parts, rankings=[chain["ranking"]], ranks=[chain["ranks"]]
    )
    tables = [pq.read_table(part / expansions.FILE) for part in parts]
    assert pq.read_table(out / expansions.FILE) == pa.concat_tables(tables)
    assert summary["expansions"] == sum(map(len, tables))
    assert pq.read_table(out / "ranking.parquet") == pq.read_table(chain["ranking"] / "ranking.parquet")
    assert pq.read_table(out / "ranks.parquet") == pq.read_table(chain["ranks"] / "ranks.parquet")


# The public code's templates


@pytest.mark.parametrize("kind", ["ri", "rd"])
def test_the_public_codes_templates(
    chain: dict[str, Path], data: Path, ranker: Path, tmp_path: Path, kind: str
) -> None:
    """`[CLS] question [SEP] expansion [SEP] (title [SEP] passage [SEP])`, put together by hand, of one segment."""
    view, made = place(tmp_path / "view"), place(tmp_path / "tokens")
    query_rerank.candidates_released(
        view, toy.INLINE, data=data, expanded=chain["expanded"], ranking=chain["ranking"] if kind == "rd" else None
    )
    tokenize(made, toy.INLINE, data=view, model=ranker, config=TokenizeConfig())
    reading = Reading(view, TokenStore(made, ranker / "model"), 24)
    tokenizer = load_tokenizer(ranker / "model")
    asked = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    top = {row["query_id"]: row["doc_id"] for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist()
           if row["rank"] == 1}  # fmt: skip
    documents = {row["doc_id"]: row for row in pq.read_table(data / "documents.parquet").to_pylist()}
    rows = pq.read_table(chain["expanded"] / expansions.FILE).to_pylist()
    batch = reading.batch(np.arange(len(rows)))
    assert batch.segments is None
    assert reading.lengths(np.arange(len(rows))).tolist() == batch.mask.sum(1).tolist()
    for at, row in enumerate(rows):
        texts = [asked[row["query_id"]], row["text"]]
        if kind == "rd":
            first = documents.get(top.get(row["doc_id"], ""), {"title": "", "text": ""})
            texts += [first["title"], first["text"]]
        parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        room, wanted = 24 - 1 - len(parts), [tokenizer.cls_token_id]
        for ids in parts:
            wanted += [*ids[:room], tokenizer.sep_token_id]
            room -= len(ids[:room])
        assert batch.ids[at][batch.mask[at] > 0].tolist() == wanted

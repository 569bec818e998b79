"""A retriever's scores over the batch and the blocks beside them, against loops over strings: what counts and what not.

Texts and queries stand under several ids, on purpose: those are what the masks are about.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from sparring.components.data.tables import QUERIES, document_text
from sparring.components.losses.in_batch import both_directions, hardness_weighted
from sparring.components.losses.listwise import cross_entropy, listnet
from sparring.components.losses.same_tower import pair, released_pair, samtone
from sparring.components.losses.simlm import contrastive, released
from sparring.components.objectives.parts.scoring import batch_scores, group_scores
from sparring.components.objectives.retriever import Retriever
from sparring.components.scores import Block, Blocks, Scores
from sparring.components.training.objective import ObjectiveInputs
from tests.support import toy
from tests.support.trainings import visits

# Query q10 asks what q0 asks, q11 what q1 asks; documents d30 and d31 say what d0 and d1 say. Relevant are to q0 d0 and
# d9, to q10 d10, to q1 d1, to q11 d11, to q3 d3 and d12, to q6 d6 and d15, to others the document of their number.
ROWS = [
    {"query_id": "q0", "doc_ids": ["d0", "d5", "d31"]},
    {"query_id": "q1", "doc_ids": ["d1", "d9"]},  # d9 is relevant to q0
    {"query_id": "q10", "doc_ids": ["d10", "d7"]},  # asks what q0 asks, and has another document
    {"query_id": "q0", "doc_ids": ["d9", "d30", "d6"]},  # q0 again with its other document; d30 says what d0 says
    {"query_id": "q11", "doc_ids": ["d31", "d8"]},  # asks what q1 asks; d31 says what d1 says
    {"query_id": "q3", "doc_ids": ["d3", "d12", "d30", "d5"], "targets": [0.5, 1.0, 0.0, 0.0]},  # d12 is its own
    {"query_id": "q5", "doc_ids": ["d12", "d5"]},  # aims at q3's document, which no judgement gives it
    {"query_id": "q4", "doc_ids": ["d6", "d4"], "targets": [0.0, 1.0]},  # d6 is relevant to q6
    {"query_id": "q6", "doc_ids": ["d6", "d15", "d2"]},  # only the first is targeted
    {"query_id": "q2", "doc_ids": ["d2", "d7", "d8", "d7"]},  # the same negative twice
    {"query_id": "q7", "doc_ids": ["d7", "d1"], "targets": [0.0, 0.0]},  # aims at nothing
    {"query_id": "q8", "doc_ids": ["d3", "d21"]},  # aims at the document of q3 that is not q3's own here
    {"query_id": "q4", "doc_ids": ["d2", "d22"]},  # q4 again, now aiming at q2's document
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, data: Path, retriever: Path) -> dict[str, Path]:
    """The toy collection with two queries that ask what others ask, its tokens and the groups."""
    from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize

    folder = tmp_path_factory.mktemp("world")
    (folder / "data").mkdir()
    (folder / "tokens").mkdir()
    for name in ("documents", "qrels"):
        pq.write_table(pq.read_table(data / f"{name}.parquet"), folder / "data" / f"{name}.parquet")
    queries = pq.read_table(data / "queries.parquet").to_pylist()
    for i, query in enumerate(queries):  # so that no two ask the same but those that are meant to
        query["text"] = f"{toy.WORDS[i]} {toy.WORDS[(i + 1) % 32]}"
    queries[10]["text"], queries[11]["text"] = queries[0]["text"], queries[1]["text"]
    pq.write_table(pa.Table.from_pylist(queries, schema=QUERIES), folder / "data" / "queries.parquet")
    tokenize(folder / "tokens", toy.INLINE, data=folder / "data", model=retriever, config=TokenizeConfig())
    toy.write_groups(folder / "groups", ROWS)
    return {"data": folder / "data", "tokens": folder / "tokens", "groups": folder / "groups", "model": retriever}


@pytest.fixture(scope="module")
def objective(world: dict[str, Path]) -> Retriever:
    output = Retriever(
        ObjectiveInputs(
            model=world["model"] / "model",
            rows=world["groups"],
            data=world["data"],
            tokens=world["tokens"],
            losses=toy.train_config().losses,
            max_tokens=10_000,
            recompute=False,
        ),
    )
    output.eval()
    return output


class Row(NamedTuple):
    """One row of the batch in strings."""

    query: str
    documents: list[str]
    targets: dict[str, float]
    positive: str | None
    labelled: set[str]


@pytest.fixture(scope="module")
def rows(world: dict[str, Path]) -> list[Row]:
    documents = pq.read_table(world["data"] / "documents.parquet").to_pylist()
    text = {row["doc_id"]: document_text(row["title"], row["text"]) for row in documents}
    asks = {row["query_id"]: row["text"] for row in pq.read_table(world["data"] / "queries.parquet").to_pylist()}
    qrels = pq.read_table(world["data"] / "qrels.parquet").to_pylist()
    result = []
    for row in ROWS:
        inputs: Any = row.get("targets") or [1.0] + [0.0] * (len(row["doc_ids"]) - 1)
        targets: dict[str, float] = {}
        for name, target in zip(row["doc_ids"], inputs, strict=True):
            targets.setdefault(text[name], target)
        best = max(targets, key=lambda single: targets[single])
        query = asks[str(row["query_id"])]
        existing = {text[q["doc_id"]] for q in qrels if asks[q["query_id"]] == query and q["relevance"] > 0}
        result.append(Row(query, list(targets), targets, best if targets[best] > 0 else None, existing))
    return result


class Vectors(NamedTuple):
    """What the model makes of each string."""

    queries: dict[str, Tensor]
    documents: dict[str, Tensor]


@pytest.fixture(scope="module")
def vectors(objective: Retriever, rows: list[Row]) -> Vectors:
    queries, documents = {}, {}
    for i, row in enumerate(rows):
        batch = objective.collate(visits([i]))
        with torch.no_grad():
            requests, message = objective.encode(batch)
        queries[row.query] = requests[0]
        for c, text in enumerate(dict.fromkeys(row.documents)):
            documents[text] = message[batch.columns[0, batch.where[0]]][c]
    return Vectors(queries, documents)


def scored(objective: Retriever, duplicates: Any, order: list[int] | None = None) -> Scores:
    batch = objective.collate(visits(order or list(range(len(ROWS)))))
    with torch.no_grad():
        return batch_scores(*objective.encode(batch), batch, duplicates)


def check(block: Block | Scores, row: int, wanted: list[Tensor]) -> None:
    """The scores of a row's pairs that count, as a multiset."""
    values = block.scores if isinstance(block, Block) else block.student
    result = values[row][block.where[row]].sort().values
    if wanted:
        torch.testing.assert_close(result, torch.stack(wanted).sort().values, rtol=1e-4, atol=1e-5)
    else:
        assert not len(result)


def test_the_candidates_where_duplicates_count(objective: Retriever, rows: list[Row], vectors: Vectors) -> None:
    """Every row's candidates stand for themselves. What says what a row's target says is a negative; other relevant
    documents are left out as ever."""
    scores = scored(objective, "count")
    for i, row in enumerate(rows):
        wanted = []
        for j, second in enumerate(rows):
            for text in second.documents:
                if i == j or text not in row.labelled or row.targets.get(text, 0) > 0:
                    if i == j and text in row.labelled and row.targets[text] <= 0:
                        continue
                    wanted.append(vectors.queries[row.query] @ vectors.documents[text])
        check(scores, i, wanted)
        assert sorted(scores.target[i][scores.target[i] > 0].tolist()) == sorted(t for t in row.targets.values() if t)
        position = scores.target[i].argmax()
        if row.positive:
            actual = vectors.queries[row.query] @ vectors.documents[row.positive]
            torch.testing.assert_close(scores.student[i, position], actual, rtol=1e-4, atol=1e-5)


def test_queries_against_queries(objective: Retriever, rows: list[Row], vectors: Vectors) -> None:
    """Each other query once; where duplicates count, those of all other rows."""
    mask, count = (scored(objective, duplicates).others["query-query"] for duplicates in ("mask", "count"))
    for i, row in enumerate(rows):
        query = vectors.queries[row.query]
        check(mask, i, [query @ vectors.queries[text] for text in {row.query for row in rows} - {row.query}])
        check(count, i, [query @ vectors.queries[second.query] for j, second in enumerate(rows) if j != i])


def test_documents_against_queries(objective: Retriever, rows: list[Row], vectors: Vectors) -> None:
    """Queries that the row's document is relevant to, or that a row asks whose document says the same, are out."""
    mask, count = (scored(objective, duplicates).others["document-query"] for duplicates in ("mask", "count"))
    for i, row in enumerate(rows):
        if row.positive is None:
            continue  # it has nothing to be scored; its loss is 0
        document = vectors.documents[row.positive]
        out = {item.query for item in rows if row.positive in item.labelled or item.positive == row.positive} | {
            row.query
        }
        check(mask, i, [document @ vectors.queries[text] for text in {row.query for row in rows} - out])
        check(
            count,
            i,
            [
                document @ vectors.queries[second.query]
                for j, second in enumerate(rows)
                if j != i
                and (
                    row.positive not in second.labelled or second.query == row.query or second.positive == row.positive
                )
            ],
        )


def test_documents_against_documents(objective: Retriever, rows: list[Row], vectors: Vectors) -> None:
    """The other rows' own documents: each text once, but for those that are relevant to the row's query."""
    mask, count = (scored(objective, duplicates).others["document-document"] for duplicates in ("mask", "count"))
    for i, row in enumerate(rows):
        if row.positive is None:
            continue
        document = vectors.documents[row.positive]
        out = {item.positive for item in rows if item.query == row.query} | row.labelled | {row.positive, None}
        texts = {row.positive for row in rows if row.positive not in out}
        check(mask, i, [document @ vectors.documents[text] for text in texts if text])
        check(
            count,
            i,
            [
                document @ vectors.documents[second.positive]
                for j, second in enumerate(rows)
                if j != i
                and second.positive
                and (
                    second.positive not in row.labelled or second.query == row.query or second.positive == row.positive
                )
            ],
        )


def test_documents_against_all_candidates(objective: Retriever, rows: list[Row], vectors: Vectors) -> None:
    """Those that count against the query and are not its targets: mined negatives of all rows too."""
    for duplicates in ("mask", "count"):
        scores = scored(objective, duplicates)
        block = scores.others["document-candidate"]
        assert torch.equal(block.where, scores.where & (scores.target <= 0))
    scores = scored(objective, "mask")
    texts = {text for row in rows for text in row.documents}
    for i, row in enumerate(rows):
        if row.positive is not None:
            out = row.labelled | {text for text, target in row.targets.items() if target > 0}
            wanted = [vectors.documents[row.positive] @ vectors.documents[text] for text in texts - out]
            check(scores.others["document-candidate"], i, wanted)


def test_documents_against_mined_negatives(objective: Retriever, rows: list[Row], vectors: Vectors) -> None:
    """What some row holds without targeting it: each text once; where duplicates count, as often as it is held."""
    mask, count = (scored(objective, duplicates).others["document-mined"] for duplicates in ("mask", "count"))
    mined = [text for row in rows for text in row.documents if row.targets[text] <= 0]
    for i, row in enumerate(rows):
        if row.positive is not None:
            document = vectors.documents[row.positive]
            out = row.labelled | {text for text, target in row.targets.items() if target > 0}
            check(mask, i, [document @ vectors.documents[text] for text in set(mined) - out])
            spared = {text for text in row.labelled if row.targets.get(text, 0) <= 0}
            check(count, i, [document @ vectors.documents[text] for text in mined if text not in spared])


def test_a_query_is_spared_what_answers_its_duplicate(objective: Retriever) -> None:
    """d10 is relevant to q10, which asks what q0 asks, under another id: no negative of q0's rows."""
    batch = objective.collate(visits(list(range(len(ROWS)))))
    scores = batch_scores(*objective.encode(batch), batch)
    d10 = batch.document_keys.tolist().index(10)
    assert not scores.where[0, d10]
    assert not scores.where[3, d10]
    assert scores.where[1, d10]


def test_a_group_does_not_count_what_is_relevant_without_being_a_target(objective: Retriever) -> None:
    """q6's d15 and q0's copy of d0, d30; of what a row targets, and of what answers others alone, all counts."""
    batch = objective.collate(visits(list(range(len(ROWS)))))
    where = group_scores(*objective.encode(batch), batch).where
    assert where[8].tolist() == [True, False, True, False]
    assert where[3].tolist() == [True, False, True, False]
    assert where[5].tolist() == [True] * 4
    assert where[1].tolist() == [True, True, False, False]


def test_in_a_batch_without_duplicates_the_switch_changes_nothing(objective: Retriever) -> None:
    batch = objective.collate(visits([0, 7, 9]))
    representations = objective.encode(batch)
    for loss in (samtone, pair, both_directions, released):
        a, b = (loss(batch_scores(*representations, batch, d), temperature=0.5) for d in ("mask", "count"))
        torch.testing.assert_close(a, b)


def test_duplicates_that_count_cost(objective: Retriever) -> None:
    """In a batch of twins each row has a copy of its document, and of its query, for a negative: ln 2 at the least."""
    batch = objective.collate(visits([0, 0]))
    representations = objective.encode(batch)
    for loss in (pair, released):
        masked, counted = (loss(batch_scores(*representations, batch, d), temperature=0.02) for d in ("mask", "count"))
        assert (counted > masked + 0.1 * torch.log(torch.tensor(2.0))).all()


OVER_THE_BATCH = {
    "plain": cross_entropy,
    "listnet": listnet,
    "both directions": both_directions,
    "hardness": partial(hardness_weighted, both_directions=True),
    "samtone": samtone,
    "samtone, document side": partial(samtone, query_side=False, document_side=True),
    "samtone, both sides, one direction": partial(samtone, document_side=True, both_directions=False),
    "pair": pair,
    "released pair": released_pair,
    "simlm": contrastive,
    "released simlm": released,
}


@pytest.mark.parametrize("loss", OVER_THE_BATCH.values(), ids=OVER_THE_BATCH)
def test_a_twin_in_the_batch_is_as_none_unless_it_counts(objective: Retriever, loss: Any) -> None:
    alone = loss(scored(objective, "mask", [0, 7, 9]), temperature=0.5)
    twins = loss(scored(objective, "mask", [0, 7, 9, 0]), temperature=0.5)
    torch.testing.assert_close(twins, torch.cat([alone, alone[:1]]), rtol=1e-4, atol=1e-5)
    counted = loss(scored(objective, "count", [0, 7, 9, 0]), temperature=0.5)
    assert counted[0] > alone[0] + 0.01


@pytest.mark.parametrize("duplicates", ["mask", "count"])
def test_the_order_of_rows_does_not_matter(objective: Retriever, duplicates: str) -> None:
    order = [7, 12, 2, 9, 0, 4, 10, 1, 3, 11, 8, 6, 5]
    for loss in (samtone, pair, released_pair, both_directions, released):
        options = {"document_side": True} if loss is samtone else {}
        values = loss(scored(objective, duplicates), temperature=0.5, **options)
        moved = loss(scored(objective, duplicates, order), temperature=0.5, **options)
        torch.testing.assert_close(moved, values[order], rtol=1e-4, atol=1e-5)
        assert (values == 0).nonzero().tolist() == [[10]]  # the row that aims at nothing


def test_only_the_blocks_that_losses_look_at_are_made(objective: Retriever) -> None:
    def asked(loss: Any, **options: Any) -> set[str]:
        scores = scored(objective, "mask")
        loss(scores, **options)
        return set(scores.others)

    assert asked(samtone) == {"query-query", "document-query"}
    assert asked(samtone, both_directions=False) == {"query-query"}
    assert asked(pair) == {"document-candidate"}
    assert asked(released_pair) == {"document-query", "document-mined"}
    assert asked(released, query_query=False) == {"document-query", "document-document"}


def test_a_block_is_made_once() -> None:
    output = []

    def make() -> Block:
        output.append(1)
        return Block(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool))

    blocks = Blocks({"query-query": make})
    assert blocks["query-query"] is blocks["query-query"]
    assert output == [1]
    with pytest.raises(KeyError):
        blocks["query-document"]


def test_terms_of_both_kinds_stand_side_by_side(objective: Retriever, world: dict[str, Path]) -> None:
    """Each term is computed over the batch it asks for."""
    function = "components.losses.same_tower.samtone"
    losses = [
        {"function": function, "over": "batch", "duplicates": duplicates, "options": {"temperature": 0.5}}
        for duplicates in ("mask", "count")
    ]
    output = Retriever(
        ObjectiveInputs(
            model=world["model"] / "model",
            rows=world["groups"],
            data=world["data"],
            tokens=world["tokens"],
            losses=toy.train_config(losses=losses).losses,
            max_tokens=40,
            recompute=True,
        ),
    )
    output.eval()
    batch = output.collate(visits(list(range(len(ROWS)))))
    terms = output.terms(output.encode(batch), batch)
    assert list(terms) == ["samtone (batch)", "samtone (batch) 2"]
    for term, duplicates in zip(terms.values(), ("mask", "count"), strict=True):
        wanted = samtone(scored(objective, duplicates), temperature=0.5).sum()
        torch.testing.assert_close(term.value.detach(), wanted, rtol=1e-4, atol=1e-4)
    assert terms["samtone (batch) 2"].value > terms["samtone (batch)"].value


def test_pieces_and_recomputing_change_no_gradient(world: dict[str, Path]) -> None:
    """One chunk or many: what a block is made of is cut and put together as everything is."""
    losses = [
        {"function": f"components.losses.{function}", "over": "batch", "options": {"temperature": 0.5}}
        for function in ("same_tower.samtone", "same_tower.pair", "simlm.released")
    ]
    result = []
    for max_tokens, recompute in ((10_000, False), (40, False), (40, True)):
        output = Retriever(
            ObjectiveInputs(
                model=world["model"] / "model",
                rows=world["groups"],
                data=world["data"],
                tokens=world["tokens"],
                losses=toy.train_config(losses=losses).losses,
                max_tokens=max_tokens,
                recompute=recompute,
            ),
        )
        batch = output.collate(visits(list(range(len(ROWS)))))
        terms = output.terms(output.encode(batch), batch)
        torch.stack([term.value for term in terms.values()]).sum().backward()
        result.append({name: p.grad for name, p in output.named_parameters() if p.grad is not None})
    for second in result[1:]:
        assert second.keys() == result[0].keys()
        for name, gradient in result[0].items():
            torch.testing.assert_close(second[name], gradient, rtol=1e-3, atol=1e-5, msg=name)

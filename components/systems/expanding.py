"""Loaded expansion stages: expanding queries as they come, and choosing among the expansions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparring.components.data.tables import DOCUMENTS, EXPANSIONS, TEXT, document_text
from sparring.components.data.tokens import Tokens
from sparring.components.expansion import expansions, query_choice, query_reading, relevance_model
from sparring.components.expansion.query_reading import Candidates, Passages
from sparring.components.expansion.relevance_model import Frequencies
from sparring.components.rng import keyed_rng
from sparring.components.systems.documents import Documents
from sparring.components.systems.rankings import Ranking, as_lists, as_ranking
from sparring.components.systems.stages.expansion import ExpansionStage

Search = Callable[[Sequence[str], Sequence[int]], list[Ranking]]
"""Expanded queries, and the number of the query that each expands, to the rankings of the lexical stage's index."""

Ids = Callable[[Sequence[str]], Sequence[str]]
"""Queries to the ids that key the sampling of their expansions."""


class ExpansionWriter:
    """Language model that writes expansions."""

    def __init__(self, folder: Path, *, threads: int, batch_tokens: int, cuda: bool) -> None:
        from sparring.components.compute.processor import configure_process
        from sparring.components.models.generator import Generator

        configure_process(threads)
        self._generator = Generator.load(folder).eval().to("cuda" if cuda else "cpu")
        self._batch_tokens = batch_tokens

    def __call__(self, texts: Sequence[str], stage: ExpansionStage, keys: list[tuple[Any, ...]]) -> list[list[str]]:
        """Write the expansions of each query, the first one first."""
        assert stage.generate is not None
        return self._generator.expansions(texts, stage.generate, keys=keys, batch_tokens=self._batch_tokens).texts


class RankPredictor:
    """Model of a query reranker."""

    def __init__(self, folder: Path, *, precision: str, **options: Any) -> None:
        """Options are those of `Inference`."""
        from sparring.components.data.template import Template
        from sparring.components.data.tokenizers import load_tokenizer
        from sparring.components.models.cross_encoder import CrossEncoder
        from sparring.components.models.inference import Inference

        self._inference = Inference(CrossEncoder, folder, precision=precision, **options)
        self._tokenizer = load_tokenizer(folder)
        self._template = Template.of(self._tokenizer)

    def __call__(self, candidates: Candidates, count: int) -> np.ndarray:
        """Predict the ranks of the first `count` rows, fp32."""
        columns = (candidates.documents[name].to_pylist() for name in ("title", "text"))
        texts = [document_text(title, text) for title, text in zip(*columns, strict=True)]
        tokens = Tokens.of(self._tokenizer(texts, add_special_tokens=False)["input_ids"])
        reading = query_reading.RerankerInputs(
            self._template,
            tokens,
            self._inference.config.pair_tokens,
            top=candidates.top,
            parts=candidates.parts,
        )
        return self._inference.ask(reading, np.arange(count))


class IssuedExpansions:
    """Expanded queries, and the rankings of those that were searched for."""

    def __init__(self, table: pa.Table, queries: pa.Table, search: Search) -> None:
        """`table` has the expansions, `queries` the queries that they expand, by number."""
        self.table, self.queries, self._search = table, queries, search
        self.texts = dict(zip(table["doc_id"].to_pylist(), expansions.expanded_texts(table, queries), strict=True))
        self._numbers = dict(zip(table["doc_id"].to_pylist(), map(int, table["query_id"].to_pylist()), strict=True))
        self._rankings = dict[str, Ranking]()

    def rankings(self, names: Sequence[str]) -> list[Ranking]:
        """Rank the documents for some expanded queries. Each is searched for once."""
        new = [name for name in names if name not in self._rankings]
        if new:
            lists = self._search([self.texts[name] for name in new], [self._numbers[name] for name in new])
            self._rankings.update(zip(new, lists, strict=True))
        return [self._rankings[name] for name in names]

    def passages(self, documents: Documents) -> Passages:
        """Return the first document that each expanded query retrieves."""
        first = [ranking[0][0] if ranking else None for ranking in self.rankings(list(self.texts))]
        ids = list(dict.fromkeys(doc_id for doc_id in first if doc_id is not None))
        contents = documents.texts(ids)
        columns = [ids, [contents[doc_id][0] for doc_id in ids], [contents[doc_id][1] for doc_id in ids]]
        rows = {doc_id: row for row, doc_id in enumerate(ids)}
        places = np.array([len(ids) if doc_id is None else rows[doc_id] for doc_id in first], np.int64)
        return Passages(pa.table([pa.array(column, TEXT) for column in columns], schema=DOCUMENTS), places)


class Expander:
    """An expansion stage with its models loaded."""

    def __init__(
        self,
        stage: ExpansionStage,
        *,
        writer: ExpansionWriter | None = None,
        frequencies: Frequencies | None = None,
        predictor: RankPredictor | None = None,
        ids: Ids = list,
    ) -> None:
        """The stage says which parts it needs. By default the queries' texts key the sampling."""
        self._stage, self._writer, self._frequencies, self._predictor = stage, writer, frequencies, predictor
        self._ids = ids

    def __call__(
        self, texts: Sequence[str], unexpanded: list[Ranking], documents: Documents, search: Search
    ) -> list[Ranking]:
        """Rank the documents for each query. `unexpanded` has the lexical stage's own rankings."""
        stage = self._stage
        names = pa.array([str(number) for number in range(len(texts))], TEXT)
        queries = pa.table({"query_id": pa.chunked_array([names]), "text": pa.chunked_array([pa.array(texts, TEXT)])})
        table = self._written(texts, unexpanded, documents)
        if stage.question:
            table = expansions.with_questions(table, names)
        if stage.choice == "concat":
            table = expansions.concatenated(table)
        issued = IssuedExpansions(table, queries, search)
        most = len(table) if stage.choice == "all" else stage.most
        choices = query_choice.choose(table, self._scores(issued, documents), stage.number, most)
        chosen = choices["doc_id"].to_pylist()
        rankings = as_ranking(issued.rankings(chosen), chosen)
        return as_lists(query_choice.as_ranking(choices, rankings, as_ranking(unexpanded), stage.fusion), len(texts))

    def _written(self, texts: Sequence[str], unexpanded: list[Ranking], documents: Documents) -> pa.Table:
        """Expand the queries, which are named by their numbers."""
        stage = self._stage
        keys = [(*stage.seed, "expand", query_id) for query_id in self._ids(texts)]
        if stage.relevance is None:
            assert self._writer is not None
            written = self._writer(texts, stage, keys)
        else:
            assert self._frequencies is not None
            feedback = [ranking[: stage.relevance.documents] for ranking in unexpanded]
            contents = documents.texts(list(dict.fromkeys(doc_id for ranking in feedback for doc_id, _ in ranking)))
            written = [
                relevance_model.expansions(
                    text,
                    [relevance_model.Document(*contents[doc_id], score) for doc_id, score in ranking],
                    self._frequencies,
                    stage.relevance,
                    partial(keyed_rng, *key),
                )
                for text, ranking, key in zip(texts, feedback, keys, strict=True)
            ]
        rows = [row for number, of_query in enumerate(written) for row in expansions.rows(str(number), of_query)]
        return pa.Table.from_pylist(rows, schema=EXPANSIONS)

    def _scores(self, issued: IssuedExpansions, documents: Documents) -> np.ndarray:
        """Score each expansion. Those with the lowest scores are chosen."""
        table, reranker = issued.table, self._stage.reranker
        if self._stage.choice == "all":
            return table["number"].to_numpy().astype(np.float64)
        if reranker is None:
            return query_choice.generation_order(table)
        if not len(table):
            return np.empty(0)
        assert self._predictor is not None
        passages = issued.passages(documents) if reranker.passage else None
        if reranker.template == "released":
            candidates = query_reading.candidates_released(table, issued.queries, passages)
        else:
            texts = pa.chunked_array([pa.array(issued.texts.values(), TEXT)])
            candidates = query_reading.candidates(table["doc_id"], texts, passages)
        return self._predictor(candidates, len(table)).astype(np.float64)

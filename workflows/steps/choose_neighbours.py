"""Choose the parameters of reranking by neighbours on queries, without any training.

Trials share the vectors, and each takes a moment. The parameters are chosen on a split of their own. If there is none,
they are chosen by cross-validation: each fold of the queries is reranked with the best parameters for the remaining
folds.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, field_validator, model_validator

from sparring.components.compute.processor import configure_process
from sparring.components.config import Config, UserError
from sparring.components.data.groups import DocumentIds, measured_queries, query_ids_of
from sparring.components.data.tables import QRELS, RANKING, TEXT, by_query, of_queries, read, write
from sparring.components.data.vectors import DocumentVectors, QueryVectors
from sparring.components.evaluation.measures import canonical, known, needs_answers, per_query
from sparring.components.files import remove, replacing, save_array, write_json
from sparring.components.neighbours.reciprocal import NeighboursConfig, Normalise, Weight
from sparring.components.neighbours.reranking import TRIALS, Ranked, list_scores
from sparring.components.rng import keyed_int, keyed_rng
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.store.dag import Description

Trial = dict[str, Any]


class TrialsConfig(Config):
    """Ranges of the parameters, and the queries they are tried on.

    The paper's code searches the same ranges, except for `mix`. It starts at 0.001, because it mixes raw inner products
    of about 100.
    """

    folds: int = Field(5, ge=2)
    """Number of folds of a cross-validation."""
    queries: int | None = Field(None, ge=1)
    """Number of the split's queries to sample. Null takes all."""
    trials: int = Field(60, ge=2)
    """Number of trials. All but the first are sampled at random; the first is the original ranking."""
    seed: int = 0
    """Seed of the trials and the folds."""
    context: list[int] = Field([20, 40, 60, 100], min_length=1)
    """Values of `context` (N, the number of documents that are reranked) to sample from."""
    k: tuple[int, int] = (3, 30)
    """Smallest and largest value of `k`. `k`, `k_exp`, `tau` and `mix` are sampled from such ranges."""
    k_exp: tuple[int, int] = (1, 20)
    """Smallest and largest value of `k_exp`. A larger value than `k` is lowered to `k`."""
    tau: tuple[float, float] = (0.0, 0.8)
    """Smallest and largest value of `tau` in every second trial. In the remaining trials it is 0."""
    mix: tuple[float, float] = (0.1, 1.0)
    """Smallest and largest value of `mix`, sampled on a logarithmic scale."""
    weight: list[Weight] = Field(["linear"], min_length=1)
    """Values of `weight` to sample from."""
    geometric: list[Normalise] = Field(["max-min"], min_length=1)
    """Values of `geometric` to sample from."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for name in ("k", "k_exp", "tau", "mix"):
            low, high = getattr(self, name)
            if not low <= high:
                raise ValueError(f"{name}: {low} to {high} is no range")
        if min(self.k[0], self.k_exp[0], *self.context) < 1 or self.mix[0] <= 0 or self.mix[1] > 1:
            raise ValueError("context, k and k_exp are at least 1, mix above 0 and at most 1")
        if self.tau[0] < 0 or self.tau[1] > 1:
            raise ValueError(f"tau: {self.tau[0]} to {self.tau[1]}; accepted: within 0 to 1")
        return self

    def drawn(self) -> list[Trial]:
        """Return the trials, each with the keys of `NeighboursConfig` and `context`."""
        return [self._trial(number) for number in range(self.trials)]

    def _trial(self, number: int) -> Trial:
        rng = keyed_rng(self.seed, "trial", number)
        k = int(rng.integers(self.k[0], self.k[1] + 1))
        low, high = np.log(self.mix)
        trial = {
            "context": int(rng.choice(self.context)),
            "k": k,
            "k_exp": min(k, int(rng.integers(self.k_exp[0], self.k_exp[1] + 1))),
            "tau": round(float(rng.uniform(*self.tau)), 3) * (number % 2),
            "mix": float(f"{np.exp(rng.uniform(low, high)):.3g}"),
            "weight": str(rng.choice(self.weight)),
            "geometric": str(rng.choice(self.geometric)),
        }
        return {**trial, "mix": 1.0} if number == 0 else trial


class ChooseConfig(TrialsConfig):
    """Parameters to try, and how the best of them are chosen."""

    split: str | None = "dev"
    """Split whose queries the parameters are chosen on. Null chooses by cross-validation over the measured queries."""
    measure: str = "nDCG@10"
    """Measure whose mean over the queries is maximised."""

    @field_validator("measure")
    @classmethod
    def _of_judgements(cls, measure: str) -> str:
        if needs_answers(known(measure)):
            raise ValueError(f"{measure} needs answers. Use a measure of judgements, such as nDCG@10.")
        return measure


@Description(part="reranking by neighbours", version=2, workers_read={"vectors": ("documents-*.npy",)})
def chosen(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    vectors: Path,
    queries: list[Path],
    rankings: list[Path],
    split: str,
    config: ChooseConfig,
) -> dict[str, Any]:
    """Write `ranking.parquet`, the split's reranked queries. `trials.json` and `chosen.json` have the parameters.

    `vectors` are the documents'. `queries` are the queries' vectors and `rankings` their rankings: those of the split
    and, if parameters are chosen on another split, those of that split too. If there are fewer judged queries than
    folds, a cross-validation leaves the ranking unchanged.
    """
    measured = _queries(data, split)
    judged = _judged(data, config, split) if measured else []
    if not judged:
        return _as_retrieved(out, rankings, measured, config)
    trials, folds = config.drawn(), _folds(measured, judged, config)
    arguments: dict[str, Any] = {
        "out": out,
        "machine": machine,
        "pool": machine.cluster.map,
        "gpu": machine.cuda,
        "data": data,
        "vectors": vectors,
        "queries": queries,
        "rankings": rankings,
        "split": split,
        "config": config,
        "cuda": machine.cuda,
    }
    tried = [Shard(f"values-{i:05d}.npy", 1, {"trial": trial}) for i, trial in enumerate(trials)]
    map_shards(TrialMeasurer, tried, **arguments, unit="trials")
    values = np.stack([np.load(out / shard.file) for shard in tried])
    means = values.mean(1).tolist()
    write_json(out / TRIALS, [{**trial, "value": value} for trial, value in zip(trials, means, strict=True)])

    parts = []
    for fold, (fold_queries, fit_rows) in enumerate(folds):
        best = int(
            values[:, fit_rows].mean(1).argmax()
        )  # the first of equal trials: the ranking as retrieved, if nothing is better
        parts.append(Shard(f"part-{fold:05d}.parquet", len(fold_queries), {"trial": trials[best], "fold": fold}))
    map_shards(TrialApplier, parts, **arguments, unit="queries")
    reranked = pa.concat_tables([read(out / part.file, RANKING) for part in parts])
    write(out / "ranking.parquet", _in_order(reranked, measured), RANKING)
    write_json(out / "chosen.json", [{**part.task["trial"], "queries": part.size} for part in parts])
    remove(out, "values-*", "part-*")
    return {"trials": len(trials), "queries": len(measured), "before": means[0], "best": max(means)}


def _as_retrieved(out: Path, rankings: list[Path], queries: list[str], config: ChooseConfig) -> dict[str, Any]:
    """Write the first trial and the unchanged rankings, if there is nothing to choose by."""
    first = config.drawn()[0]
    tables = [of_queries(path / "ranking.parquet", RANKING, pa.array(queries, TEXT)) for path in rankings]
    write(out / "ranking.parquet", pa.concat_tables(tables), RANKING)
    write_json(out / TRIALS, [{**first, "value": None}])
    write_json(out / "chosen.json", [{**first, "queries": len(queries)}])
    return {"trials": 0, "queries": len(queries)}


def _queries(data: Path, split: str) -> list[str]:
    """Return the ids of the split's queries."""
    return query_ids_of(data, [split]).to_pylist()


def _judged(data: Path, config: ChooseConfig, split: str) -> list[str]:
    """Return the queries that trials are judged by, in order of id: those with a relevant document. Return none if they
    are too few for a cross-validation. UserError if the split that the config names has none."""
    by = config.split or split
    wanted = measured_queries(data, by, config.queries)
    relevant = read(data / "qrels.parquet", QRELS, filters=[("split", "=", by), ("relevance", ">", 0)])["query_id"]
    judged = sorted(set(wanted) & set(relevant.to_pylist()))
    if config.split is not None and not judged:
        raise UserError(f"rerank_chosen: no query of the split {by!r} has a relevant document")
    return judged if config.split is not None or len(judged) >= config.folds else []


def _folds(queries: list[str], judged: list[str], config: ChooseConfig) -> list[tuple[list[str], np.ndarray]]:
    """Return groups of queries that are reranked alike, each with the places of the queries that choose its numbers.

    No query is in both parts of a group.
    """
    if config.split is not None:
        return [(queries, np.arange(len(judged)))]
    mixed = sorted(judged, key=lambda query: (keyed_int(config.seed, "fold", query), query))
    fold = {query: place % config.folds for place, query in enumerate(mixed)}
    folds = np.array([fold[query] for query in judged])
    return [
        ([query for query in queries if fold.get(query, 0) == number], np.flatnonzero(folds != number))
        for number in range(config.folds)
    ]


def _in_order(table: pa.Table, queries: list[str]) -> pa.Table:
    """Sort a ranking by the order of `queries`."""
    places = pc.index_in(table["query_id"], value_set=pa.array(queries, TEXT)).to_numpy()
    return table.take(pa.array(np.lexsort((table["rank"].to_numpy(), places))))


class _TrialWorker:
    """A worker that reranks the rankings of some queries with the parameters of a trial."""

    def __init__(
        self,
        *,
        data: Path,
        vectors: Path,
        queries: list[Path],
        rankings: list[Path],
        split: str,
        config: ChooseConfig,
        cuda: bool,
        threads: int,
    ) -> None:
        configure_process(threads)
        self._data, self._device = data, "cuda" if cuda else "cpu"
        self._split, self._config = split, config
        self._judged = _judged(data, config, split)
        self._queries, self._documents = QueryVectors(*queries), DocumentVectors(vectors)
        self._rankings, self._ids = [ranking / "ranking.parquet" for ranking in rankings], DocumentIds(data)

    def ranked(self, queries: list[str]) -> Iterator[Ranked]:
        """Yield the ranking of some queries, in pieces."""
        wanted = pa.array(queries, TEXT)
        for path in self._rankings:
            for piece in by_query(path, RANKING):
                table = piece.filter(pc.is_in(piece["query_id"], value_set=wanted))
                yield Ranked(table, self._ids, self._queries)

    def reranked(self, ranked: Ranked, trial: Trial) -> pa.Table:
        """Return the ranking with a trial's parameters. With `mix` 1 the neighbours count for nothing, and the ranking
        is unchanged."""
        if trial["mix"] == 1.0:  # other vectors, such as shorter ones, may have made it
            return ranked.table
        lists = ranked.lists(trial["context"])
        numbers = NeighboursConfig(**{key: value for key, value in trial.items() if key != "context"})
        scores = list_scores(self._queries, self._documents, lists, numbers, self._device)[lists.mask]
        return ranked.reordered(scores, trial["context"])[0]


class TrialMeasurer(_TrialWorker):
    """A worker that measures trials."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._ranked, self._measure = list(self.ranked(self._judged)), canonical(self._config.measure)
        by = self._config.split or self._split
        qrels = read(self._data / "qrels.parquet", QRELS, filters=[("split", "=", by)])
        self._qrels = qrels.filter(pc.is_in(qrels["query_id"], value_set=pa.array(self._judged, TEXT)))

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write a trial's measure of each judged query, in order of id."""
        table = pa.concat_tables([self.reranked(piece, task["trial"]) for piece in self._ranked])
        save_array(path, per_query(table, self._qrels, [self._measure])["value"].to_numpy())


class TrialApplier(_TrialWorker):
    """A worker that reranks a fold's queries with the trial that was chosen for them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._folds = _folds(_queries(self._data, self._split), self._judged, self._config)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the fold's ranking."""
        queries, _ = self._folds[task["fold"]]
        with replacing(path) as to, pq.ParquetWriter(to, RANKING) as writer:
            for piece in self.ranked(queries):
                writer.write_table(self.reranked(piece, task["trial"]))

"""EAR: expand a query in many ways, rerank the expansions, retrieve with the best (paper 002, chapter 3)."""

from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from components.config import listing, override, parse, read_based
from workflows.board import Board, Cost, Outcome, Spent, note_on
from workflows.dag import Step, graph, relabelled, step
from workflows.ear_chain import Chain, Issued
from workflows.ear_config import EarConfig
from workflows.parts import Refreshed, seeded
from workflows.steps.study import study

MODELS = ("draw", "generators", "max_rank", "negatives", "order", "passages", "question", "reader", "rerankers",
          "retriever", "screen", "train", "training_candidates", "training_queries")  # fmt: skip
"""What an experiment whose models are another's has from there."""


class Config(EarConfig):
    """The recipe's name, and what `workflows.ear_config` says."""

    recipe: Literal["ear"]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, generator in self.generators.items():
            of = generator.learn_from
            if of is not None and of not in self.generators:
                raise ValueError(f"generators: {name}: learn_from: {of!r}; accepted: {', '.join(self.generators)}")
        measured = [name for name, generator in self.generators.items() if generator.measured]
        if not measured:
            raise ValueError("generators: of none the rankings are measured")
        if self.order is not None and sorted(self.order) != sorted(measured):
            raise ValueError(f"order: {', '.join(self.order)}; accepted: each of {', '.join(measured)} once")
        if self.max_rank <= self.k:
            raise ValueError(f"max_rank: {self.max_rank}: an expansion that finds nothing would be as good as one that "
                             f"does; accepted: more than k, {self.k}")  # fmt: skip
        return self


def build(config: Config) -> Outcome:
    """The chain for every generator, and what comes of fusing them, beside BM25, the oracle and a dense retriever."""
    models = None
    if config.models_from is not None:
        other = _models(config.models_from, config.seeds)
        models = Chain(other)
        config = config.model_copy(update={name: getattr(other, name) for name in MODELS})
    chain = Chain(config, models)
    board, test = Board(chain.collection, config), [config.evaluate.split]
    dense = "start model" if config.train is None else "retriever"

    issued = {name: chain.issue(name, test) for name in config.measured()}
    chosen = {
        "first expansion": [chain.choice(name, one, None, "first") for name, one in issued.items()],
        "concat": [chain.concat(name, one) for name, one in issued.items()],
        "best query": [chain.choice(name, one, one.ranks, "best") for name, one in issued.items()],
    }
    feedback = chain.feedback()
    plain = {"BM25": chain.lexical} | ({"RM3": feedback} if feedback is not None else {})
    plain |= {system: chain.fused(system, rankings) for system, rankings in chosen.items()}
    if config.clues is not None:
        plain["all expansions"] = chain.clues(issued, config.clues)
    for seed in config.seeds:
        for system, ranking in plain.items():
            board.add(system, ranking, seed=seed)
        found = chain.dense(seed)
        board.add(dense, found.ranking, seed=seed, entropy=True)
        approximate = chain.approximate(found, seed)
        if approximate is not None:
            board.add(f"{dense} ({config.hnsw})", approximate, seed=seed)
        board.add("BM25 + dense", chain.with_dense("BM25", chain.lexical, found.ranking, seed), seed=seed)
        costs = _costs(chain, issued, found, dense, approximate, feedback)
        if config.to_dense:
            label = seeded("first", seed, config)
            asked = chain.to_dense(label, issued, chosen["first expansion"], found)
            board.add("first expansion issued to dense", asked, seed=seed)
        expanded, several = {"first expansion": plain["first expansion"]}, dict[str, Step]()
        for kind, reranker in config.kinds():
            system = f"EAR-{kind.upper()}"
            predicted = {name: chain.predicted(name, one, kind, reranker, seed) for name, one in issued.items()}
            chosen[system], expanded[system] = _reranked(chain, board, system, issued, predicted, found, seed)
            several |= chain.several(system, issued, predicted, seed)
            costs.append(_cost_of_reranking(system, chain, issued, predicted))
        if config.passages is not None:
            for system, ranking in chain.passages(expanded | several, seed).items():
                board.add(system, ranking, seed=seed, queries=config.passages.rerank.queries)
        if config.reader is not None:
            for system, measures in chain.read({"BM25": chain.lexical, **expanded}, seed).items():
                board.add_measures(system, measures, seed=seed)

    ears = [system for system in chosen if system.startswith("EAR")]
    results = board.results(comparisons(config, dense))
    if models is not None:
        results = relabelled(results, _labels(chain, models, str(config.models_from)))
    return Outcome(
        results=results, data=chain.collection.data, found=found, ranker=None, rankings=board.rankings,
        split=config.evaluate.split, note=_note(config), costs=tuple(costs),
        pictures=(_study(chain, issued, {"first expansion": chosen["first expansion"],
                                         **{system: chosen[system] for system in ears}}),),
        examples=(ears[-1] if ears else "first expansion", "BM25"),
    )  # fmt: skip


def _reranked(
    chain: Chain, board: Board, system: str, issued: dict[str, Issued], predicted: dict[str, Step], found: Refreshed,
    seed: int,
) -> tuple[list[Step], Step]:  # fmt: skip
    """A query reranker's choices and what they find together; also with what the dense retriever finds (Table 3.2),
    issued to it (Table 3.7), and of fewer expansions (Table 3.8)."""
    choices, ranking = _chosen(chain, system, issued, predicted, seed)
    board.add(system, ranking, seed=seed)
    board.add(f"{system} + dense", chain.with_dense(system, ranking, found.ranking, seed), seed=seed)
    if chain.config.to_dense:
        asked = chain.to_dense(seeded(system, seed, chain.config), issued, choices, found)
        board.add(f"{system} issued to dense", asked, seed=seed)
    for number in chain.config.fewer:
        few = f"{system} N={number}"
        board.add(few, _chosen(chain, few, issued, predicted, seed, number)[1], seed=seed)
    return choices, ranking


def _chosen(
    chain: Chain, system: str, issued: dict[str, Issued], predicted: dict[str, Step], seed: int,
    number: int | None = None,
) -> tuple[list[Step], Step]:  # fmt: skip
    """The expansions of lowest predicted rank, a choice for each generator, and what they find together."""
    label = seeded(system, seed, chain.config)
    choices = [chain.choice(name, one, predicted[name], label, number) for name, one in issued.items()]
    return choices, chain.fused(label, choices)


def comparisons(config: EarConfig, dense: str) -> list[tuple[str, str]]:
    """What the paper sets side by side; first what the run was made for."""
    ears = [f"EAR-{kind.upper()}" for kind, _ in reversed(config.kinds())]
    found = [(ear, other) for ear in ears for other in ("first expansion", "BM25")]
    found += pairwise(ears)
    found += [("first expansion", "BM25"), ("concat", "first expansion")]
    found += [("best query", ear) for ear in ears] + [(ear, dense) for ear in ears]
    found += [(f"{ear} + dense", other) for ear in ears for other in (dense, "BM25 + dense")]
    found += [(ear, "RM3") for ear in ears] + [("RM3", "BM25")] if config.rm3 is not None else []
    found += [(ear, "all expansions") for ear in ears] if config.clues is not None else []
    if config.hnsw is not None:
        found.append((f"{dense} ({config.hnsw})", dense))
    if config.to_dense:
        found += [(f"{ear} issued to dense", other) for ear in ears for other in (dense, ear)]
    if config.passages is not None:
        few = f"first expansion + passages k={config.passages.as_many}"
        for ear in ears:
            found += [(ear, few)] if config.passages.as_many else []
            found += [(f"{ear} + passages", other) for other in ("first expansion + passages", ear)]
            if config.passages.queries is not None:
                found.append((f"{ear} top {config.passages.queries} + passages", f"{ear} + passages"))
    if config.reader is not None:
        depths = config.reader.depths
        for depth in depths:
            found += [(f"{ear} + reader k={depth}", f"{other} + reader k={depth}")
                      for ear in ears for other in ("first expansion", "BM25")]  # fmt: skip
        found += [(f"{system} + reader k={many}", f"{system} + reader k={few}")
                  for system in ("BM25", *ears) for few, many in pairwise(sorted(depths))]  # fmt: skip
    return found


def _models(path: str, seeds: list[int]) -> Config:
    """The experiment whose models are taken, with the seeds of the one that takes them."""
    tree = {key: value for key, value in override(read_based(Path(path)), []).items() if key != "tune"}
    if tree.get("recipe") != "ear":
        raise ValueError(f"models_from: {path}: recipe: {tree.get('recipe')!r}; accepted: ear")
    other = parse(Config, {**tree, "seeds": seeds}, where=f"models_from: {path}")
    if other.models_from is not None:
        raise ValueError(f"models_from: {path}: its models are another's; name {other.models_from}")
    unwritten = [name for name in other.measured() if other.generators[name].file is not None]
    if unwritten:
        raise ValueError(f"models_from: {path}: {listing(unwritten)}: a file has no expansions of other queries")
    return other


def _labels(chain: Chain, models: Chain, path: str) -> dict[str, str]:
    """What is done on the other collection says so."""
    other = {node.fingerprint: node for node in graph([models.collection.data, models.lexical])}
    trained = [models.trained_retriever(seed) for seed in chain.config.seeds]
    trained += [
        models.reranker(name, kind, reranker, seed)
        for seed in chain.config.seeds for name in chain.config.measured() for kind, reranker in chain.config.kinds()
    ]  # fmt: skip
    if chain.config.passages is not None:
        trained += [models.ranker(seed) for seed in chain.config.seeds]
    if chain.config.reader is not None:
        trained += [models.reader(seed) for seed in chain.config.seeds]
    other |= {node.fingerprint: node for node in graph(trained)}
    return {name: f"{Path(path).stem}: {node.label}" for name, node in other.items()}


def _note(config: EarConfig) -> str:
    trained = "" if config.models_from is None else f"All models are those of {config.models_from}. "
    return trained + note_on(config.retriever.model)


def _study(chain: Chain, issued: dict[str, Issued], chosen: dict[str, list[Step]]) -> Step:
    """Lengths and examples of what was chosen (Tables 3.9 and 3.10); of several seeds the last's."""
    config, split = chain.config, chain.config.evaluate.split
    by_answer = config.good == "answers"
    lexical = chain.collection.answering(chain.lexical, [split]) if by_answer else chain.lexical
    return step(
        "lengths and examples", study, data=chain.collection.data, split=split, lexical=lexical, by_answer=by_answer,
        ranks={name: one.ranks for name, one in issued.items()},
        choices={name: {system: rankings[at] for system, rankings in chosen.items()}
                 for at, name in enumerate(issued)},
    )  # fmt: skip


# Section 3.8: what each system costs.

QUERIES_ENCODED = ("query_seconds", "model_seconds")
"""What encoding queries takes, of encoding all."""


def _costs(
    chain: Chain, issued: dict[str, Issued], found: Refreshed, dense: str, approximate: Step | None,
    feedback: Step | None,
) -> list[Cost]:  # fmt: skip
    """Of what needs no query reranker."""
    lexical = (chain.lexical.inputs["index"],)
    encoded = Spent(found.vectors, share=QUERIES_ENCODED)
    costs = [
        Cost(f"{dense} (flat)", (found.vectors,), retrieve=(encoded, Spent(found.ranking)), measured=dense),
        Cost("BM25", lexical, retrieve=(Spent(chain.lexical),)),
    ]
    if approximate is not None:
        index = (found.vectors, approximate.inputs["index"])
        asked = Spent(approximate, share=("index_seconds", "search_seconds"))  # and not for what it is compared with
        costs.insert(1, Cost(f"{dense} ({chain.config.hnsw})", index, retrieve=(encoded, asked)))
    if feedback is not None:
        costs.append(Cost("RM3", (feedback.inputs["index"],), retrieve=(Spent(feedback),)))
    retrieve = tuple(Spent(one.found) for one in issued.values())
    return [*costs, Cost("first expansion", lexical, _expanding(issued, first=True), retrieve=retrieve)]


def _cost_of_reranking(system: str, chain: Chain, issued: dict[str, Issued], predicted: dict[str, Step]) -> Cost:
    """A retrieval-dependent reranker has every expansion retrieved before it chooses."""
    rerank: list[Spent] = []
    for name, one in issued.items():
        inputs: Any = predicted[name].inputs
        over = drawn(one.expanded)
        rerank += [Spent(inputs["tokens"], over=over), Spent(predicted[name], over=over)]
        if inputs["candidates"].inputs["ranking"] is not None:
            rerank.append(Spent(one.found, over=over))
    return Cost(
        system, (chain.lexical.inputs["index"],), _expanding(issued), tuple(rerank),
        tuple(Spent(one.found) for one in issued.values()),
    )  # fmt: skip


def _expanding(issued: dict[str, Issued], *, first: bool = False) -> tuple[Spent, ...]:
    """Of expanding a query, or of its first expansion alone, which takes all the work where expansions are drawn from
    what the query finds. Finding that is once for all generators."""
    draws = [drawn(one.expanded) for one in issued.values()]
    feedback = {one.inputs["ranking"].fingerprint: one.inputs["ranking"] for one in draws if "ranking" in one.inputs}
    per = ["expansions" if first and "ranking" not in one.inputs else "queries" for one in draws]
    return (*map(Spent, feedback.values()), *map(Spent, draws, per))


def drawn(expanded: Step) -> Step:
    """The step that drew expansions, before the question was put beside them."""
    return expanded.inputs["expanded"] if expanded.function.__name__ == "with_question" else expanded

"""A system that a run measured, as one that can be deployed: its stages, read off the steps that made its ranking."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sparring.components.config import UserError, did_you_mean, listing, parse
from sparring.components.data.tokenizers import MODEL_CONFIG, lengths_of
from sparring.components.evaluation.selection import FILE as SELECTION
from sparring.components.files import read_json
from sparring.components.neighbours.reranking import best
from sparring.components.retrieval import quantised
from sparring.components.retrieval.fusion import fitted
from sparring.components.retrieval.kinds.dense import INDEX
from sparring.components.retrieval.lucene import AnalyzerConfig
from sparring.components.retrieval.prior import WEIGHTS
from sparring.components.systems.config import VERSION, Dense, Fused, Lexical, Neighbours, Ranker, SystemConfig, Weights
from sparring.workflows.distributed.cluster import cores
from sparring.workflows.steps.fit_fusion import fit_fusion
from sparring.workflows.steps.fuse import fuse
from sparring.workflows.steps.lucene import lucene_feedback, lucene_search
from sparring.workflows.steps.neighbours import rerank_by_neighbours
from sparring.workflows.steps.prior import add_prior
from sparring.workflows.steps.quantise import rescore, smaller_vectors
from sparring.workflows.steps.score import rerank
from sparring.workflows.steps.search import candidates, search
from sparring.workflows.store.availability import finished, not_dropped
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems.results import Outcome, System

Stages = Mapping[str, Step]
"""The steps that made a ranking, by what they are in a system: `lexical`, `dense`, `rescored`, `neighbours`, `fusion`,
`ranker`, `prior`; in order."""
LAST = "the last retriever"
"""What the system of a run's last retriever is called where the run measured none."""
DEFAULT = (
    "what the run chose to deploy, else its best on the split that it chooses by; where it chooses by none, the last "
    "retriever, with the last ranker over it where that was measured"
)
"""Which system is asked where none is named, for people."""


def asked(outcome: Outcome, store: Store) -> System | None:
    """The system that is asked where none is named: `DEFAULT`. Of a run that is not finished it is the last
    retriever's, as far as that was measured. None where no measured one answers other queries."""
    with suppress(UserError):
        if store.is_done(outcome.results):
            return _first(_recommended(outcome, store), store, stages)
        made = [one for one in _of_the_last(outcome) if one.ranking is not None and store.is_done(one.ranking)]
        return _first(made, store, stages) if made else None
    return None


def exported(outcome: Outcome, store: Store) -> System:
    """The system of a finished run that is exported where none is named: the one that is asked, or the next best that
    a folder can have. UserError where there is none."""
    return _first(_recommended(outcome, store), store, stages_of_folder)


def _recommended(outcome: Outcome, store: Store) -> list[System]:
    """What a finished run chose to deploy, or all that it chose from, best first; else its last."""
    made = _selected(outcome, store)
    names = [one["system"] for one in sorted(made.get("candidates", []), key=lambda one: -one["value"])]
    names = [made["deploy"]] if "deploy" in made else names
    return [outcome.ranked[name] for name in names if name in outcome.ranked] or [last(outcome)]


def _first(systems: Sequence[System], store: Store, stages_of: Callable[[System], Stages]) -> System:
    """The first of some systems, at least one, that has stages; UserError of the first where there is none."""
    mistakes = list[UserError]()
    for system in systems:
        try:
            steps = stages_of(system)
            if "neighbours" in steps:  # whose numbers, which a step may have chosen, are not all for other queries
                fetch(store, system.data, steps)
                with _named(system):
                    _neighbours(steps, store)
            return system
        except UserError as error:
            mistakes.append(error)
    raise mistakes[0]


def _selected(outcome: Outcome, store: Store) -> dict[str, Any]:
    """What a finished run has chosen; empty where it chooses nothing."""
    selection = outcome.results.inputs.get("selection")
    if not isinstance(selection, Step):
        return {}
    store.fetch([selection], SELECTION)
    return dict(read_json(store.path(selection) / SELECTION))


def chosen(outcome: Outcome, name: str) -> System:
    """The system with a name; UserError lists the names that there are."""
    systems = _ranked(outcome)
    if name not in systems:
        raise UserError(
            f"--system: no system is called {name!r}; accepted: {listing(systems)}{did_you_mean(name, systems)}"
        )
    return systems[name]


def last(outcome: Outcome) -> System:
    """The last retriever's system, reordered by the last ranker where that was measured; UserError for none."""
    found = _of_the_last(outcome)
    if not found:
        raise UserError(
            f"the run measured no ranking of its last retriever; name one of its systems: --system NAME "
            f"({listing(_ranked(outcome))})"
        )
    return found[0]


def _of_the_last(outcome: Outcome) -> list[System]:
    """The systems of the last retriever: first reordered by the last ranker, then alone; the later ones first."""
    retriever = outcome.retrieval.retriever.fingerprint
    own = [
        one for one in _ranked(outcome).values() if one.retrieval and one.retrieval.retriever.fingerprint == retriever
    ]
    reranked = [one for one in own if one.ranker is not None and one.ranker is outcome.ranker]
    return [*reversed(reranked), *reversed([one for one in own if one.ranker is None])]


def _ranked(outcome: Outcome) -> dict[str, System]:
    if not outcome.ranked:
        raise UserError(
            "no system of this run has a ranking of its own, as each stands for several; accepted: one of "
            "the experiments that it is made of"
        )
    return outcome.ranked


def stages(system: System) -> Stages:
    """The stages of a system; UserError where it has one that answers no other queries."""
    assert system.ranking is not None
    with _named(system):
        made = _stages(system.ranking, system.data)
        if "neighbours" in made and list(made) != ["dense", "neighbours"]:
            raise UserError(
                f"{made['neighbours'].label!r} reranks by neighbours; accepted: what a retriever ranks, as "
                "the last stage"
            )
        return made


def stages_of_folder(system: System) -> Stages:
    """The stages of a system that a folder can have; UserError for a list that its FAISS index does not find."""
    made = stages(system)
    vectors = made["dense"].inputs["vectors"] if "dense" in made else None
    with _named(system):
        if "rescored" in made:
            raise UserError(
                f"{made['rescored'].label!r} orders what is found by other vectors; accepted: one kind of vectors"
            )
        if vectors is not None and vectors.function is smaller_vectors and vectors.inputs["kind"] == "binary":
            raise UserError(
                f"{made['dense'].label!r} finds documents by the Hamming distance of bits; accepted: whole "
                "vectors, int8, or an index"
            )
    return made


@contextmanager
def _named(system: System) -> Iterator[None]:
    """Name the system in a UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(f"--system: {system.name!r} cannot be deployed: {error}") from None


def _stages(node: Step, data: Step) -> dict[str, Step]:
    if node.function in (search, candidates, lucene_search, lucene_feedback):
        if node.inputs["data"].fingerprint != data.fingerprint:
            raise UserError(f"{node.label!r} retrieves for other texts than the queries, such as expansions of them")
        return {"dense" if node.function in (search, candidates) else "lexical": node}
    if node.function is rescore:
        return {**_stages(node.inputs["ranking"], data), "rescored": node}
    if node.function in (fuse, fit_fusion):
        lists = node.inputs["rankings"]
        made = [_stages(one, data) for one in lists]
        if sorted(name for one in made for name in one if name != "rescored") != ["dense", "lexical"]:
            raise UserError(
                f"{node.label!r} fuses {listing(repr(one.label) for one in lists)}; accepted: a ranking of "
                "BM25 with one of a retriever"
            )
        return {**made[0], **made[1], "fusion": node}
    if node.function is rerank_by_neighbours:
        before = _stages(node.inputs["ranking"], data)
        for name, stage in before.items():
            for own in ("vectors", "queries") if name == "dense" else ():
                if stage.inputs[own].fingerprint != node.inputs[own].fingerprint:
                    raise UserError(f"{node.label!r} reads other {own} than {stage.label!r}; accepted: the same")
        return {**before, "neighbours": node}
    if node.function is rerank:
        before = _stages(node.inputs["ranking"], data)
        if "ranker" in before:
            raise UserError(f"{node.label!r} reranks what a ranker has reordered already; accepted: one ranker")
        return {**before, "ranker": node}
    if node.function is add_prior:
        before = _stages(node.inputs["reranked"], data)
        for prior in node.inputs["priors"]:
            for name, stage in _stages(prior["ranking"], data).items():
                if before.setdefault(name, stage).fingerprint != stage.fingerprint:
                    raise UserError(
                        f"{node.label!r} adds the scores of {stage.label!r}, and {before[name].label!r} is "
                        "what it reranks; accepted: one ranking of each kind"
                    )
        return {**before, "prior": node}
    raise UserError(
        f"{node.label!r} ({node.function.__name__}) is no stage of a system; accepted: BM25, a retriever "
        "(by neighbours too), the fusion of both, a ranker over these"
    )


def retriever_of(stage: Step) -> Step:
    """The retriever of a dense stage."""
    retriever: Step = stage.inputs["queries"].inputs["retriever"]
    return retriever


def searched(stage: Step) -> Step:
    """The step whose files a dense stage searches: an index, or the documents' vectors."""
    found: Step = stage.inputs["index"] or stage.inputs["vectors"]
    return found


def models(steps: Stages) -> list[Step]:
    """The steps that made a system's models: the retriever, the ranker."""
    found = [retriever_of(steps["dense"])] if "dense" in steps else []
    return found + ([steps["ranker"].inputs["ranker"]] if "ranker" in steps else [])


def lists(steps: Stages) -> list[Step]:
    """The steps whose indexes and vectors a system's lists are read from."""
    found: list[Step] = [steps["lexical"].inputs["index"]] if "lexical" in steps else []
    found += [searched(steps["dense"])] if "dense" in steps else []
    return found + ([steps["rescored"].inputs["vectors"]] if "rescored" in steps else [])


def weights_of(steps: Stages) -> list[Step]:
    """The steps that chose a system's weights, and other numbers."""
    chose = [steps["neighbours"].inputs["config"]] if "neighbours" in steps else []
    chose += [_fused_as(steps["fusion"])] if "fusion" in steps else []
    chose += [steps["prior"].inputs["weights"]] if "prior" in steps else []
    return [one for one in chose if isinstance(one, Step)]


def fetch(store: Store, data: Step, steps: Stages) -> None:
    """Fetch what a system is read from; UserError where something was not made or was dropped."""
    read_from, weights = lists(steps), weights_of(steps)
    for node in (*models(steps), *read_from, *weights, data):
        finished(store, node)
    for node in read_from:
        not_dropped(store, node)
    store.fetch([data], "documents.parquet")
    store.fetch(models(steps), "model")
    store.fetch([*read_from, *weights])
    if "dense" in steps:  # an index is asked as its vectors were made
        store.fetch([steps["dense"].inputs["vectors"]], quantised.FILE)


def described(system: System, steps: Stages, store: Store) -> SystemConfig:
    """What `system.json` says of a system. The documents' table, the retriever, its index and the weights must have
    been fetched. UserError where the system reranks by neighbours in a way that cannot be deployed."""
    with _named(system):
        neighbours = _neighbours(steps, store) if "neighbours" in steps else None
    return SystemConfig(
        version=VERSION,
        name=system.name,
        documents=count(store.path(system.data) / "documents.parquet"),
        lexical=_lexical(steps["lexical"]) if "lexical" in steps else None,
        dense=dense(steps["dense"], store.path(retriever_of(steps["dense"])) / "model", neighbours)
        if "dense" in steps
        else None,
        fusion=_fusion(steps["fusion"], "lexical" if next(iter(steps)) == "lexical" else "dense", store)
        if "fusion" in steps
        else None,
        ranker=_ranker(steps["ranker"], steps.get("prior"), store) if "ranker" in steps else None,
    )


def count(table: Path) -> int:
    """The number of documents in a table."""
    rows: int = pq.read_metadata(table).num_rows
    return rows


def dense(stage: Step, model: Path, neighbours: Neighbours | None = None) -> Dense:
    """A retriever's list as it was searched for; `model` is the retriever's folder."""
    encode, about = stage.inputs["queries"].inputs["config"], read_json(model / MODEL_CONFIG)
    made = stage.inputs["vectors"]
    dimensions = made.inputs["dimensions"] if made.function is smaller_vectors else None
    dimensions = dimensions or about.get("truncate")
    return Dense(
        k=stage.inputs["k"],
        query_tokens=lengths_of(model)["query_tokens"],
        precision=encode.precision,
        vectors=encode.vectors,
        neighbours=neighbours,
        dimensions=dimensions,
        normalize=dimensions is not None and about["similarity"] == "cosine",
    )


def _neighbours(steps: Stages, store: Store) -> Neighbours:
    """How a list was reranked by neighbours; of the list there is no more than was searched for."""
    from sparring.components.retrieval import index

    config, list_of = steps["neighbours"].inputs["config"], steps["dense"]
    numbers = best(store.path(config)) if isinstance(config, Step) else config
    by = list_of.inputs["index"]
    if by is not None and not index.holds_vectors(index.read(store.path(by) / INDEX, threads=cores(), gpu=False)):
        raise UserError(
            f"search.index: {by.inputs['factory']} holds no document's vector as it is, and neighbours are "
            "found by these; accepted: null, Flat, HNSW32, IVF1024,Flat"
        )
    context = min(numbers.context, list_of.inputs["k"])
    return parse(Neighbours, {**numbers.model_dump(), "context": context}, where="neighbours")


def _lexical(stage: Step) -> Lexical:
    config = stage.inputs["config"]
    analysis = stage.inputs["index"].inputs["config"].model_dump(include=set(AnalyzerConfig.model_fields))
    return Lexical(analysis=analysis, k1=config.k1, b=config.b, rm3=stage.inputs.get("rm3"), k=stage.inputs["k"])


def _fused_as(stage: Step) -> Any:
    """How a stage fuses: a config, or the step that chose one. Of the split that it was chosen on, that step fused."""
    return stage if stage.function is fit_fusion else stage.inputs["config"]


def _fusion(stage: Step, first: str, store: Store) -> Fused:
    config = _fused_as(stage)
    own = fitted(store.path(config)) if isinstance(config, Step) else config
    return Fused.model_validate({**own.model_dump(), "first": first})


def _ranker(stage: Step, prior: Step | None, store: Store) -> Ranker:
    weights = None
    if prior is not None:
        found = read_json(store.path(prior.inputs["weights"]) / WEIGHTS)
        weights = Weights.model_validate({"retriever": 0.0, "bm25": 0.0, **found})
    config = stage.inputs["config"]
    return Ranker(depth=config.depth, precision=config.precision, weights=weights)

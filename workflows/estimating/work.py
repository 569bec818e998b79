"""The work of each step function: one size per step, memory that may be missing, and the sizes of the artifact.

By default a step goes through the rows of its tables, and no later step needs its sizes. `WORK` has the step functions
that do something else, by name, and `MAKES` those whose sizes are needed. They see a step's inputs, in which the sizes
of an upstream artifact stand for the artifact. The work of step functions outside this package is not known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sparring.components.config import listing
from sparring.components.data.tokenizers import TOKEN_LIMITS
from sparring.components.models.capabilities import longest
from sparring.components.models.permutations import windows
from sparring.components.models.shape import predicted_at_once, shape_of
from sparring.components.retrieval.kind import DEFAULT, PART, index_kind_named, kind_named
from sparring.components.training.terms import declared
from sparring.workflows.distributed.shards import shard_size
from sparring.workflows.estimating.site import Pool, Site
from sparring.workflows.estimating.sizes import (
    UNKNOWN,
    Collection,
    Groups,
    Index,
    Model,
    Ranking,
    UnknownSize,
    Vectors,
)
from sparring.workflows.steps.endpoints import TEXTS_PER_REQUEST

STEPS = "workflows.steps."
HEAP = 1e9
"""Memory of a Java machine, in bytes."""
SELF_CHECK = 32
"""Rows whose training takes as long as a training's self-check."""
TARGET, ANSWER, IN_FILE = 20.0, 4.0, 15.0
"""Mean tokens of a generator's target, of an answer, and of an expansion in a file."""
JOINED_TEXT = 1.7e-6
"""Seconds of the reference core to join the tokens of a text to those of the others and to compute their digest."""
ORDERED_ID, WRITTEN_ROW, READ_ROW, JUDGED_QUERY = 6e-7, 7.5e-7, 2.5e-7, 7e-6
"""Seconds of the reference core to order a document's id, to merge and write a row of a ranking, to read a row or an id
for mining, and to collect the documents that are relevant to a query."""
MORE_MEMORY = "a machine with more memory"


class Inputs(dict[str, Any]):
    """A step's inputs, or a config in a record, with its keys as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Need(NamedTuple):
    """Memory that processes of one pool need at the same time."""

    subject: str
    """Name in messages of the thing that needs the memory."""
    bytes: float
    """Bytes of one process."""
    pool: Pool
    advice: str = MORE_MEMORY
    """The change to make if memory is missing."""
    gpu: bool = False
    """True if this is a GPU's memory on machines with GPUs."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one step."""

    amount: float
    """Units: operations of a model's matrix products if the step has one, else what `rates.SECONDS` counts."""
    makes: Any = None
    """Sizes of the artifact."""
    pool: Pool = "driver"
    use: str = ""
    """Kind of a model's work, a key of `rates.SHARES`. Empty if no model computes."""
    model: Model | None = None
    kind: str = ""
    """Another name that the rate depends on, such as the objective."""
    precision: str = "bf16"
    updates: int = 0
    kept: float | None = None
    """Bytes of the artifact. If None, those of `makes`."""
    scratch: float = 0.0
    """Bytes of temporary files."""
    needs: tuple[Need, ...] = ()
    warning: str = ""
    """Why the step is slower than necessary."""
    loads_models: bool = False
    """True if the step imports torch although no model computes."""
    requests: int = 0
    """Most requests to an address. How long it takes to answer is not known here."""
    multiplies: bool = False
    """True if the units are products of vectors' numbers, which a GPU computes faster."""
    read_seconds: float = 0.0
    """Seconds to read one record of the source. If 0, they were not measured."""
    alone: float = 0.0
    """Seconds of the reference core that the first worker takes while the others wait."""
    after: float = 0.0
    """Seconds of reference cores that workers without GPUs share after the rest."""
    files: float = 0.0
    """Number of files that workers write, each for a shard."""
    driver: float | None = None
    """Bytes of tables and models that the driver reads or writes, now or for the report. If None, those of a step that
    runs in the driver: all of its inputs and its artifact."""


def work_of(function: str, site: Site, inputs: Mapping[str, Any], *, in_worker: bool = False) -> Work | None:
    """Describe the work of a step, by its function's dotted path. None if the work is not known. `in_worker` says that
    the whole function runs in a worker."""
    name, inputs = ".".join(function.rsplit(".", 2)[-2:]), Inputs(inputs)
    try:
        if name in WORK:
            work = WORK[name](site, inputs)
        elif function.startswith(STEPS):
            makes = MAKES[name](inputs) if name in MAKES else UNKNOWN
            work = Work(amount=_rows([inputs, makes]), makes=makes)
        else:
            return None
    except UnknownSize:
        return None
    kept = 1e5 if work.makes is UNKNOWN or work.makes is None else work.makes.bytes
    work = replace(work, kept=float(kept if work.kept is None else work.kept))
    read = _bytes([inputs]) + float(work.kept or 0) if work.pool == "driver" and not in_worker else 0.0
    return replace(work, driver=read if work.driver is None else work.driver)


def _bytes(value: Any) -> float:
    """Sum the bytes of all tables among inputs."""
    if isinstance(value, (Mapping, list, tuple)):
        return sum(map(_bytes, value.values() if isinstance(value, Mapping) else value))
    return float(value.bytes) if isinstance(value, (Collection, Groups, Ranking, Vectors)) else 0.0


def _rows(value: Any) -> float:
    """Count the rows of all tables among inputs."""
    if isinstance(value, (Mapping, list, tuple)):
        return sum(map(_rows, value.values() if isinstance(value, Mapping) else value))
    return float(value.rows) if isinstance(value, (Collection, Groups, Ranking)) else 0.0


def _ranking(inputs: Inputs) -> Ranking:
    """Size a ranking of a split, as deep as the rankings that it combines."""
    depths = [ranking.k for ranking in (inputs.get("ranking"), *inputs.get("rankings", ())) if ranking is not None]
    return Ranking(inputs.data.count(inputs.split), inputs.get("k") or max(depths))


def _targets(inputs: Inputs) -> Collection:
    """Size what a generator learns to write: a query is a document, and its target the query."""
    queries, data = sum(map(inputs.data.count, inputs.splits)), inputs.data
    count = queries if inputs.leave_out is None else queries - queries // inputs.leave_out[1]
    lengths = data.query_lengths + TARGET
    groups = Groups(count, 1)
    return Collection(count, {"train": count}, lengths, data.query_lengths, 5 * TARGET, exact=False, groups=groups)


def _reading_groups(inputs: Inputs) -> Collection:
    """Size a reader's groups, one per question and visit, and their answers as texts."""
    groups = Groups(inputs.visits * inputs.data.count(inputs.split), min(inputs.passages, inputs.ranking.k))
    answers = np.full(len(inputs.data.query_lengths), ANSWER)
    return replace(inputs.data, documents=groups.groups, document_lengths=answers, characters=20.0, groups=groups)


def _rank_groups(inputs: Inputs) -> Groups:
    count, candidates = inputs.data.count(inputs.split), inputs.ranks.expansions
    return Groups(min(count, inputs.queries or count), min(candidates, inputs.candidates or candidates))


def _contexts(inputs: Inputs) -> Groups:
    queries = min(inputs.config.queries or inputs.data.count(inputs.split), inputs.ranking.queries)
    return Groups(queries, inputs.config.size)


def _query_candidates(inputs: Inputs) -> Collection:
    """Size what a query reranker reads: expanded queries, and retrieved passages as documents."""
    passages = 0 if inputs.ranking is None else min(inputs.expanded.rows, inputs.data.documents)
    lengths = inputs.data.document_lengths if passages else np.zeros(1)
    return replace(inputs.expanded, documents=passages, document_lengths=lengths, exact=False, expansions=1)


def _concatenated(inputs: Inputs) -> Collection:
    expanded, data = inputs.expanded, inputs.data
    added = expanded.expansions * float(np.mean(expanded.query_lengths) - np.mean(data.query_lengths))
    return _expanded(data, expanded.queries, 1, added)


def _joined(inputs: Inputs) -> Collection:
    queries = {split: count for expanded in inputs.expanded for split, count in expanded.queries.items()}
    return replace(inputs.expanded[0], queries=queries)


def _expanded_by_relevance(inputs: Inputs) -> Collection:
    tokens = {"terms": 1.4 * inputs.config.terms, "sentence": 25.0, "title": 6.0}[inputs.config.draws]
    return _expanded(inputs.data, inputs.splits, inputs.config.number, tokens)


def _expanded(data: Collection, splits: Any, expansions: int, tokens: float) -> Collection:
    """Replace each query of some splits by so many expansions, each longer by so many tokens."""
    queries = {split: expansions * data.count(split) for split in splits}
    lengths = data.query_lengths + tokens
    return replace(data, queries=queries, query_lengths=lengths, expansions=expansions)


MAKES: dict[str, Callable[[Inputs], Any]] = {
    "answers.answering": lambda inputs: Ranking(sum(map(inputs.data.count, inputs.splits)), inputs.ranking.k),
    "choose.answer_ranks": lambda inputs: inputs.expanded,
    "choose.choose": _ranking,
    "choose.choose_several": _ranking,
    "average.average": lambda inputs: inputs.trained,
    "choose.rank_groups": _rank_groups,
    "cross_validate.pool": lambda inputs: Ranking(sum(fold.queries for fold in inputs.folds), 0),
    "cross_validate.pool_selected": lambda inputs: Ranking(
        sum(next(iter(fold["measures"].values())).queries for fold in inputs.folds), 0
    ),
    "expand.chosen_queries": lambda inputs: _expanded(inputs.data, [inputs.split], 1, IN_FILE),
    "expand.concatenated": _concatenated,
    "expand.expand_by_relevance": _expanded_by_relevance,
    "expand.expand_from_file": lambda inputs: _expanded(inputs.data, inputs.splits, inputs.config.number or 1, IN_FILE),
    "expand.joined_expansions": _joined,
    "expand.with_question": lambda inputs: _expanded(
        inputs.data, inputs.splits, inputs.expanded.expansions + 1, IN_FILE
    ),
    "fuse.fuse": _ranking,
    "fuse.fuse_expansions": _ranking,
    "imported_ranking.rank_from_file": _ranking,
    "neighbours.rerank_by_neighbours": lambda inputs: inputs.ranking,
    "prior.add_prior": lambda inputs: inputs.reranked,
    "prior.fit_prior": lambda inputs: inputs.reranked,
    "prior.teach_with_prior": lambda inputs: inputs.groups,
    "quantise.rescore": lambda inputs: Ranking(inputs.ranking.queries, min(inputs.k, inputs.ranking.k)),
    "query_rerank.candidates": _query_candidates,
    "query_rerank.candidates_released": _query_candidates,
    "ranked_pairs.ranked_pairs": lambda inputs: Groups(inputs.groups, 1, inputs.data.count(inputs.split)),
    "read.evaluate_answers": lambda inputs: inputs.answers,
    "read.reading_groups": _reading_groups,
    "screen.screen": _ranking,
    "smooth.contexts": _contexts,
    "smooth.smooth": lambda inputs: inputs.groups,
    "targets.targets": _targets,
}


def _ingest(site: Site, inputs: Inputs) -> Work:
    data = inputs.source
    needs = (Need("hashes of all ids", 24.0 * (data.documents + data.rows), "one"),)
    kept = data.documents * (0.6 * data.characters + 8) + 60.0 * data.rows
    amount = data.documents + 2.0 * data.rows
    return Work(amount=amount, makes=data, kept=kept, needs=needs, read_seconds=data.read_seconds)


def _tokenize(site: Site, inputs: Inputs) -> Work:
    data = inputs.data
    documents = 0 if "documents" in inputs else data.documents
    lengths = [np.minimum(column, inputs.config.max_tokens) for column in (data.document_lengths, data.query_lengths)]
    tokens = documents * float(np.mean(lengths[0])) + data.rows * float(np.mean(lengths[1]))
    kept = 2 * tokens + 16.0 * (documents + data.rows)
    needs = (Need("digests of all texts", 80.0 * documents, "one"),)
    alone = JOINED_TEXT * (documents + data.rows)
    return Work(amount=tokens, makes=data, pool="map", kept=kept, scratch=kept, needs=needs, alone=alone)


def _start(site: Site, inputs: Inputs) -> Work:
    model = Model(inputs.config, shape_of(inputs.config))
    return Work(amount=model.bytes, makes=model, loads_models=True)


def _start_as_it_comes(site: Site, inputs: Inputs) -> Work:
    """A model reads as much of a text as it can, if its config does not say."""
    config, most = inputs.config, min(longest(inputs.config), inputs.most)
    left_out = {key: most for key in TOKEN_LIMITS if getattr(config, key, most) is None}
    return _start(site, Inputs({**inputs, "config": config.model_copy(update=left_out)}))


def _rerank_at(site: Site, inputs: Inputs) -> Work:
    """One request for each query."""
    count = inputs.data.count(inputs.split)
    makes = Ranking(min(count, inputs.queries or count), inputs.ranking.k)
    return Work(amount=makes.rows, makes=makes, requests=makes.queries)


def _order_at(site: Site, inputs: Inputs) -> Work:
    """One request for each window of each query."""
    work = _rerank_at(site, inputs)
    return replace(work, requests=work.requests * len(windows(min(inputs.depth, inputs.ranking.k))))


def _score_groups_at(site: Site, inputs: Inputs) -> Work:
    """One request for each query, with the documents of all its groups."""
    groups = inputs.groups
    return Work(amount=groups.rows, makes=groups, requests=min(groups.groups, groups.queries or groups.groups))


def _embed_at(site: Site, inputs: Inputs) -> Work:
    """The address decides how many numbers a vector has."""
    data = inputs.data
    texts = data.count(inputs.split) if "split" in inputs else data.documents
    whole, rest = divmod(texts, inputs.get("shard") or max(1, texts))
    requests = whole * _requests(inputs.get("shard") or texts) + _requests(rest)
    return Work(amount=texts, makes=UNKNOWN, requests=requests)


def _requests(texts: int) -> int:
    """Count the requests that embed the texts of one file."""
    return -(-texts // TEXTS_PER_REQUEST)


def _lucene_index(site: Site, inputs: Inputs) -> Work:
    """Several workers with a Java machine each build parts of a large index, whose files are copied into one."""
    data, advice = inputs.data, "in the profile (--cluster), fewer java.workers: each has a Java machine"
    needs = (Need("Java", HEAP, "java" if data.documents > PART else "one", advice),)
    tokens = data.documents * float(np.mean(data.document_lengths))
    kept = data.documents * index_kind_named("lexical").index_shape("", data.documents, data.characters).bytes
    return Work(amount=tokens, makes=data, pool="java", kept=kept, scratch=kept, needs=needs)


def _lucene_search(site: Site, inputs: Inputs) -> Work:
    """A query looks at some of its million documents; with feedback three times."""
    makes = Ranking(sum(map(inputs.data.count, inputs.splits)), min(inputs.k, inputs.data.documents))
    beyond, times = (0.25, 3) if "rm3" in inputs else (0.06 + 2e-4 * makes.k, 1)
    looks = makes.queries * times * (beyond + inputs.data.documents / 1e6)
    needs = (Need("Java", HEAP, "java", "in the profile (--cluster), fewer java.workers: each has a Java machine"),)
    return Work(amount=looks, makes=makes, pool="java", needs=needs)


def _by_model(
    site: Site, use: str, model: Model, amount: float, makes: Any, states: float | None = None, **more: Any
) -> Work:
    """Work of workers that hold a model's weights in two precisions, and a layer's states of one pass."""
    pool: Pool = "score" if use == "scoring" else "map"
    per_token = float(4 * model.shape.width + model.shape.middle) if states is None else states
    held = 6.0 * model.shape.parameters + 4.0 * site.cluster.batch_tokens(cuda=site.cuda) * per_token
    advice = f"in the profile (--cluster), fewer {pool}.workers or a lower max_tokens_per_pass"
    needs = (Need("the model and one pass through it", held, pool, advice, True),)
    return Work(amount=amount, makes=makes, pool=pool, use=use, model=model, needs=needs, **more)


def _lengths(model: Model, lengths: Any, special: int, limit: str, default: int) -> Any:
    """Tokens of texts (n,) as a model reads them."""
    return np.minimum(lengths + special, getattr(model.config, limit, None) or default)


def _pair_lengths(model: Model, data: Collection, limit: str = "pair_tokens", default: int = 160) -> Any:
    """Tokens of pairs (n,) of a query and a document."""
    queries = np.resize(data.query_lengths, len(data.document_lengths))
    return _lengths(model, queries + data.document_lengths, 3, limit, default)


def _operations(model: Model, lengths: Any) -> float:
    """Mean operations of a forward pass over one text."""
    return float(model.shape.operations(lengths)) / len(lengths)


def _encode(site: Site, inputs: Inputs) -> Work:
    model, data, config = inputs.retriever, inputs.data, inputs.config
    if "split" in inputs:
        count, lengths = data.count(inputs.split), _lengths(model, data.query_lengths, 2, "query_tokens", 32)
    else:
        count, lengths = data.documents, _lengths(model, data.document_lengths, 2, "document_tokens", 128)
    numbers = kind_named(getattr(model.config, "kind", DEFAULT)).numbers(
        model.config, model.shape, float(lengths.mean())
    )
    vectors = Vectors(count, round(numbers), 2 if config.vectors == "float16" else 4)
    amount, ids = count * _operations(model, lengths), 40.0 * count if "split" in inputs else 0.0
    more = {"precision": config.precision, "files": count / shard_size(count, config.shard), "driver": ids}
    return _by_model(site, "encoding", model, amount, vectors, **more)


def _score(site: Site, model: Model, data: Collection, pairs: int, config: Any, makes: Any) -> Work:
    amount, kept = pairs * _operations(model, _pair_lengths(model, data)), 20.0 * pairs
    return _by_model(site, "scoring", model, amount, makes, precision=config.precision, kept=kept, scratch=kept)


def _score_groups(site: Site, inputs: Inputs) -> Work:
    return _score(site, inputs.ranker, inputs.data, inputs.groups.rows, inputs.config, inputs.groups)


def _rerank(site: Site, inputs: Inputs) -> Work:
    ranking, config, count = inputs.ranking, inputs.config, inputs.data.count(inputs.split)
    makes = Ranking(min(count, config.queries or count), ranking.k)
    return _score(site, inputs.ranker, inputs.data, makes.queries * min(config.depth, ranking.k), config, makes)


def _predict(site: Site, inputs: Inputs) -> Work:
    expanded = inputs.expanded
    return _score(site, inputs.reranker, inputs.candidates, expanded.rows, inputs.config, expanded)


def _write_texts(site: Site, model: Model, count: int, read: float, tokens: float, makes: Any) -> Work:
    """Texts that a model writes a token at a time, after so many operations of reading."""
    amount, states = (
        count * (read + tokens * _operations(model, np.ones(1))),
        2.0 * model.shape.width * model.shape.layers,
    )
    return _by_model(site, "generating", model, amount, makes, states, kept=150.0 * count)


def _expand_by_model(site: Site, inputs: Inputs) -> Work:
    config, data, model = inputs.config, inputs.data, inputs.models[0]
    makes = _expanded(data, inputs.splits, config.number, config.new_tokens)
    beams = (config.beams or config.number) / config.number if config.method == "beam" else 1.0
    read = _operations(model, data.query_lengths) / config.number
    return _write_texts(site, model, makes.rows, read, beams * config.new_tokens, makes)


def _read_answers(site: Site, inputs: Inputs) -> Work:
    config, model, count = inputs.config, inputs.reader, inputs.data.count(inputs.split)
    count = min(count, config.queries or count)
    lengths = _pair_lengths(model, inputs.data, "passage_tokens", 250)
    read = min(config.passages, inputs.ranking.k) * _operations(model, lengths)
    return _write_texts(site, model, count, read, config.new_tokens, Ranking(count, 0))


def _train(site: Site, inputs: Inputs) -> Work:
    """A ranker reads a pair per candidate, a retriever the query and each candidate, others each document. The backward
    pass takes two thirds of the operations; `recompute` repeats the forward pass."""
    objective, config, model, data = inputs.objective, inputs.config, inputs.start, inputs.data
    groups = inputs.rows.groups if isinstance(inputs.rows, Collection) else inputs.rows
    candidates, shape = groups.candidates if groups is not None else 1, model.shape
    passes, predicted = declared(objective, "reads") or 1.0, declared(objective, "predicts") or 0.0
    if getattr(model.config, "kind", "") == "cross_encoder":
        read = [_pair_lengths(model, data)] * candidates
    else:
        read = [_lengths(model, data.query_lengths, 2, "query_tokens", 32)] if groups is not None else []
        if "vectors" not in inputs:  # otherwise the documents are encoded already
            read += [_lengths(model, data.document_lengths, 2, "document_tokens", 128)] * candidates
    tokens = sum(float(np.mean(lengths)) for lengths in read)
    forward = passes * sum(_operations(model, lengths) for lengths in read)
    per_row = (4 if site.cluster.recompute else 3) * (forward + 2 * predicted * tokens * shape.width * shape.vocabulary)
    if getattr(model.config, "adapter", None) is not None:  # a frozen weight has no gradient
        per_row -= passes * tokens * 2 * shape.layers * shape.weights_per_layer
    look = config.validate_on_dev
    validated = config.updates // look.every * look.queries / 3 if look is not None else 0
    moments = 0.0 if config.optimizer == "adafactor" else 8.0
    chained = config.carry == "all" or config.schedule_updates is not None
    queries = (groups.queries if groups is not None else None) or config.batch
    repeated = f"a batch of {config.batch:,} is larger than the {queries:,} training queries, so a query repeats up to "
    return Work(
        amount=per_row * (config.updates * config.batch + validated + SELF_CHECK),
        makes=model,
        pool="train",
        use="training",
        model=model,
        kind=objective,
        precision=config.precision,
        updates=config.updates,
        kept=(4.0 + chained * moments) * model.trained,
        scratch=(4.0 + moments) * model.trained,
        needs=(_training_memory(site, objective, model, config, passes * tokens, moments),),
        warning=f"{repeated}{-(-config.batch // queries)} times" if config.batch > queries else "",
    )


def _training_memory(site: Site, objective: str, model: Model, config: Any, tokens: float, moments: float) -> Need:
    """Weights, gradients and moments, and the states of a batch that the backward pass needs.

    A trained weight takes 8 bytes with its gradient, 8 more for AdamW's moments (Adafactor's are negligible) and 2 with
    `weights: bf16`; a frozen weight takes 4. A token takes 34 numbers per layer (Korthikanti et al., 2023, section
    4.1); with gradient checkpointing one layer's, and the inputs of the others. With `recompute` these are the tokens
    of one pass. With `shard` a worker holds its part of the layers and one whole layer, but it begins with all weights
    and one gradient.
    """
    shape, pool, workers, trained = model.shape, site.cluster.train, site.workers("train"), model.trained
    per_weight = 8.0 + moments + (2.0 if getattr(config, "weights", "fp32") == "bf16" else 0.0)
    held = 4.0 * (shape.parameters - trained) + per_weight * trained
    if pool.shard and workers > 1:
        inside = float(shape.layers * shape.weights_per_layer)
        divided = inside * (per_weight if trained >= inside else 4.0) * (1 - 1 / workers)
        held = max(held - divided + 4.0 * shape.weights_per_layer, 8.0 * shape.parameters)
    at_once = tokens * max(1, config.batch // config.accumulate // workers)
    if site.cluster.recompute:
        at_once = min(at_once, site.cluster.batch_tokens(cuda=site.cuda))
    states = 34.0 + 2.0 * shape.layers if pool.gradient_checkpointing else 34.0 * shape.layers
    scores = 12.0 * predicted_at_once(cuda=site.cuda) * shape.vocabulary if declared(objective, "predicts") else 0.0
    keys = ["a lower max_tokens_per_pass" if site.cluster.recompute else "recompute: true"]
    keys += [] if pool.gradient_checkpointing else ["train: {gradient_checkpointing: true}"]
    keys += ["train: {shard: true}"] if not pool.shard and workers > 1 else []
    advice = f"in the profile (--cluster), {listing(keys)}; or, for another result, a smaller batch"
    subject = "weights, their moments and a batch's states"
    return Need(subject, held + at_once * shape.width * states + scores, "train", advice, True)


def _whiten(site: Site, inputs: Inputs) -> Work:
    return Work(amount=inputs.vectors.count, makes=inputs.start)


def _search(site: Site, inputs: Inputs) -> Work:
    """Products of queries and documents. The first worker orders the documents' ids. Then CPU workers merge the lists
    of all runs of documents, and write them."""
    documents, queries, index = inputs.data.documents, inputs.queries.count, inputs.get("index")
    makes = Ranking(queries, min(inputs.k * inputs.get("times", 1), documents))
    needs = [Need("ids of all documents and their order", 40.0 * documents, "one")]
    looks = queries * float(documents)
    if index is not None:
        looks = queries * index.looks + min(inputs.config.sample, queries) * float(documents)
        needs.append(Need(f"an index {index.factory}", index.bytes, "one", index.advice))
    return Work(
        amount=looks * inputs.vectors.width,
        makes=makes,
        pool="map",
        alone=ORDERED_ID * documents,
        after=WRITTEN_ROW * makes.rows,
        scratch=8.0 * makes.rows * -(-documents // 2**20),
        needs=tuple(needs),
        multiplies=True,
    )


def _build_index(site: Site, inputs: Inputs) -> Work:
    """One process holds the index, and the sample that the index is trained on. Parts of a large index lie on the disk
    until they are merged."""
    vectors, kind = inputs.vectors, kind_named(inputs.kind)
    options = {"ef_construction": inputs.ef_construction, "memory": site.memory}
    shape = kind.index_shape(inputs.factory, vectors.count, vectors.width, **options)
    index = Index(shape.factory, shape.bytes * vectors.count, shape.looks, shape.advice)
    held = index.bytes + 4.0 * vectors.width * shape.sample
    needs = (Need(f"an index {index.factory}", held, "one", index.advice),)
    amount, scratch = shape.products * vectors.width, index.bytes if vectors.count > PART else 0.0
    return Work(amount=amount, makes=index, pool="map", scratch=scratch, needs=needs, multiplies=True)


def _smaller_vectors(site: Site, inputs: Inputs) -> Work:
    vectors = inputs.vectors
    makes = Vectors(vectors.count, inputs.dimensions or vectors.width, 1 if inputs.kind == "int8" else vectors.item)
    return Work(amount=2.0 * vectors.count, makes=makes)


def _fit_fusion(site: Site, inputs: Inputs) -> Work:
    """Ten weights are tried for each ranking but one, on at most 500 queries."""
    makes, depth = _ranking(inputs), sum(ranking.k for ranking in inputs.rankings)
    trials = 10 ** (len(inputs.rankings) - 1)
    return Work(amount=depth * (trials * min(makes.queries, 500) + makes.queries), makes=makes)


def _choose_neighbours(site: Site, inputs: Inputs) -> Work:
    rankings = inputs.rankings
    return Work(amount=inputs.config.trials * rankings[-1].rows, makes=rankings[0], pool="map")


def _mine(site: Site, inputs: Inputs) -> Work:
    config, ranking = inputs.config, inputs.ranking
    makes = Groups(inputs.groups, 1 + config.negatives + config.random, inputs.data.count(inputs.split))
    stored = 0 if ranking is None else ranking.rows
    read = 0 if ranking is None else ranking.queries * min(ranking.k, config.depth + 1)
    judged = inputs.data.count(inputs.split)
    needs = (
        Need("the ranking that negatives come from, and what is relevant", 40.0 * read + 500.0 * judged, "one"),
        Need("queries and judgements", 3.0 * inputs.data.bytes, "driver"),
    )
    return Work(
        amount=makes.groups + makes.rows / 150,  # a group takes as long as 150 candidates
        makes=makes,
        pool="map",
        alone=READ_ROW * (inputs.data.documents + stored) + JUDGED_QUERY * judged,
        needs=needs,
        driver=inputs.data.bytes,
    )


def _evaluate(site: Site, inputs: Inputs) -> Work:
    """A worker measures the ranking. The driver reads it for the report."""
    makes = Ranking(inputs.ranking.queries, 0)
    return Work(amount=_rows([inputs, makes]), makes=makes, driver=inputs.ranking.bytes)


def _results(site: Site, inputs: Inputs) -> Work:
    """Each comparison draws permutations of its queries."""
    queries = [row["metrics"].queries for row in inputs.systems if isinstance(row["metrics"], Ranking)]
    mean = sum(queries) / max(1, len(queries))
    return Work(amount=len(inputs.comparisons) * inputs.get("rounds", 10_000) * mean, kept=1e6)


def _similarity(site: Site, inputs: Inputs) -> Work:
    return Work(amount=inputs.data.documents, makes=Ranking(inputs.data.documents, 0))


def _transfer(site: Site, inputs: Inputs) -> Work:
    """In each fold a classifier for each penalty and inner fold, and the best: 150 passes over the vectors each."""
    config, data = inputs.config, inputs.data
    penalties = len(config.inverse_penalties)
    fits = (1 if penalties == 1 else 1 + config.folds * penalties) * (config.folds if inputs.split is None else 1)
    return Work(amount=150.0 * fits * data.documents * inputs.vectors.width, makes=Ranking(data.documents, 0))


WORK: dict[str, Callable[[Site, Inputs], Work]] = {
    "choose_neighbours.chosen": _choose_neighbours,
    "encode.encode_documents": _encode,
    "encode.encode_queries": _encode,
    "endpoints.embed_documents_at": _embed_at,
    "endpoints.embed_queries_at": _embed_at,
    "endpoints.order_at": _order_at,
    "endpoints.rerank_at": _rerank_at,
    "endpoints.score_groups_at": _score_groups_at,
    "evaluate.averages": _results,
    "evaluate.evaluate": _evaluate,
    "evaluate.results": _results,
    "expand.expand_by_model": _expand_by_model,
    "fit_fusion.fit_fusion": _fit_fusion,
    "ingest.ingest": _ingest,
    "latency.measure_latency": lambda site, inputs: Work(amount=1),
    "lucene.lucene_feedback": _lucene_search,
    "lucene.lucene_index": _lucene_index,
    "lucene.lucene_search": _lucene_search,
    "mine.mine": _mine,
    "quantise.smaller_vectors": _smaller_vectors,
    "query_rerank.predict": _predict,
    "read.read_answers": _read_answers,
    "score.rerank": _rerank,
    "score.score_groups": _score_groups,
    "search.candidates": _search,
    "search.build_index": _build_index,
    "search.search": _search,
    "sentences.similarity": _similarity,
    "sentences.transfer": _transfer,
    "start.start": _start,
    "start.start_as_it_comes": _start_as_it_comes,
    "tokenize.tokenize": _tokenize,
    "tokenize.tokenize_queries": _tokenize,
    "train.train": _train,
    "whiten.whiten": _whiten,
}

"""The moves of EAR, from a query to the ranking of its best expansion (paper 002, chapter 3)."""

from dataclasses import dataclass
from typing import Any

from components.fusion import FusionConfig
from workflows.dag import Step, step
from workflows.ear_config import CluesConfig, EarConfig, Kind, Reranker, Writer
from workflows.parts import Collection, Phase, Refreshed, begin, phase, refresh, reranked, seeded, splits_for
from workflows.steps.answers import answering
from workflows.steps.choose import answer_ranks, choose, choose_several, rank_groups
from workflows.steps.encode import encode_queries
from workflows.steps.expand import (
    chosen_queries,
    concatenated,
    expand_by_model,
    expand_by_relevance,
    expand_from_file,
    joined_expansions,
    with_question,
)
from workflows.steps.fuse import fuse, fuse_expansions
from workflows.steps.lucene import VectorIndexConfig, lucene_feedback, lucene_index, lucene_search
from workflows.steps.query_rerank import candidates, candidates_released, predict
from workflows.steps.read import evaluate_answers, read_answers, reading_groups
from workflows.steps.search import faiss_index, search
from workflows.steps.start import start
from workflows.steps.targets import targets
from workflows.steps.tokenize import tokenize, tokenize_queries
from workflows.steps.train import train


@dataclass(frozen=True)
class Issued:
    """Expansions, what each finds, and how good that is."""

    name: str
    """The generator's, and the splits."""
    expanded: Step
    found: Step
    ranks: Step


class Chain:
    """The moves on one collection."""

    def __init__(self, config: EarConfig, models: "Chain | None" = None) -> None:
        """`models` is the chain of another collection whose trainings are taken; None to train on this one."""
        self.config, self.models = config, models or self
        self.begun = begin("start retriever", config.retriever)
        self.over = None if config.passages is None else begin("start passage reranker", config.passages.model)
        self.reads = None if config.reader is None else step("start reader", start, config=config.reader.model)
        self.collection = Collection(config, self.begun, self.over, self.reads)
        looks = [reranker.train for _, reranker in config.kinds()]
        self.learning = splits_for(*looks)
        """The splits that rerankers learn from and are validated on."""
        learnt = splits_for(*looks, config.train) if models is None else []
        self.lexical = self.collection.bm25(list(dict.fromkeys([*learnt, config.evaluate.split])))

    # Section 3.2.1: expansions.

    def expand(self, name: str, splits: list[str]) -> Step:
        """A generator's expansions of the queries of some splits."""
        generator, data = self.config.generators[name], self.collection.data
        label, seed = f"{name} expansions ({', '.join(splits)})", [self.config.draw, name]
        if generator.file is not None:
            expanded = step(label, expand_from_file, data=data, splits=splits, config=generator.file)
        elif generator.relevance is not None:
            expanded = step(
                label, expand_by_relevance, data=data, ranking=self.lexical, splits=splits, seed=seed,
                config=generator.relevance,
            )  # fmt: skip
        else:
            assert generator.writer is not None
            expanded = step(
                label, expand_by_model, data=data, models=self.writers(name, generator.writer, splits), splits=splits,
                seed=seed, config=generator.writer.generate,
            )  # fmt: skip
        if self.config.question:
            expanded = step(f"{label} and the question", with_question, data=data, expanded=expanded, splits=splits)
        return expanded

    def writers(self, name: str, writer: Writer, splits: list[str]) -> list[Step]:
        """The language models that write for some splits: of those that were trained on, one for each fold of the
        queries that it has not seen."""
        folds = self._folds(name) if self.models is self and "train" in splits else 0
        many = [self.models.written_by(name, writer, fold) for fold in range(folds)]
        return many or [self.models.written_by(name, writer, None)]

    def _folds(self, name: str) -> int:
        """How many generators write a generator's training examples; 0 for the one that has learnt from all."""
        writer = self.config.generators[name].writer
        return (writer.learn.folds or 0) if writer is not None and writer.learn is not None else 0

    def written_by(self, name: str, writer: Writer, fold: int | None) -> Step:
        """The language model that writes, trained without a part of the queries where a fold is named."""
        begun = step(f"{name} start generator", start, config=writer.model)
        learn = writer.learn
        if learn is None:
            return begun
        whose = name if fold is None else f"{name} fold {fold + 1}"
        by_answer = learn.targets.kind != "answer" and learn.targets.documents == "answering"
        rows = step(
            f"{whose} targets", targets, data=self.collection.data, splits=["train"],
            ranking=self.collection.answering(self.lexical, ["train"]) if by_answer else None,
            leave_out=None if fold is None else [fold, learn.folds], mode=self.config.answers.mode,
            config=learn.targets,
        )  # fmt: skip
        tokens = step(f"{whose} target tokens", tokenize, data=rows, model=begun, config=self.config.tokens)
        return step(
            f"{whose} generator", train, objective="generator", rows=rows, dev=None, data=rows, tokens=tokens,
            start=begun, seed=[self.config.draw, "generator", name, fold or 0], config=learn.train,
        )  # fmt: skip

    # Section 3.3.1: each expansion is issued to BM25; its minimum answer rank.

    def retrieve(self, label: str, expanded: Step, splits: list[str]) -> Step:
        """What BM25 finds for expanded queries."""
        config = self.config
        return step(
            label, lucene_search, data=expanded, index=self.lexical.inputs["index"], splits=splits, k=config.k,
            config=config.bm25.search,
        )  # fmt: skip

    def issue(self, name: str, splits: list[str]) -> Issued:
        """A generator's expansions of some splits, issued to BM25."""
        expanded = self.expand(name, splits)
        of = f"{name} ({', '.join(splits)})"
        found = judged = self.retrieve(f"{of} found", expanded, splits)
        by_answer = self.config.good == "answers"
        if by_answer:
            judged = step(
                f"{of} answers", answering, data=expanded, ranking=found, splits=splits, config=self.config.answers
            )
        ranks = step(f"{of} ranks", answer_ranks, expanded=expanded, ranking=judged, by_answer=by_answer)
        return Issued(of, expanded, found, ranks)

    def learnt_from(self, name: str) -> Issued:
        """What a generator's rerankers learn from, and are validated on.

        Where they learn from another generator's expansions, as the paper's from T0's, the checkpoint is still chosen
        on those of the generator that they will choose among (Appendix B.1): one reranker for each generator. Where
        folds write the training examples, the others are written by the generator that has learnt from all, as those
        are that the reranker will choose among.
        """
        other = self.config.generators[name].learn_from or name
        looks = [split for split in self.learning if split != "train"]
        if not looks or (other == name and not self._folds(name)):
            return self.issue(other, self.learning)
        parts = [self.issue(other, ["train"]), self.issue(name, looks)]
        of = f"{name} after {other}" if other != name else f"{name} (train and {', '.join(looks)})"
        both = step(
            f"{of} joined", joined_expansions, data=self.collection.data, expanded=[one.expanded for one in parts],
            rankings=[one.found for one in parts], ranks=[one.ranks for one in parts],
        )  # fmt: skip
        return Issued(of, both, both, both)

    def concat(self, name: str, issued: Issued) -> Step:
        """All expansions of a query as one (Table 3.1)."""
        whole = step(f"{name} concat", concatenated, data=self.collection.data, expanded=issued.expanded)
        found = self.retrieve(f"{name} concat found", whole, [self.config.evaluate.split])
        return self.choice(name, Issued(name, whole, found, found), None, "concat")

    def clues(self, issued: dict[str, Issued], config: CluesConfig) -> Step:
        """All expansions' rankings fused (contextual clue sampling, section 3.4.3); of generators that are not among
        those that were issued, they are issued here."""
        split, rankings = self.config.evaluate.split, []
        for name in config.of or issued:
            if name not in self.config.generators:
                raise ValueError(f"clues: of: {name!r}; accepted: {', '.join(self.config.generators)}")
            one = issued.get(name) or self.issue(name, [split])
            rankings.append(step(
                f"{name} all fused", fuse_expansions, data=self.collection.data, expanded=one.expanded,
                ranking=one.found, otherwise=self.lexical, split=split,
                config=FusionConfig(**config.model_dump(exclude={"of"})),
            ))  # fmt: skip
        return self.fused("all expansions", rankings)

    def feedback(self) -> Step | None:
        """BM25 with RM3; None where that is not asked for."""
        config = self.config
        if config.rm3 is None:
            return None
        index = step(
            "bm25 index with term vectors", lucene_index, data=self.collection.data,
            config=VectorIndexConfig(**config.bm25.index.model_dump()),
        )  # fmt: skip
        return step(
            "RM3 ranking", lucene_feedback, data=self.collection.data, index=index, splits=[config.evaluate.split],
            k=config.k, config=config.bm25.search, rm3=config.rm3,
        )  # fmt: skip

    # Sections 3.3.1 and 3.3.2: query rerankers.

    def reading(self, issued: Issued, kind: Kind, reranker: Reranker) -> dict[str, Any]:
        """What a reranker reads of expansions, and its tokens."""
        begun = begin(f"start {kind} reranker", reranker.model)
        view = step(
            f"{issued.name} {kind} candidates", candidates if reranker.template == "paper" else candidates_released,
            data=self.collection.data, expanded=issued.expanded, ranking=issued.found if kind == "rd" else None,
        )  # fmt: skip
        tokens = step(f"{issued.name} {kind} tokens", tokenize, data=view, model=begun, config=self.config.tokens)
        return {"data": view, "tokens": tokens}

    def reranker(self, name: str, kind: Kind, reranker: Reranker, seed: int) -> Step:
        """A query reranker that learnt from a generator's expansions of the training queries."""
        config = self.config
        learnt = self.learnt_from(name)
        begun = begin(f"start {kind} reranker", reranker.model)

        def groups(split: str, queries: int | None, candidates: int | None = None) -> Step:
            return step(
                seeded(f"{name} groups ({split})", seed, config), rank_groups, data=self.collection.data,
                ranks=learnt.ranks, split=split, max_rank=config.max_rank, queries=queries, candidates=candidates,
                seed=[seed, "query reranker"],
            )  # fmt: skip

        look = reranker.train.validate_on_dev
        dev = groups(look.split, look.queries) if look is not None else None
        return step(
            seeded(f"{name} {kind} reranker", seed, config), train, objective="query_reranker", dev=dev,
            rows=groups("train", config.training_queries, config.training_candidates), start=begun,
            seed=[seed, "query reranker", name, kind],
            config=reranker.train, **self.reading(learnt, kind, reranker),
        )  # fmt: skip

    def predicted(self, name: str, issued: Issued, kind: Kind, reranker: Reranker, seed: int) -> Step:
        """The rank that a reranker predicts for each expansion of the measured queries."""
        reading = self.reading(issued, kind, reranker)
        return step(
            seeded(f"{name} {kind} predicted", seed, self.config), predict, expanded=issued.expanded,
            candidates=reading["data"], tokens=reading["tokens"],
            reranker=self.models.reranker(name, kind, reranker, seed), config=self.config.predict,
        )  # fmt: skip

    # Appendix B.3: the chosen expansion's ranking, and the fusion of the generators'.

    def choice(self, name: str, issued: Issued, scores: Step | None, label: str, number: int | None = None) -> Step:
        """Each query's ranking is that of its expansion with the lowest score."""
        return step(
            f"{name} {label} ranking", choose, data=self.collection.data, expanded=issued.expanded,
            ranking=issued.found, scores=scores, otherwise=self.lexical, split=self.config.evaluate.split,
            number=number,
        )  # fmt: skip

    def fused(self, label: str, rankings: list[Step], config: FusionConfig | None = None) -> Step:
        """Several rankings made one."""
        if len(rankings) == 1:
            return rankings[0]
        return step(
            f"{label} fused", fuse, data=self.collection.data, rankings=rankings, split=self.config.evaluate.split,
            config=config or self.config.fusion,
        )  # fmt: skip

    # The dense retriever: fused with a ranking, and asked by the chosen expansions (section 3.6.2).

    def trained_retriever(self, seed: int) -> Step:
        """The dense retriever."""
        config = self.config
        if config.train is None:
            return self.begun
        return phase(
            seeded("retriever", seed, config), self.collection, "retriever",
            ranking=self.lexical if config.negatives.negatives > 0 else None, start=self.begun,
            seed=[seed, "retriever"], config=Phase(screen=config.screen, mine=config.negatives, train=config.train),
        )  # fmt: skip

    def dense(self, seed: int) -> Refreshed:
        """What the dense retriever finds."""
        retriever = self.models.trained_retriever(seed)
        label = "start" if self.config.train is None else seeded("retriever", seed, self.config)
        splits = [self.config.evaluate.split]
        return refresh(label, self.collection, retriever, self.config, splits=splits)

    def approximate(self, found: Refreshed, seed: int) -> Step | None:
        """What an approximate index over the same vectors finds; None where that is not asked for."""
        config = self.config
        if config.hnsw is None:
            return None
        label = seeded(config.hnsw, seed, config) if config.train is not None else config.hnsw
        index = step(f"{label} index", faiss_index, vectors=found.vectors, factory=config.hnsw)
        return step(
            f"{label} ranking", search, data=self.collection.data, vectors=found.vectors, index=index,
            splits=[config.evaluate.split], k=config.k, config=config.search.model_copy(update={"index": config.hnsw}),
        )  # fmt: skip

    def with_dense(self, system: str, ranking: Step, dense: Step, seed: int) -> Step:
        """A ranking with the dense retriever's."""
        label = seeded(f"{system} + dense", seed, self.config)
        return self.fused(label, [ranking, dense], self.config.dense_fusion)

    def to_dense(self, label: str, issued: dict[str, Issued], choices: list[Step], found: Refreshed) -> Step:
        """The chosen expansions, issued to the dense retriever."""
        config, split = self.config, self.config.evaluate.split
        rankings = []
        for name, chosen in zip(issued, choices, strict=True):
            whose = f"{name} {label} issued to dense"
            asked = step(f"{whose} queries", chosen_queries, data=self.collection.data, choices=chosen, split=split)
            tokens = step(
                f"{whose} tokens", tokenize_queries, data=asked, model=found.retriever,
                documents=self.collection.tokens["retriever"], config=config.tokens,
            )  # fmt: skip
            vectors = step(
                f"{whose} vectors", encode_queries, data=asked, tokens=tokens, retriever=found.retriever,
                documents=found.vectors, splits=[split], config=config.encode,
            )  # fmt: skip
            rankings.append(step(
                f"{whose} ranking", search, data=asked, vectors=vectors, index=found.index, splits=[split], k=config.k,
                config=config.search,
            ))  # fmt: skip
        return self.fused(f"{label} issued to dense", rankings)

    # Section 3.5: passage reranking.

    def ranker(self, seed: int) -> Step:
        """The passage reranker."""
        config = self.config.passages
        assert config is not None
        assert self.over is not None
        return phase(
            seeded("passage reranker", seed, self.config), self.collection, "ranker", ranking=self.lexical,
            start=self.over, seed=[seed, "passage reranker"], config=config,
        )  # fmt: skip

    def several(self, system: str, issued: dict[str, Issued], predicted: dict[str, Step], seed: int) -> dict[str, Step]:
        """What the queries that a reranker puts first find together; nothing where that is not asked for."""
        config = self.config.passages
        if config is None or config.queries is None:
            return {}
        name = f"{system} top {config.queries}"
        label = seeded(name, seed, self.config)
        rankings = [
            step(
                f"{generator} {label} ranking", choose_several, data=self.collection.data, expanded=one.expanded,
                ranking=one.found, scores=predicted[generator], otherwise=self.lexical,
                split=self.config.evaluate.split, most=config.queries, config=self.config.fusion,
            )
            for generator, one in issued.items()
        ]  # fmt: skip
        return {name: self.fused(label, rankings)}

    def passages(self, systems: dict[str, Step], seed: int) -> dict[str, Step]:
        """Some systems' rankings with their first passages in the passage reranker's order, at each depth."""
        config = self.config.passages
        assert config is not None
        ranker, found = self.models.ranker(seed), {}
        for system, ranking in systems.items():
            for depth in [config.rerank.depth, *([config.as_many] if config.as_many else [])]:
                name = f"{system} + passages" + ("" if depth == config.rerank.depth else f" k={depth}")
                how = config.rerank.model_copy(update={"depth": depth})
                found[name] = reranked(
                    seeded(name, seed, self.config), self.collection, ranking, ranker, self.config, how
                )
        return found

    # Section 3.4.6: reading.

    def reader(self, seed: int) -> Step:
        """The reader."""
        config = self.config.reader
        assert config is not None
        assert self.reads is not None
        if config.train is None:
            return self.reads
        rows = step(
            seeded("reader groups", seed, self.config), reading_groups, data=self.collection.data,
            ranking=self.lexical, split="train", passages=config.passages, visits=config.visits,
            seed=[seed, "reader"],
        )  # fmt: skip
        tokens = step(
            seeded("reader answer tokens", seed, self.config), tokenize, data=rows, model=self.reads,
            config=self.config.tokens,
        )  # fmt: skip
        return step(
            seeded("reader", seed, self.config), train, objective="reader", rows=rows, dev=None,
            data=self.collection.data, tokens=self.collection.tokens["reader"], start=self.reads,
            seed=[seed, "reader"], config=config.train, answer_tokens=tokens,
        )  # fmt: skip

    def read(self, systems: dict[str, Step], seed: int) -> dict[str, Step]:
        """How right the reader's answers are out of some systems' rankings, at each depth."""
        config = self.config.reader
        assert config is not None
        reader, found = self.models.reader(seed), {}
        for system, ranking in systems.items():
            for depth in config.depths:
                name = f"{system} + reader k={depth}"
                answers = step(
                    seeded(f"{name} answers", seed, self.config), read_answers, data=self.collection.data,
                    tokens=self.collection.tokens["reader"], ranking=ranking, split=self.config.evaluate.split,
                    reader=reader, config=config.read.model_copy(update={"passages": depth}),
                )  # fmt: skip
                found[name] = step(
                    seeded(f"{name} measures", seed, self.config), evaluate_answers, data=self.collection.data,
                    answers=answers,
                )  # fmt: skip
        return found

"""Query rerankers, which predict which expansion of a query retrieves best (Chuang et al., 2023, sections 3.3.1 and
3.3.2)."""

from dataclasses import dataclass
from typing import Self

from sparring.workflows.recipes.ear.config import Kind
from sparring.workflows.recipes.ear.generators import Expansions, Generators
from sparring.workflows.recipes.ear.setting import QUERY_RERANKING, Setting
from sparring.workflows.stages.learning import learnt
from sparring.workflows.steps.choose import rank_groups
from sparring.workflows.steps.expand import joined_expansions
from sparring.workflows.steps.query_rerank import candidates, candidates_released, predict
from sparring.workflows.steps.start import start
from sparring.workflows.steps.tokenize import tokenize
from sparring.workflows.store.dag import Step, in_phase, step


@dataclass(frozen=True)
class Prediction:
    """Ranks that a query reranker predicts for expansions."""

    tokens: Step
    """Tokens that the reranker reads."""
    scores: Step


@dataclass(frozen=True)
class QueryRerankers:
    """Query rerankers on one collection. `ri` reads an expanded query alone, `rd` also the first passage that it
    retrieves."""

    setting: Setting
    generators: Generators
    trained: Self | None = None
    """Query rerankers of another collection, whose models predict here. If None, train on this collection."""

    @in_phase(QUERY_RERANKING)
    def predict(self, name: str, expansions: Expansions, kind: Kind, seed: int) -> Prediction:
        """Predict the ranks of a generator's expansions."""
        view, tokens = self._reading(name, expansions, kind)
        model = self.model(name, kind, seed)
        label = self.setting.label(f"{name} {kind} predicted", seed)
        return Prediction(
            tokens,
            step(
                label,
                predict,
                expanded=expansions.expanded,
                candidates=view,
                tokens=tokens,
                reranker=model,
                config=self.setting.config.predict,
            ),
        )

    def model(self, name: str, kind: Kind, seed: int) -> Step:
        """The query reranker that predicts here."""
        return (self.trained or self).train(name, kind, seed)

    @in_phase(QUERY_RERANKING)
    def train(self, name: str, kind: Kind, seed: int) -> Step:
        """Train a query reranker on a generator's expansions of the training queries."""
        config, expansions = self.setting.config, self._training_expansions(name)
        reranker = config.rerankers.of(name)[kind]
        look = reranker.train.validate_on_dev
        rows = step(
            self.setting.label(f"{name} groups (train, max rank {reranker.max_rank})", seed),
            rank_groups,
            data=self.setting.collection.data,
            ranks=expansions.ranks,
            split="train",
            max_rank=reranker.max_rank,
            queries=config.training_queries,
            candidates=config.training_candidates,
            seed=[seed, "query reranker"],
        )
        # As in the public code, the choice of checkpoints does not depend on the maximum rank in training.
        dev = (
            step(
                self.setting.label(f"{name} groups ({look.split})", seed),
                rank_groups,
                data=self.setting.collection.data,
                ranks=expansions.ranks,
                split=look.split,
                max_rank=config.k + 1,
                queries=look.queries,
                candidates=None,
                seed=[seed, "query reranker"],
            )
            if look is not None
            else None
        )
        view, tokens = self._reading(name, expansions, kind)
        return learnt(
            self.setting.label(f"{name} {kind} reranker", seed),
            "query_reranker",
            reranker.train,
            start=self._start(name, kind),
            rows=rows,
            dev=dev,
            data=view,
            tokens=tokens,
            seed=[seed, "query reranker", name, kind],
            part="query reranking",
        )

    def _start(self, name: str, kind: Kind) -> Step:
        """Return the model that a generator's reranker of a kind begins as."""
        config = self.setting.config.rerankers
        return step(f"start {self._whose(name, kind)} reranker", start, config=config.of(name)[kind].model)

    def _whose(self, name: str, kind: Kind) -> str:
        """Name a kind of reranker. If the reranker reads or begins otherwise than usual, the name has the generator
        too."""
        config = self.setting.config.rerankers
        reranker, usual = config.of(name)[kind], config.given()[kind]
        return kind if (reranker.model, reranker.template) == (usual.model, usual.template) else f"{name} {kind}"

    def _reading(self, name: str, expansions: Expansions, kind: Kind) -> tuple[Step, Step]:
        """Return what a generator's reranker reads of expansions, as a collection and as its tokens."""
        reranker, whose = self.setting.config.rerankers.of(name)[kind], self._whose(name, kind)
        view = step(
            f"{expansions.name} {whose} candidates",
            candidates if reranker.template == "paper" else candidates_released,
            data=self.setting.collection.data,
            expanded=expansions.expanded,
            ranking=expansions.ranking if kind == "rd" else None,
        )
        return view, step(
            f"{expansions.name} {whose} tokens",
            tokenize,
            data=view,
            model=self._start(name, kind),
            config=self.setting.config.tokens,
        )

    def _training_expansions(self, name: str) -> Expansions:
        """Return the expansions that a generator's rerankers are trained and validated on.

        Rerankers may be trained on another generator's expansions, as the paper's are on T0's. They are still validated
        on expansions of the generator that they will choose among (Appendix B.1), so each generator has its own
        rerankers. If folds write the training expansions, the model that was trained on all queries writes those for
        validation, because it also writes those that the reranker will choose among.
        """
        source = self.setting.config.generators[name].learn_from or name
        splits = self.setting.learning_splits
        validation = [split for split in splits if split != "train"]
        if not validation or (source == name and not self.generators.folds(name)):
            return self.generators.issue(source, splits)
        parts = [self.generators.issue(source, ["train"]), self.generators.issue(name, validation)]
        title = f"{name} after {source}" if source != name else f"{name} (train and {', '.join(validation)})"
        joined = step(
            f"{title} joined",
            joined_expansions,
            data=self.setting.collection.data,
            expanded=[part.expanded for part in parts],
            rankings=[part.ranking for part in parts],
            ranks=[part.ranks for part in parts],
        )
        return Expansions(title, joined, joined, joined)

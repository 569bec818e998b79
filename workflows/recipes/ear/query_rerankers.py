"""Query rerankers: which expansion of a query retrieves best (Chuang et al., 2023, sections 3.3.1 and 3.3.2)."""

from dataclasses import dataclass
from typing import Self

from workflows.recipes.ear.config import Kind, Reranker
from workflows.recipes.ear.generators import Expansions, Generators
from workflows.recipes.ear.setting import Setting
from workflows.steps.choose import rank_groups
from workflows.steps.expand import joined_expansions
from workflows.steps.query_rerank import candidates, candidates_released, predict
from workflows.steps.start import start
from workflows.steps.tokenize import tokenize
from workflows.steps.train import train
from workflows.store.dag import Step, step


@dataclass(frozen=True)
class Prediction:
    """The rank that a query reranker predicts for each expansion."""

    tokens: Step
    """What it reads."""
    scores: Step


@dataclass(frozen=True)
class QueryRerankers:
    """The query rerankers on one collection: `ri` reads an expanded query alone, `rd` also what it retrieves first."""

    setting: Setting
    generators: Generators
    trained: Self | None = None
    """Those of another collection whose models predict here; None to train on this one."""

    def predict(self, name: str, expansions: Expansions, kind: Kind, reranker: Reranker, seed: int) -> Prediction:
        """Predict the ranks of a generator's expansions."""
        view, tokens = self._reading(expansions, kind, reranker)
        model = (self.trained or self).train(name, kind, reranker, seed)
        label = self.setting.label(f"{name} {kind} predicted", seed)
        return Prediction(tokens, step(
            label, predict, expanded=expansions.expanded, candidates=view, tokens=tokens, reranker=model,
            config=self.setting.config.predict,
        ))  # fmt: skip

    def train(self, name: str, kind: Kind, reranker: Reranker, seed: int) -> Step:
        """A query reranker that was trained on a generator's expansions of the training queries."""
        config, expansions = self.setting.config, self._training_expansions(name)

        def groups(split: str, queries: int | None, candidates: int | None = None) -> Step:
            return step(
                self.setting.label(f"{name} groups ({split})", seed), rank_groups, data=self.setting.collection.data,
                ranks=expansions.ranks, split=split, max_rank=config.max_rank, queries=queries, candidates=candidates,
                seed=[seed, "query reranker"],
            )  # fmt: skip

        look = reranker.train.validate_on_dev
        view, tokens = self._reading(expansions, kind, reranker)
        return step(
            self.setting.label(f"{name} {kind} reranker", seed), train, objective="query_reranker",
            dev=groups(look.split, look.queries) if look is not None else None,
            rows=groups("train", config.training_queries, config.training_candidates), data=view, tokens=tokens,
            start=step(f"start {kind} reranker", start, config=reranker.model),
            seed=[seed, "query reranker", name, kind], config=reranker.train,
            part="query reranking",
        )  # fmt: skip

    def _reading(self, expansions: Expansions, kind: Kind, reranker: Reranker) -> tuple[Step, Step]:
        """What a reranker reads of expansions, as a collection and as its tokens."""
        begun = step(f"start {kind} reranker", start, config=reranker.model)
        view = step(
            f"{expansions.name} {kind} candidates",
            candidates if reranker.template == "paper" else candidates_released, data=self.setting.collection.data,
            expanded=expansions.expanded, ranking=expansions.ranking if kind == "rd" else None,
        )  # fmt: skip
        label = f"{expansions.name} {kind} tokens"
        return view, step(label, tokenize, data=view, model=begun, config=self.setting.config.tokens)

    def _training_expansions(self, name: str) -> Expansions:
        """The expansions that a generator's rerankers are trained and validated on.

        Rerankers may be trained on another generator's expansions, as the paper's are on T0's. They are still validated
        on expansions of the generator that they will choose among (Appendix B.1), so each generator has its own. Where
        folds write the training expansions, the model that was trained on all queries writes those for validation, as
        it writes what the reranker will choose among.
        """
        source = self.setting.config.generators[name].learn_from or name
        splits = self.setting.learning_splits
        validation = [split for split in splits if split != "train"]
        if not validation or (source == name and not self.generators.folds(name)):
            return self.generators.issue(source, splits)
        parts = [self.generators.issue(source, ["train"]), self.generators.issue(name, validation)]
        title = f"{name} after {source}" if source != name else f"{name} (train and {', '.join(validation)})"
        joined = step(
            f"{title} joined", joined_expansions, data=self.setting.collection.data,
            expanded=[part.expanded for part in parts], rankings=[part.ranking for part in parts],
            ranks=[part.ranks for part in parts],
        )  # fmt: skip
        return Expansions(title, joined, joined, joined)

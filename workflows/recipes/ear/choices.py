"""Rankings of chosen expansions, or of all of them (Chuang et al., 2023, Appendix B.3)."""

from dataclasses import dataclass

from sparring.workflows.recipes.ear.config import AllExpansionsConfig
from sparring.workflows.recipes.ear.generators import Expansions, Generators
from sparring.workflows.recipes.ear.query_rerankers import Prediction
from sparring.workflows.recipes.ear.setting import Setting
from sparring.workflows.steps.choose import choose, choose_several
from sparring.workflows.steps.expand import concatenated
from sparring.workflows.steps.fuse import fuse_expansions
from sparring.workflows.store.dag import Step, step


@dataclass(frozen=True)
class Choices:
    """Rankings of chosen expansions, one for each query."""

    setting: Setting

    def choose(
        self, name: str, expansions: Expansions, scores: Step | None, label: str, number: int | None = None
    ) -> Step:
        """Rank by the expansion with the lowest score. Without scores, rank by the first expansion."""
        return step(
            f"{name} {label} ranking",
            choose,
            data=self.setting.collection.data,
            expanded=expansions.expanded,
            ranking=expansions.ranking,
            scores=scores,
            otherwise=self.setting.bm25,
            split=self.setting.split,
            number=number,
        )

    def concatenated(self, name: str, expansions: Expansions) -> Expansions:
        """Join all expansions of a query into one query (Table 3.1)."""
        data = self.setting.collection.data
        whole = step(f"{name} concat", concatenated, data=data, expanded=expansions.expanded)
        ranking = self.setting.retrieve(f"{name} concat found", whole, [self.setting.split])
        return Expansions(name, whole, ranking, ranking)

    def several(
        self, label: str, most: int, expansions: dict[str, Expansions], predictions: dict[str, Prediction]
    ) -> list[Step]:
        """Rank by the first `most` expansions in a reranker's order, fused for each generator."""
        return [
            step(
                f"{name} {label} ranking",
                choose_several,
                data=self.setting.collection.data,
                expanded=output.expanded,
                ranking=output.ranking,
                scores=predictions[name].scores,
                otherwise=self.setting.bm25,
                split=self.setting.split,
                most=most,
                config=self.setting.fusion(self.setting.config.fusion),
            )
            for name, output in expansions.items()
        ]

    def all_expansions(
        self, expansions: dict[str, Expansions], generators: Generators, config: AllExpansionsConfig
    ) -> list[Step]:
        """Fuse all expansions' rankings (contextual clue sampling, section 3.4.3), for each generator. Expansions of
        generators that are not in `expansions` are issued here."""
        rankings = []
        for name in self.generators_of_all(config):
            output = expansions.get(name) or generators.issue(name, [self.setting.split])
            rankings.append(
                step(
                    f"{name} all fused",
                    fuse_expansions,
                    data=self.setting.collection.data,
                    expanded=output.expanded,
                    ranking=output.ranking,
                    otherwise=self.setting.bm25,
                    split=self.setting.split,
                    config=self.setting.fusion(config),
                )
            )
        return rankings

    def generators_of_all(self, config: AllExpansionsConfig) -> list[str]:
        """Return the generators whose expansions are all fused. ValueError if one does not exist."""
        configured = self.setting.config.generators
        for name in config.generators or []:
            if name not in configured:
                raise ValueError(f"all_expansions: generators: {name!r}; accepted: {', '.join(configured)}")
        return config.generators or self.setting.config.measured()

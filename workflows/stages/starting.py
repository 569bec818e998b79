"""The start of a recipe's retriever: a model as it is, pre-training, or another experiment."""

from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from sparring.components.config import Config as Part
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.retrieval.kind import RetrieverConfig
from sparring.components.yaml_files import Assignments
from sparring.workflows.experiments import loading
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import RetrievalConfig, seeded
from sparring.workflows.stages.pretraining import Pretraining, pretrained, with_two_towers
from sparring.workflows.stages.results import Results
from sparring.workflows.store.dag import Step, graph, in_phase, relabelled
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import PRETRAINING


class StartedConfig(RetrievalConfig):
    """Settings of a recipe whose retriever can begin from more than a model as it is."""

    pretrain: Pretraining | None = None
    """Pre-training on the collection's documents before the retriever learns from queries: one of the objectives of the
    recipe `simlm`, or several in order. The result is measured as `pre-trained`. If null, there is no pre-training."""
    start_from: str | None = None
    """File of another experiment, relative to the working directory or to this config. The retriever begins from the
    last one that it trains, such as SimLM's pre-trained encoder (recipe `simlm`, with `retriever_1: null`). Both must
    be made from the same model, by the same keys; the collections may differ. With `towers: separate`, the other
    retriever may have shared towers: both towers then begin from that encoder. Each seed begins from the same seed of
    the other experiment. The result is measured as `pre-trained`. If null, the retriever begins from the model as it
    is."""
    teacher: str | None = None
    """Contender whose reranker teaches, by its name among `contenders`. Its scores are the teacher's for losses that
    read some, such as `distillation`, instead of those of a ranker that the recipe trains. An address is asked once for
    a pair. If null, no contender teaches."""

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.pretrain is not None and self.start_from is not None:
            raise ValueError("pretrain and start_from: both say what the retriever begins from; accepted: one of them")
        return self


class RetrieverToMeasure(Part):
    """Settings of a recipe that measures one retriever and trains none."""

    retriever: RetrieverConfig | None = None
    """A model from a hub, a package, or the folder of an export, used as it is. An exported folder needs no key but
    `model`."""
    experiment: str | None = None
    """File of another experiment instead, relative to the working directory or to this config. The retriever is the
    last one that it trains."""
    sets: Assignments = []
    """Changes to that experiment's config, each as `key.path=value`, as for `--set`."""

    @model_validator(mode="after")
    def _one_retriever(self) -> Self:
        if (self.retriever is None) == (self.experiment is None):
            raise ValueError("say either `retriever` or `experiment`: one retriever is evaluated")
        if self.sets and self.experiment is None:
            raise ValueError("sets: they are of an `experiment`, and there is none; accepted: left out")
        return self


@in_phase(PRETRAINING)
def started(results: Results, collection: Collection, untrained: Dense, config: StartedConfig, seed: int) -> Dense:
    """Return the model that a seed's training begins from: the start model, or the result of `pretrain` or
    `start_from`. ValueError if `start_from` is made from another model."""
    begun = untrained.model
    if config.pretrain is not None:
        retriever = pretrained(collection, begun, config.pretrain, config, seed)[-1]
    elif config.start_from is not None:
        retriever = begun.after(_last_of(Path(config.start_from), begun, config, seed))
    else:
        return untrained
    return results.refresh("pre-trained", retriever, seed=seed)


def _last_of(path: Path, begun: Model, config: StartedConfig, seed: int) -> Step:
    """Return the last retriever that another experiment trains. It is split into two towers if `begun` has two and it
    has one."""
    outcome = loading.read_outcome(path, [f"seeds=[{seed}]"], "start_from", needs=["seeds"])
    trained = outcome.last_retriever(f"start_from: {path}")
    nodes = graph([trained])
    if not any(node.description.models == "training" for node in nodes):
        raise ValueError(f"start_from: {path}: it trains no retriever; accepted: an experiment that does, or null")
    reads = begun.step.inputs["config"]
    names = {node.fingerprint: node.label for node in nodes}
    splits = begun.step.fingerprint not in names
    if splits and not _begins_two_towers(begun.after(trained).begun.inputs.get("config"), reads):
        raise ValueError(
            f"start_from: {path}: its retriever is made from another model; accepted: the same `retriever`, with "
            "`towers: shared` or the same"
        )
    shared = {node.fingerprint for node in graph([begun.tokens])}
    labels = {key: seeded(f"{path.stem}: {name}", seed, config) for key, name in names.items() if key not in shared}
    taken = relabelled(trained, labels, dict.fromkeys(labels, PRETRAINING))
    return with_two_towers(seeded("pre-training, two towers", seed, config), reads, taken) if splits else taken


def _begins_two_towers(candidate: Any, retriever: DualEncoderConfig) -> bool:
    """Tell whether a retriever differs from a candidate only in that it has two towers and the candidate one."""
    if not isinstance(candidate, DualEncoderConfig) or retriever.towers != "separate" or candidate.towers == "separate":
        return False
    of_two = {key: getattr(retriever, key) for key in ("towers", "share", "projections")}
    return candidate.model_copy(update=of_two) == retriever

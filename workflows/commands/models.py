"""One model of a run, of an exported system or of a folder, loaded without the indexes around it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.components.config import UserError, listing
from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.files import read_json
from sparring.components.retrieval.stage import RetrieverStage
from sparring.components.systems import config as configs
from sparring.components.systems.loaded import LoadedEncoder, PairScorer
from sparring.components.systems.stages.ranker import RankerStage
from sparring.workflows.commands.shared_arguments import add_cluster, add_config, opened
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.experiments import loading
from sparring.workflows.steps.encode import EncodeConfig
from sparring.workflows.steps.score import ScoreConfig
from sparring.workflows.store.availability import finished
from sparring.workflows.store.dag import Step
from sparring.workflows.systems import deployable
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.deployable import Deployment
from sparring.workflows.systems.reranked import Reranked

RANKER = "cross_encoder"
"""Kind of a ranker in the config of a saved model."""
OTHERS = ("generator", "reader", "masked_language_model")
"""Kinds of saved models that can neither encode texts nor score pairs."""


def add_model(parser: argparse.ArgumentParser, model: str) -> None:
    """Add the arguments that name a model, which is a retriever or a ranker, and the machine to run it on."""
    add_config(
        parser,
        f"where the {model} is: the config or folder of a finished run, the folder of an exported system, or the "
        f"folder of an exported {model}",
    )
    add_cluster(parser)
    parser.add_argument(
        "--system",
        metavar="NAME",
        help=f"take the {model} of this system of the run, as its table calls it (default: {deployable.DEFAULT})",
    )


def load_encoder(arguments: argparse.Namespace) -> LoadedEncoder:
    """Load the retriever that the arguments name. UserError if there is none."""

    def of_run(deployment: Deployment) -> tuple[Step, dict[str, str]] | None:
        stage = next(iter(deployment.of_kind(Dense)), None)
        if stage is None:
            return None
        return stage.retriever, {"precision": stage.encode.precision, "vectors": stage.encode.vectors}

    def of_folder(config: configs.SystemConfig) -> tuple[str, dict[str, str]] | None:
        stage = next((stage for _, stage in config.of_kind(RetrieverStage)), None)
        return None if stage is None else (stage.retriever, {"precision": stage.precision, "vectors": stage.vectors})

    folder, options = _located(arguments, "retriever", of_run, of_folder)
    default = EncodeConfig()
    return LoadedEncoder(
        folder, **{"precision": default.precision, "vectors": default.vectors, **options}, **_inference(arguments)
    )


def load_ranker(arguments: argparse.Namespace) -> PairScorer:
    """Load the ranker that the arguments name. If a system has several, it is the last. UserError if there is none."""

    def of_run(deployment: Deployment) -> tuple[Step, dict[str, str]] | None:
        stages = deployment.of_kind(Reranked)
        return (stages[-1].ranker.step, {"precision": stages[-1].depth.precision}) if stages else None

    def of_folder(config: configs.SystemConfig) -> tuple[str, dict[str, str]] | None:
        stages = [stage for _, stage in config.of_kind(RankerStage)]
        return (stages[-1].folder, {"precision": stages[-1].precision}) if stages else None

    folder, options = _located(arguments, "ranker", of_run, of_folder)
    return PairScorer(folder, **{"precision": ScoreConfig().precision, **options}, **_inference(arguments))


def _inference(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a model that computes in this process."""
    cluster = clusters.read_cluster(arguments.cluster).model_copy(update={"mode": "inline"})
    machine = resolve_machine(cluster)
    return {"threads": cores(), "cuda": machine.cuda, "batch_tokens": machine.batch_tokens}


def _located(
    arguments: argparse.Namespace,
    model: str,
    of_run: Callable[[Deployment], tuple[Step, dict[str, str]] | None],
    of_folder: Callable[[configs.SystemConfig], tuple[str, dict[str, str]] | None],
) -> tuple[Path, dict[str, str]]:
    """Return the folder of a model and the options that its system runs it with. UserError if there is none."""
    place = arguments.config
    if not loading.is_system(place):
        return _of_run(arguments, model, of_run)
    for key, value in {"--set": arguments.assignments, "--system": arguments.system}.items():
        if value:
            raise UserError(f"{key}: {place} is an exported folder. Use {key} with the config of a run.", key=key)
    if (place / MODEL_CONFIG).is_file():
        kind = read_json(place / MODEL_CONFIG)["kind"]
        if kind in OTHERS or (kind == RANKER) != (model == "ranker"):
            raise UserError(
                f"{place}: the folder holds a model of the kind {kind}. Give the folder of a {model}.",
                code="wrong-kind",
            )
        return place, {}
    config = configs.read(place)
    located = of_folder(config)
    if located is None:
        raise UserError(f"{place}: the system {config.name!r} has no {model}. Export one that has.", code="no-model")
    folder, options = located
    return place / folder, options


def _of_run(
    arguments: argparse.Namespace,
    model: str,
    of_run: Callable[[Deployment], tuple[Step, dict[str, str]] | None],
) -> tuple[Path, dict[str, str]]:
    """Fetch the model of a run's system, and return its folder and the options that the run used."""
    experiment, store = opened(arguments)
    outcome, name = experiment.outcome, arguments.system
    row = deployable.asked(outcome, store) if name is None else deployable.chosen(outcome, name)
    deployment = deployable.last_retrieval(outcome) if row is None else Deployment.of_row(row)
    located = of_run(deployment)
    if located is None:
        raise UserError(
            f"--system: {deployment.name!r} has no {model}. Name a system that has one: {listing(outcome.ranked)}.",
            key="--system",
            code="no-model",
        )
    node, options = located
    finished(store, node)
    store.fetch([node], "model")
    return store.path(node) / "model", options

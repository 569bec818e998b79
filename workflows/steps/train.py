"""Train a model on Ray Train: any objective, on any table it takes."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from sparring.components.compute.processor import configure_process
from sparring.components.config import Config, UserError, listing
from sparring.components.models.shape import predicted_at_once
from sparring.components.rng import keyed_int
from sparring.components.timing import timed
from sparring.components.training.config import LOG, TrainConfig
from sparring.components.training.terms import declared
from sparring.workflows.distributed import oom
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.site import Site
from sparring.workflows.distributed.worker_group import train_together
from sparring.workflows.store import attempts, transfer
from sparring.workflows.store.cost import Cost, Grouped, Made, ModelTask, Need, Sizes, Unknown, UnknownSize, Work
from sparring.workflows.store.dag import Description
from sparring.workflows.store.progress import Progress


def _cost(
    site: Site,
    *,
    objective: str,
    rows: Any,
    dev: Any,
    data: Sizes,
    tokens: Sizes,
    start: Made,
    seed: list[Any],
    config: TrainConfig,
    **own: Any,
) -> Cost:
    """Updates: forward and backward through each row's texts or pairs, three times the arithmetic of encoding them, and
    four times with `recompute`.

    In memory: of a weight that is trained 16 bytes (itself, its gradient, Adam's two moments; 18 with `weights: bf16`),
    of another 4, of each token 34 numbers a layer for the backward pass (Korthikanti et al., 2023, section 4.1), of a
    batch or, with `recompute`, of one pass; and the scores of tokens that are predicted together, with their gradient.
    With `gradient_checkpointing` these are the inputs of each layer and what is inside of one. With `shard` each worker
    has its part of the layers and one whole one, but the weights and one gradient are whole on each while it begins.
    """
    again = site.cluster.recompute
    task = _task(objective, rows, data, start, config, own, again=again)
    batch = config.batch // config.accumulate // site.workers("train")
    at_once = task.tokens * max(1, batch)
    if again:
        at_once = min(at_once, site.cluster.batch_tokens(cuda=site.cuda))
    trained, shape, pool = _trained_weights(start), start.shape, site.cluster.train
    held, states = _held(config, start, parts=site.workers("train") if pool.shard else 1), 34.0 * at_once * shape.width
    if pool.gradient_checkpointing:
        states += 2.0 * at_once * shape.width * shape.layers
    else:
        states *= shape.layers
    if declared(objective, "predicts"):
        states += 12.0 * predicted_at_once(cuda=site.cuda) * shape.vocabulary
    keys = ["a lower max_tokens_per_pass" if again else "recompute: true"]
    keys += [] if pool.gradient_checkpointing else ["train: {gradient_checkpointing: true}"]
    keys += ["train: {shard: true}"] if not pool.shard and site.workers("train") > 1 else []
    advice = f"in the profile (--cluster), {listing(keys)}; or, for another result, a smaller batch"
    looks = config.updates // config.validate_on_dev.every if config.validate_on_dev is not None else 0
    validated = looks * config.validate_on_dev.queries / config.batch / 3 if config.validate_on_dev is not None else 0
    return Cost(
        work=(Work("training", config.updates + validated, "train", task),),
        makes=start,
        objects=14,
        needs=(Need("weights, their moments and a batch's states", held + states, "train", advice, True),),
        kept=(12.0 if config.chained else 4.0) * trained,
        scratch=12.0 * trained,
        slow=_repeated(rows, config.batch),
        limits=tuple(filter(None, [_undivided(config, pool.workers or 1), _unsharded(objective, site.cluster)])),
    )


def _undivided(config: TrainConfig, workers: int) -> str:
    """What is wrong with workers that cannot share a batch; empty where they can."""
    if config.batch % (workers * config.accumulate) == 0:
        return ""
    return (
        f"batch: {config.batch} rows cannot be shared evenly among {workers} workers in {config.accumulate} parts; to "
        "change: train.workers in the profile (--cluster), which null leaves open, or the batch"
    )


def _unsharded(objective: str, cluster: Cluster) -> str:
    """What is wrong with a training that is to be sharded; empty where it can be, or need not."""
    if not cluster.train.shard or (cluster.train.workers or 1) == 1 or declared(objective, "shards") is not False:
        return ""
    reason = f"the objective {objective} divides a batch itself"
    return f"train.shard in the profile (--cluster): {reason}; accepted with it: false"


def _held(config: TrainConfig, start: Made, *, parts: int) -> float:
    """Bytes of a model with what its training keeps of its weights, where each worker has a part of each layer."""
    shape, trained = start.shape, _trained_weights(start)
    inside = float(shape.layers * shape.weights_per_layer)
    each = 18.0 if config.weights == "bf16" else 16.0
    whole = 4.0 * (shape.parameters - trained) + each * trained
    if parts == 1:
        return whole
    of_layers = inside * (each if trained >= inside else 4.0)  # of an adapter they are frozen
    divided = whole - of_layers + of_layers / parts + 4.0 * shape.weights_per_layer
    return max(divided, 8.0 * shape.parameters)


def _repeated(rows: Any, batch: int) -> str | None:
    """What to say of a batch that is larger than the data."""
    groups = _groups(rows)
    queries = None if groups is None else groups.queries
    if not queries or batch <= queries:
        return None
    return f"a batch of {batch:,} has each of the {queries:,} training queries up to {-(-batch // queries)} times"


def _groups(rows: Any) -> Grouped | None:
    """The table of groups that is trained on; None for a collection's own tables."""
    return rows.groups if isinstance(rows, Sizes) else rows if isinstance(rows, Grouped) else None


def _trained_weights(start: Made) -> float:
    """Weights of a model, or of its adapter: two thin matrices beside each of a layer's six."""
    adapter, shape = getattr(start.config, "adapter", None), start.shape
    if adapter is None:
        return float(shape.parameters)
    return float(adapter.rank * shape.layers * (10 * shape.width + 2 * shape.middle))


def _task(
    objective: str, rows: Any, data: Sizes, start: Made, config: TrainConfig, own: dict[str, Any], *, again: bool
) -> ModelTask:
    """One update. A ranker reads a pair for each candidate; a retriever a query and each candidate; what learns from
    documents alone, a document, as often as the objective `reads` it, with the tokens that it `predicts`. `again` is
    whether each pass is run once more, for its gradient."""
    if isinstance(rows, Unknown):
        raise UnknownSize("rows")
    documents, queries = data.document_lengths, np.resize(data.query_lengths, len(data.document_lengths))
    limits = {side: getattr(start.config, f"{side}_tokens", None) for side in ("query", "document", "pair")}
    groups = _groups(rows)
    candidates = 0 if groups is None else groups.candidates
    read = [np.minimum(documents + 2, limits["document"] or 128)] * max(1, candidates)
    if "vectors" in own:  # the documents' vectors are made already, and do not change
        read = []
    if getattr(start.config, "kind", "") == "cross_encoder":
        read = [np.minimum(queries + documents + 3, limits["pair"] or 160)] * max(1, candidates)
    elif candidates:
        read += [np.minimum(queries + 2, limits["query"] or 32)]
    each = len(documents) / config.batch
    passes, predicted = declared(objective, "reads") or 1.0, declared(objective, "predicts") or 0.0
    tokens = sum(float(one.sum()) for one in read)
    forward = passes * sum(map(start.shape.operations, read))
    forward += 2 * predicted * tokens * start.shape.width * start.shape.vocabulary
    work = (4 if again else 3) * forward
    if getattr(start.config, "adapter", None) is not None:  # a frozen weight has no gradient
        work -= passes * tokens * 2 * start.shape.layers * start.shape.weights_per_layer
    models = {key: one.config for key, one in own.items() if isinstance(one, Made)}
    configs = {key: one for key, one in own.items() if isinstance(one, Config)}
    rated = {key for key in own if key == "rated"}  # a validation's, which is not tried
    return ModelTask(
        "training",
        start,
        data,
        work / each,
        passes * tokens / len(documents),
        {
            "objective": objective,
            "config": config,
            "candidates": candidates,
            "scored": groups is not None and groups.scored,
            "models": models,
            "own": configs,
        },
        measurable=isinstance(rows, (Grouped, Sizes)) and own.keys() == models.keys() | configs.keys() | rated,
    )


def _refuses(objective: str, config: TrainConfig, cluster: Cluster) -> None:
    """Workers that cannot share a batch, or a model."""
    cluster = cluster.for_batch(config.batch // config.accumulate)
    if wrong := _undivided(config, cluster.train.workers or 1) or _unsharded(objective, cluster):
        raise UserError(wrong)


@Description(
    part="training",
    modules=("objective",),
    models="training",
    carried=("state",),
    shows=(LOG,),
    cost=_cost,
    refuses=_refuses,
    carries={"start": lambda inputs: inputs["config"].carry == "all"},
)
def train(
    out: Path,
    cluster: Cluster,
    *,
    objective: str,
    rows: Path,
    dev: Path | None,
    data: Path,
    tokens: Path,
    start: Path,
    seed: list[Any],
    config: TrainConfig,
    **arguments: Path | Config,
) -> dict[str, Any]:
    """Train from `start`'s model on the objective's table in `rows`; the model is written to `out/model`.

    `arguments` are those of this objective alone, by name: artifacts, such as `vectors`, and configs.

    The seed is a key, such as (seed, model, round): no two trainings see the same orders and dropout. Where
    trainings share a schedule, `out/state` keeps the optimizer for the next one; `out/metrics.jsonl` has the losses.
    """
    _refuses(objective, config, cluster)
    cluster = cluster.for_batch(config.batch // config.accumulate)
    cuda = cluster.cuda()
    task = {
        "out": out,
        "objective": objective,
        "rows": rows,
        "dev": dev,
        "data": data,
        "tokens": tokens,
        "start": start,
        "seed": keyed_int(*seed),
        "config": config,
        "arguments": arguments,
        "cluster": cluster,
        "cuda": cuda,
    }
    with oom.advise(oom.training_advice(cluster, cuda=cuda)):
        if cluster.mode == "inline":
            return work(task)
        summary = dict(train_together(work, task, cluster, gpu=cuda, storage=out))
        shutil.rmtree(out / "ray", ignore_errors=True)  # Ray Train's own mark of what it may write to
    transfer.download(out, exact=True)
    return summary


@timed("start")
def work(task: dict[str, Any]) -> dict[str, Any]:
    """What each worker does."""
    return _trained(**transfer.localize(task))


def _trained(
    *,
    out: Path,
    objective: str,
    rows: Path,
    dev: Path | None,
    data: Path,
    tokens: Path,
    start: Path,
    seed: int,
    config: TrainConfig,
    arguments: dict[str, Path | Config],
    cluster: Cluster,
    cuda: bool,
) -> dict[str, Any]:
    """Train on this node's files; the summary."""
    import torch

    from sparring.components.compute.gather import rank
    from sparring.components.training.loop import Execution
    from sparring.components.training.loop import train as run_loop
    from sparring.components.training.objective import ObjectiveInputs, make_objective

    transfer.download(out, exact=True)  # on every node the same checkpoint: the last that was sent
    configure_process(cluster.train_threads())
    inputs = ObjectiveInputs(
        model=start / "model",
        rows=rows,
        data=data,
        tokens=tokens,
        losses=config.losses,
        max_tokens=cluster.batch_tokens(cuda=cuda),
        recompute=cluster.recompute,
    )
    attempts.resume(out)
    instance = make_objective(objective, inputs, seed=seed, **arguments)
    progress = Progress(out, config.updates, "updates") if rank() == 0 else None

    def on_update(update: int, note: str) -> None:
        if progress is not None:
            progress.set_done(update, note)

    def on_save() -> None:
        attempts.keep(out)
        transfer.upload(out / LOG)
        transfer.sync(out / "checkpoints", delete=True)

    summary = run_loop(
        instance,
        config,
        out=out,
        seed=seed,
        start=start,
        device=torch.device("cuda" if cuda else "cpu"),
        dev=instance.reading(dev) if dev is not None else None,
        save_seconds=cluster.save_seconds,
        on_update=on_update,
        on_save=on_save,
        execution=Execution(
            shard=cluster.train.shard,
            gradient_checkpointing=cluster.train.gradient_checkpointing,
            compile=cluster.train.compile == "auto",
        ),
    )
    if rank() == 0:
        transfer.sync(out, delete=True)
    return summary

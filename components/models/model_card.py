"""Writer of model cards (README.md): data, recipe, measures, start model, and how to load the model.

huggingface_hub writes the metadata. The texts are the templates next to this module. `huggingface_hub.ModelCard` also
accepts a template, but its templates cannot include others, and its own template leaves most sections empty.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparring.components.models.configs import ResolvedCrossEncoderConfig, ResolvedDualEncoderConfig

HUB = re.compile(r"[\w.-]+/[\w.-]+")
"""Form of a model id on a hub. A folder may have such a name too."""


class Row(NamedTuple):
    """A system's mean of a measure over queries, with the ends of its 95 % interval."""

    system: str
    measure: str
    value: float
    low: float | None
    high: float | None
    queries: int
    seeds: int = 1

    def __str__(self) -> str:
        return f"{self.value:.4f}" + (f" ({self.interval})" if self.interval else "")

    @property
    def interval(self) -> str:
        """The interval in words. It is empty if there is none, as for a single query."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:.4f} to {self.high:.4f}"


class Measures(NamedTuple):
    """The measures of systems on a split of a collection."""

    collection: str
    split: str
    rows: Sequence[Row]
    """Rows of the model or system first, then rows of the systems that it is compared with."""
    averaged: bool = False
    """True if the values are averages over collections."""


class StartModel(NamedTuple):
    """A model that training starts from."""

    name: str
    licence: str | None
    """Licence from the model's card. If None, the card does not name one."""
    datasets: Sequence[str]
    """Training data that the model's card names."""


class Origin(NamedTuple):
    """The origin of a model."""

    recipe: str
    command: str
    """Command that trained and measured the model."""
    date: str
    commit: str | None
    collection: str
    """Collection that the model was trained on. If nothing was trained, the collection that was searched."""
    data: Sequence[str]
    """Contents of the collection, one line each."""
    trainings: Sequence[str]
    """Trainings in their order, one line each."""
    read: Sequence[str]
    """Collections that the trainings read."""
    starts: Sequence[StartModel]
    measured: Sequence[Measures]
    summed: bool = False
    """True if the measures are those of a sum of the model's scores and the scores of other systems."""

    @property
    def provenance(self) -> str:
        """Sparring's part in making the model."""
        return f"{'trained' if self.trainings else 'exported'} with Sparring"


RETRIEVAL = ("information-retrieval", "Information Retrieval")
_SIMILARITY = ("semantic-similarity", "Semantic Similarity")
_CLASSIFICATION = ("text-classification", "Text Classification")
TASKS = {
    "Spearman": _SIMILARITY,
    "Pearson": _SIMILARITY,
    "accuracy": _CLASSIFICATION,
    "dev accuracy": _CLASSIFICATION,
}
"""The hub's type and name of a measure's task. Measures that are not listed belong to retrieval."""
TAGS = {
    "retriever": ["sentence-transformers", "feature-extraction", "dense-retrieval", "sparring"],
    "ranker": ["sentence-transformers", "cross-encoder", "reranker", "sparring"],
    "system": ["retrieval", "sparring"],
}
PIPELINES = {"retriever": "sentence-similarity", "ranker": "text-ranking"}
POOLINGS = {"mean": "mean", "cls": "[CLS]", "last": "last-token", "first_last": "mean (of the first and last layer)"}
TEMPLATES = Path(__file__).parent / "templates"


def metadata(
    kind: Literal["retriever", "ranker", "system"], bases: Sequence[str], name: str, measured: Sequence[Measures]
) -> str:
    """Format the YAML metadata of a card for model hubs.

    `bases` are the start models. Averages over collections are omitted, because the hub wants results per data set.
    """
    from huggingface_hub.repocard_data import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=TASKS.get(row.measure, RETRIEVAL)[0],
            task_name=TASKS.get(row.measure, RETRIEVAL)[1],
            dataset_type=re.sub(r"[^\w.-]+", "-", table.collection),
            dataset_name=table.collection,
            dataset_split=table.split,
            metric_type=row.measure,
            metric_name=row.measure,
            metric_value=round(row.value, 4),
        )
        for table in measured
        for row in table.rows
        if not table.averaged
    ]
    pipeline = PIPELINES.get(kind)
    data = ModelCardData(
        library_name=pipeline and "sentence-transformers",
        pipeline_tag=pipeline,
        tags=TAGS[kind],
        # Hubs know neither a path of this machine nor a package.
        base_model=[base for base in bases if HUB.fullmatch(base) and not Path(base).exists()] or None,
        model_name=name,
        eval_results=results or None,
    )
    if not results:
        data.pop("model_name")
    return f"---\n{data.to_yaml()}\n---\n"


def retriever_card(
    config: ResolvedDualEncoderConfig,
    origin: Origin,
    *,
    onnx: bool = False,
    encoder: str = "AutoModel",
    base: str | None = None,
    sizes: Sequence[int] = (),
) -> str:
    """Write the card of a retriever.

    `encoder` is the transformers class that loads its encoders. `base` is the base model of the adapters. If None, the
    folder has complete encoders. `sizes` are the numbers of dimensions that its vectors were trained to be cut to.
    """
    prompts = {"query": config.query_prompt, "document": config.document_prompt}
    return _card(
        "retriever",
        origin,
        config=config,
        onnx=onnx,
        encoder=encoder,
        base=base,
        sizes=sizes,
        sentences=any(row.measure in TASKS for table in origin.measured for row in table.rows),
        separate=config.towers == "separate",
        pooling=POOLINGS[config.pooling],
        question=json.dumps(f"{config.query_prompt}a question", ensure_ascii=False),
        prompts={side: prompt for side, prompt in prompts.items() if prompt},
    )


def ranker_card(config: ResolvedCrossEncoderConfig, origin: Origin, *, code: bool, onnx: bool = False) -> str:
    """Write the card of a ranker. With `code`, its folder contains code."""
    score = {
        "cls": "the score of the model's classification head",
        "first": "a linear layer on the first token's state",
        "mean": "a linear layer on the mean of the tokens' states",
        "last": "a linear layer on the last token's state",
        "token": f"how much it expects `{config.true_token}` as the next token"
        + (f", less how much `{config.false_token}`" if config.false_token else ""),
        "maxsim": "the mean over the query's tokens of the highest cosine with a token of the document",
    }[config.pooling]
    return _card("ranker", origin, config=config, code=code, onnx=onnx, score=score)


def _card(kind: Literal["retriever", "ranker"], origin: Origin, **values: Any) -> str:
    """Fill the template of a kind of model."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(),  # escapes HTML only, and these are Markdown
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    title = f"{origin.collection}: {kind}"
    measured = [
        table._replace(rows=[row for row in table.rows if row.system == table.rows[0].system])
        for table in origin.measured
        if not origin.summed
    ]
    text = environment.get_template(f"{kind}.md").render(title=title, origin=origin, **values)
    return metadata(kind, [model.name for model in origin.starts], title, measured) + text

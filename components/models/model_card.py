"""Writes the card, README.md, of a model that was trained here: data, recipe, measures, start model, how to load it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparring.components.models.configs import ResolvedCrossEncoderConfig, ResolvedDualEncoderConfig
from sparring.components.yaml_files import yaml_text

HUB = re.compile(r"[\w.-]+/[\w.-]+")
"""The id of a model on a hub, unless it is a folder here."""


class Row(NamedTuple):
    """A measure of a system: its mean over the queries, with the ends of the 95 % interval."""

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
        """The interval in words; empty of one query."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:.4f} to {self.high:.4f}"


class Measures(NamedTuple):
    """What was measured on a split of a collection."""

    collection: str
    split: str
    rows: Sequence[Row]
    """Of the model, or the system, itself first, then those of what it is to be compared with."""
    averaged: bool = False
    """Whether these are averages over collections."""


class StartModel(NamedTuple):
    """What a model begins from."""

    name: str
    licence: str | None
    """As its card has it; None where that does not say."""
    datasets: Sequence[str]
    """What its card says that it was trained on."""


class Origin(NamedTuple):
    """Where a model comes from."""

    recipe: str
    command: str
    """What trained and measured it."""
    date: str
    commit: str | None
    collection: str
    """The one that it was trained on; of a model without training here, the one that was searched."""
    data: Sequence[str]
    """What the collection holds, a line each."""
    trainings: Sequence[str]
    """The trainings that it comes from, a line each, in their order."""
    read: Sequence[str]
    """The collections that had a part in these."""
    starts: Sequence[StartModel]
    measured: Sequence[Measures]
    summed: bool = False
    """Whether its own are of its scores with those of other systems added."""

    @property
    def made(self) -> str:
        """What Sparring has to do with it."""
        return f"{'trained' if self.trainings else 'exported'} with Sparring"


SUMMED = (
    "**Its measures are not of this model alone**: they are of the sum of its scores and those of the lists that it "
    "orders, with weights that judged queries chose. `sparring export --system NAME` exports all of it."
)
RETRIEVAL = {"type": "information-retrieval", "name": "Information Retrieval"}
_RATED = {"type": "semantic-similarity", "name": "Semantic Similarity"}
_CLASSIFIED = {"type": "text-classification", "name": "Text Classification"}
TASKS = {"Spearman": _RATED, "Pearson": _RATED, "accuracy": _CLASSIFIED, "dev accuracy": _CLASSIFIED}
"""What measures of sentences are of, as hubs name tasks; all others are of retrieval."""
POOLINGS = {"mean": "mean", "cls": "[CLS]", "last": "last-token", "first_last": "mean (of the first and last layer)"}


def metadata(
    kind: Literal["retriever", "ranker", "system"], bases: Sequence[str], name: str, measured: Sequence[Measures]
) -> str:
    """The YAML at the head of a card, as model hubs read it; `bases` are the models that it was made from. Averages
    over collections are left out, as those are no data set."""
    tree: dict[str, Any] = {
        "retriever": {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"},
        "ranker": {"library_name": "sentence-transformers", "pipeline_tag": "text-ranking"},
    }.get(kind, {})
    libraries = ["sentence-transformers"] if tree else []
    kinds = {"retriever": ["feature-extraction", "dense-retrieval"], "ranker": ["cross-encoder", "reranker"]}
    tree = {**tree, "tags": [*libraries, *kinds.get(kind, ["retrieval"]), "sparring"]}
    # A path of this machine and a package are no ids of a hub.
    if named := [base for base in bases if HUB.fullmatch(base) and not Path(base).exists()]:
        tree["base_model"] = named
    results = [
        {
            "task": TASKS.get(of.rows[0].measure, RETRIEVAL),
            "dataset": {"type": re.sub(r"[^\w.-]+", "-", of.collection), "name": of.collection, "split": of.split},
            "metrics": [{"type": one.measure, "name": one.measure, "value": round(one.value, 4)} for one in of.rows],
        }
        for of in measured
        if of.rows and not of.averaged
    ]
    if results:
        tree["model-index"] = [{"name": name, "results": results}]
    return f"---\n{yaml_text(tree)}---\n"


def retriever_card(
    config: ResolvedDualEncoderConfig,
    origin: Origin,
    *,
    onnx: bool = False,
    encoder: str = "AutoModel",
    base: str | None = None,
) -> str:
    """The card of a retriever. `encoder` is transformers' class that reads its encoders; `base` the model whose
    adapters the folder holds, where they are apart."""
    how = "towers of its own for queries and documents" if config.towers == "separate" else "one tower"
    sentences = any(row.measure in TASKS for of in origin.measured for row in of.rows)
    what = "An encoder of sentences, of" if sentences else "A dense retriever for search in"
    about = (
        f"{what} {origin.collection}, {origin.made}. It has {how}, "
        f"{POOLINGS[config.pooling]} pooling, and compares vectors by "
        f"{'cosine' if config.similarity == 'cosine' else 'inner product'}. A query is cut at {config.query_tokens} "
        f"tokens, a document at {config.document_tokens}."
    )
    tower = "FOLDER/query" if config.towers == "separate" else "FOLDER"
    mean = '(hidden * batch["attention_mask"][:, :, None]).sum(1) / batch["attention_mask"].sum(1, keepdim=True)'
    text = {
        "cls": "hidden[:, 0]",
        "mean": mean,
        "first_last": mean,
        "last": "hidden[:, -1]  # of one text: there is no padding behind it",
    }[config.pooling]
    prompts = [
        f"`{prompt}` before every {side}"
        for side, prompt in {"query": config.query_prompt, "document": config.document_prompt}.items()
        if prompt
    ]
    use = [
        "FOLDER is this folder, or its id on a hub. A document is its title, a space, and its text.",
        "",
        *(
            [
                f"The folder holds adapters (LoRA) alone: `peft` must be installed, and their base be there, `{base}`.",
                "",
            ]
            if base is not None
            else []
        ),
        *(_sentence_transformers() if base is None or tower == "FOLDER" else []),
        *(
            [
                f"sentence-transformers cuts queries at {config.document_tokens} tokens too: longer ones get other "
                "vectors there.",
                "",
            ]
            if config.towers == "shared" and config.query_tokens != config.document_tokens
            else []
        ),
        "With transformers alone"
        + (", here for queries (documents: `FOLDER/document`)" if tower != "FOLDER" else "")
        + ":",
        "",
        "```python",
        f"from transformers import {', '.join(sorted(['AutoTokenizer', encoder]))}",
        "",
        f'tokenizer, encoder = AutoTokenizer.from_pretrained("{tower}"), {encoder}.from_pretrained("{tower}")',
        f"batch = tokenizer([{json.dumps(f'{config.query_prompt}a question', ensure_ascii=False)}], "
        f"truncation=True, max_length={config.query_tokens}, padding=True, "
        'return_tensors="pt")',
        *(
            ["states = encoder(**batch).hidden_states", "hidden = (states[1] + states[-1]) / 2"]
            if config.pooling == "first_last"
            else ["hidden = encoder(**batch).last_hidden_state"]
        ),
        f"vectors = {text}",
        *(
            [f"vectors = vectors[:, :{config.truncate}]"]
            if config.truncate is not None and config.projection is None
            else []
        ),
        *(
            ["vectors = vectors / vectors.norm(dim=-1, keepdim=True)"]
            if config.similarity == "cosine" and config.projection is None
            else []
        ),
        "```",
        "",
        *(
            ["The projection that follows is in sentence-transformers' modules alone.", ""]
            if config.projection is not None
            else []
        ),
        *([f"Prompts: {', '.join(prompts)}; sentence-transformers puts them there itself.", ""] if prompts else []),
        *(_onnx('SentenceTransformer("FOLDER", backend="onnx")') if onnx else []),
    ]
    return _card("retriever", f"{origin.collection}: retriever", about, origin, use)


def _sentence_transformers() -> list[str]:
    return [
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'retriever = SentenceTransformer("FOLDER")',
        'queries = retriever.encode_query(["a question"])',
        'documents = retriever.encode_document(["A title and the text"])',
        "scores = retriever.similarity(queries, documents)",
        "```",
        "",
    ]


def ranker_card(config: ResolvedCrossEncoderConfig, origin: Origin, *, code: bool, onnx: bool = False) -> str:
    """The card of a ranker; `code` says whether its folder has code of its own."""
    score = {
        "cls": "the classification head's score",
        "first": "a linear layer on the first token's state",
        "mean": "a linear layer on the mean of the tokens' states",
        "last": "a linear layer on the last token's state",
        "token": f"how much it expects `{config.true_token}` as the next token"
        + (f", less how much `{config.false_token}`" if config.false_token else ""),
        "maxsim": "the mean over the query's tokens of the highest cosine with a token of the document",
    }[config.pooling]
    about = (
        f"A ranker (cross encoder) for search in {origin.collection}, {origin.made}. It reads a query and a document "
        f"together, {config.pair_tokens} tokens at most; its score is {score}."
    )
    trusted = ", trust_remote_code=True" if code else ""
    use = [
        "FOLDER is this folder, or its id on a hub. A document is its title, a space, and its text.",
        "",
        "```python",
        "from sentence_transformers import CrossEncoder",
        "",
        f'ranker = CrossEncoder("FOLDER"{trusted})  # scores are logits',
        'scores = ranker.predict([("a question", "A title and the text")])',
        "```",
        "",
        *(["The score is code in the folder, `maxsim.py`; `trust_remote_code=True` lets it run.", ""] if code else []),
        *(
            [
                "With transformers alone: "
                '`AutoModelForSequenceClassification.from_pretrained("FOLDER", num_labels=1)`.',
                "",
            ]
            if config.pooling == "cls"
            else []
        ),
        *(_onnx(f'CrossEncoder("FOLDER", backend="onnx"{trusted})') if onnx else []),
    ]
    return _card("ranker", f"{origin.collection}: ranker", about, origin, use)


def _onnx(call: str) -> list[str]:
    return [f"`onnx/model.onnx` is the encoder for ONNX Runtime: `{call}` (with `optimum-onnx`).", ""]


def _card(kind: Literal["retriever", "ranker"], title: str, about: str, origin: Origin, use: Sequence[str]) -> str:
    at = f" at commit {origin.commit[:12]}" if origin.commit else ""
    lines = [
        f"# {title}",
        "",
        about,
        "",
        "## Use",
        "",
        *use,
        "## Data",
        "",
        f"The collection {origin.collection}:",
        "",
        *(f"- {line}" for line in origin.data),
        "",
        "## Recipe",
        "",
        f"Recipe `{origin.recipe}` of Sparring, {origin.date}, by `{origin.command}`{at}.",
        "",
        *(
            [*(f"{number}. {line}" for number, line in enumerate(origin.trainings, 1)), ""]
            if origin.trainings
            else ["Nothing was trained: this is the start model.", ""]
        ),
        "## Measures",
        "",
        *measures(origin),
        "",
        "## Training data",
        "",
        *training_data(origin),
        "",
    ]
    own = (
        []
        if origin.summed
        else [of._replace(rows=[row for row in of.rows if row.system == of.rows[0].system]) for of in origin.measured]
    )
    return metadata(kind, [one.name for one in origin.starts], title, own) + "\n".join(lines)


def measures(origin: Origin) -> list[str]:
    """The tables of measures, with what they say."""
    if not origin.measured:
        return ["Nothing was measured."]
    seeds = origin.measured[0].rows[0].seeds
    over = "over the queries" if seeds == 1 else f"over the queries and {seeds} trainings, of which this is one"
    lines = [f"Means, with their 95 % intervals {over}."]
    for of in origin.measured:
        names = list(dict.fromkeys(row.measure for row in of.rows))
        systems = list(dict.fromkeys(row.system for row in of.rows))
        found = {(row.system, row.measure): str(row) for row in of.rows}
        queries = f"{max(row.queries for row in of.rows):,} queries"
        on = f"On {of.collection}, {queries} of the split {of.split}:"
        lines += [
            "",
            "On average over the sets:" if of.averaged else on,
            "",
            f"| system | {' | '.join(names)} |",
            f"|---{'|---' * len(names)}|",
            *(f"| {system} | {' | '.join(found.get((system, name), '') for name in names)} |" for system in systems),
        ]
    return [*lines, "", SUMMED] if origin.summed else lines


def training_data(origin: Origin) -> list[str]:
    """What the model and its start model learnt from, and under which licence the start model is."""
    lines = []
    for one in origin.starts:
        licence = f"its licence is {one.licence}" if one.licence else "its licence is not known here"
        known = "" if one.datasets else " What it was trained on is not known here: see its own card."
        lines.append(f"The start model is `{one.name}`; {licence}.{known}")
    rows = [(name, f"the start model {one.name}") for one in origin.starts for name in one.datasets]
    rows += [(name, "this model") for name in origin.read]
    lines += ["", "On what is in this table, results are not zero-shot."] if rows else []
    table = ["", "| Dataset | read by |", "|---|---|", *(f"| {name} | {by} |" for name, by in rows)] if rows else []
    return [*lines, *table]

"""Choose the numbers that a config leaves open by what the collection is like, and give the reason for each."""

import hashlib
import json
import math
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from sparring.components.config import UserError, did_you_mean, listing
from sparring.components.data.tables import DEV
from sparring.components.models.capabilities import (
    can_be_read,
    has_classifier,
    has_token_types,
    is_decoder,
    longest,
    token_counter,
)
from sparring.components.models.configs import MODULES, PAIR, locate_model
from sparring.components.models.shape import shape_of
from sparring.components.sources.base import HoldOut
from sparring.components.sources.survey import Survey, relevant_documents, survey
from sparring.workflows.recipes.adapt.budget import within_hours
from sparring.workflows.recipes.adapt.config import PAIRS, TEMPERATURE, Config, Length, Pairs, Trainings
from sparring.workflows.stages.config import Default, FastConfig

UNASKED = "systems are compared by queries with judgements, and `pretrain: false` leaves nothing to train on"
MISSING = "source missing: not yet that of the collection"
NO_TRAINING_QUERY = "no query of `train` is judged"
NO_JUDGEMENT = "no query of the collection's {split} has a relevant document"
UNSEEN = Survey(
    of="", documents=100, asked=3_000, queries={"train": 2_000, DEV: 500, "test": 500}, relevant=1.0, graded=False
)
"""Survey that stands in for a collection that cannot be read."""
UNREADABLE = "the start model cannot be read here"
UNREAD = {"query_tokens": 32, "document_tokens": 256}
"""Lengths in tokens, if texts cannot be counted."""
UPDATES = {"warm": (150, 600), "ranker": (150, 600), "game": (100, 300), "pairs": (150, 600)}
"""Minimum and maximum number of updates of a training whose length is left open."""
DEV_QUERIES = (200, 1_000)
"""Minimum and maximum number of dev queries that are held out. They are a tenth of the training queries, and never over
a third of what other splits leave. If no training query is judged, they are half of the judged queries, up to the
maximum."""
DEV_NAMES = (DEV, "validation", "valid", "val")
FEW = 100
"""With fewer training queries than this, little is to be expected of a training."""
LARGE = 10_000
"""Number of documents from which a retriever that learns from the documents alone is a candidate, if there are less
than a tenth as many training queries."""
SEVERAL = 1.5
"""Number of relevant documents per query from which measures look at more than the first."""

Lasting = TypeVar("Lasting", bound=Length)

PATIENCE = 10.0
"""Seconds after which a survey reports that it is working."""


def resolve(config: Config, previous: Mapping[str, Any] | None) -> tuple[Config, list[Default]]:
    """Fill in what a config leaves open, and list it. `previous` is the resolved config of an earlier run.

    The collection is surveyed once. An earlier survey of the same declared source holds even if the files are missing,
    unless it could not count tokens and this run can. If there is no survey and no collection, the numbers suit no
    collection in particular. Then values give way until the run fits into the hours of its budget (`budget.py`), which
    an earlier run of the same config has settled. A resolved config resolves to itself. UserError if the collection
    offers nothing to compare systems by.
    """
    findings = _found(config, previous)
    resolving = _Resolving(config, findings)
    resolved = resolving.resolved().model_copy(update={"survey": findings})
    if findings is None or config.shape is not None:
        return resolved, resolving.defaults
    counts = resolved.data.counts(findings.queries)
    shaped, changes = within_hours(resolved, config, counts, previous)
    replaced = {change.key for change in changes}
    return shaped, [*(default for default in resolving.defaults if default.key not in replaced), *changes]


def _found(config: Config, previous: Mapping[str, Any] | None) -> Survey | None:
    """Survey the collection, or take an earlier survey. Return None if its files are missing and were never
    surveyed."""
    declared = config.data.model_dump(mode="json", exclude={"hold_out", "sample", "only_judged", "own_document"})
    key = json.dumps(
        [
            declared,
            config.model.model_dump(mode="json", include={"model", "revision", "query_prompt", "document_prompt"}),
        ]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    earlier = (previous or {}).get("survey")
    surveys = (config.survey, Survey(**earlier) if earlier else None)
    held = next((candidate for candidate in surveys if candidate is not None and candidate.of == digest), None)
    if config.data.missing() or (held is not None and held.document_tokens is not None):
        return held
    queries, documents = (
        token_counter(config.model, prompt) for prompt in (config.model.query_prompt, config.model.document_prompt)
    )
    if held is not None and documents is None:  # the earlier run could not count them either
        return held
    patience = threading.Timer(PATIENCE, _say_what_takes_so_long)
    patience.start()
    try:
        return survey(config.data, digest, queries=queries, documents=documents)
    finally:
        patience.cancel()


def _say_what_takes_so_long() -> None:
    print("adapt: reading the collection, for what the config leaves open", file=sys.stderr, flush=True)


class _Resolving:
    """Resolution of the values that a config leaves open."""

    def __init__(self, config: Config, findings: Survey | None) -> None:
        self._config, self._seen, self._survey = config, findings is not None, findings or UNSEEN
        self.defaults: list[Default] = []

    def resolved(self) -> Config:
        """Fill in the config's numbers."""
        if self._seen:
            self._check()
        config, evaluate = self._config, self._config.evaluate
        if self._seen and not self._survey.queries:
            train = self._note("train", False, "no query of the collection has a relevant document")
            alone = {"model": self._model(), "train": train, "pretrain": self._pairs({})}
            return config.model_copy(update=alone | self._ranker(alone["model"]))
        hold_out, chosen = dict(config.data.hold_out), dict[str, Any]()
        if "split" not in evaluate.model_fields_set and evaluate.split not in self._counts(hold_out):
            split = f"held-out {evaluate.split}" if evaluate.split in self._survey.unjudged else evaluate.split
            if split != evaluate.split:
                chosen["split"] = self._note("evaluate.split", split, NO_JUDGEMENT.format(split=evaluate.split))
            hold_out[split] = self._held_out(split, self._whole(evaluate.split), hold_out)
        if "select" not in evaluate.model_fields_set:
            counts = self._counts(hold_out)
            select = next((name for name in DEV_NAMES if name in counts and name != evaluate.split), None)
            if select is None:
                taken = DEV in counts or DEV in self._survey.unjudged
                select = "chosen by" if taken else DEV
                hold_out[select] = self._held_out(select, self._whole(evaluate.split), hold_out)
            if select != DEV:
                unjudged = NO_JUDGEMENT.format(split=DEV) if DEV in self._survey.unjudged else f"no split {DEV}"
                self._note("evaluate.select", select, f"{DEV} is measured" if evaluate.split == DEV else unjudged)
            chosen["select"] = select
        counts = self._counts(hold_out)
        for key, name in (evaluate.model_dump(include={"split", "select"}) | chosen).items():
            if not self._seen or name in counts:
                continue
            if key not in evaluate.model_fields_set:
                remaining = listing(f"{count} of {split}" for split, count in counts.items())
                raise UserError(
                    f"data: too few queries have a relevant document to hold out {name!r} of them ({remaining} "
                    "would be left); accepted: more of them, or none"
                )
            raise UserError(
                f"evaluate.{key}: no query of {name!r} has a relevant document; splits that have some: "
                f"{listing(counts)}; without this key one is taken, or held out"
            )
        if "measures" not in evaluate.model_fields_set:
            chosen["measures"] = self._measures()
        if "entropy" not in evaluate.model_fields_set:
            chosen["entropy"] = evaluate.entropy.model_copy(update=TEMPERATURE)
        update: dict[str, Any] = {
            "data": config.data.model_copy(update={"hold_out": hold_out}),
            "model": self._model(),
            "evaluate": evaluate.model_copy(update=chosen),
            "train": self._trainings(counts),
            "pretrain": self._pairs(counts),
        }
        if config.fast and update["train"] is False:
            update["fast"] = self._note("fast", False, "nothing is trained on queries", of_collection=False)
        elif update["train"] is not False and (layers := self._fast_layers()):
            reason = "the budget limits latency, and a third of the layers answers faster"
            update["fast"] = FastConfig(layers=self._note("fast.layers", layers, reason, of_collection=False))
        if "k" not in config.model_fields_set and self._survey.documents < config.k:
            update["k"] = self._note("k", self._survey.documents, "all documents")
        return config.model_copy(update=update | self._ranker(update["model"]))

    def _fast_layers(self) -> int:
        """Choose the layers of a smaller retriever, if latency is limited and the user left it open. Otherwise return
        0."""
        config, budget = self._config, self._config.budget
        if budget is None or budget.p95_ms is None or config.fast is not None:
            return 0
        layers = shape_of(config.model).layers
        return layers // 3 if layers >= 2 * 3 else min(1, layers - 1)

    def _ranker(self, model: Any) -> dict[str, Any]:
        """Choose the ranker's input and the source of its score."""
        update: dict[str, Any] = {}
        begun = self._config.ranker_model
        if self._config.pair_tokens is None and (begun is None or begun.pair_tokens is None):
            both = (model.query_tokens or 0) + (model.document_tokens or 0)
            limit = self._limit() if begun is None else longest(begun)
            update["pair_tokens"] = self._note(
                "pair_tokens", min(both, limit), "a query with its document, as the model's limit allows"
            )
        if begun is not None:
            return update
        pooling = self._config.ranker_pooling
        if pooling is None:
            model = self._config.model
            classifies = not can_be_read(model) or has_token_types(model) or has_classifier(model)
            pooling = "cls" if classifies else "mean"
            reason = "loads in other servers too" if classifies else "transformers has no classifier for this model"
            update["ranker_pooling"] = self._note("ranker_pooling", pooling, reason, of_collection=False)
        last = pooling == "last" or (pooling == "cls" and self._causal())
        if last and self._config.ranker_template is None:
            reason = "a causal language model must be told where a query ends"
            update["ranker_template"] = self._note("ranker_template", PAIR, reason, of_collection=False)
        return update

    def _causal(self) -> bool:
        """Check whether the start model is a causal language model. The check for token types is faster."""
        return not has_token_types(self._config.model) and is_decoder(self._config.model)

    def _note(self, key: str, value: Any, reason: str, *, of_collection: bool = True) -> Any:
        """Note a value with its reason, and return the value."""
        guessed = of_collection and not self._seen
        self.defaults.append(Default(key, value, MISSING if guessed else reason, guessed))
        return value

    def _check(self) -> None:
        """Raise UserError if there is nothing to compare systems by and nothing to train without queries. UserError
        also if a split is to be drawn from a split that does not exist."""
        held = self._config.data.hold_out
        splits = {*self._survey.queries, *self._survey.unjudged, *held}
        for split, hold_out in held.items():
            if self._survey.queries and hold_out.of not in splits:
                raise UserError(
                    f"data.hold_out.{split}.of: no split {hold_out.of!r}; accepted: {listing(splits)}"
                    f"{did_you_mean(hold_out.of, splits)}"
                )
        self._check_case(splits)
        if self._config.pretrain is not False:
            return
        if not self._survey.asked:
            raise UserError(f"data: the collection has no queries; {UNASKED}")
        if not self._survey.queries:
            raise UserError(f"data: none of the {self._survey.asked:,} queries has a relevant document; {UNASKED}")

    def _check_case(self, splits: set[str]) -> None:
        """Raise UserError if a split's name differs only in case from one that is wanted and missing."""
        evaluate = self._config.evaluate
        sought = {"train": self._config.train is not False, "test": "split" not in evaluate.model_fields_set}
        sought |= dict.fromkeys(DEV_NAMES, "select" not in evaluate.model_fields_set and splits.isdisjoint(DEV_NAMES))
        for split in sorted(splits):
            if sought.get(usual := split.lower()) and usual not in splits:
                key = "split" if usual == "test" else "select"
                alternative = "" if usual == "train" else f", or `evaluate: {{{key}: {split}}}` in the config"
                raise UserError(
                    f"data: the split {split!r} would not be taken for {usual!r}, as names are compared "
                    f"with case; accepted: {usual!r} in the files{alternative}"
                )

    def _whole(self, measured: str) -> str:
        """Choose the split that others are drawn from: train, or the measured split, or the split with most queries."""
        queries = self._survey.queries
        return next((split for split in ("train", measured) if split in queries), max(queries, key=queries.__getitem__))

    def _counts(self, hold_out: Mapping[str, HoldOut]) -> dict[str, int]:
        """Estimate the number of judged queries of each split, after splits are held out and samples drawn."""
        counts = self._config.data.model_copy(update={"hold_out": hold_out}).counts(self._survey.queries)
        return {split: count for split, count in counts.items() if count > 0}

    def _held_out(self, split: str, whole: str, hold_out: Mapping[str, HoldOut]) -> HoldOut:
        """Hold out a split from another, next to those in `hold_out`."""
        queries = self._survey.queries[whole]
        least, most = DEV_QUERIES
        wanted = min(max(queries / 10, least), most) if whole == "train" else most
        before = self._config.data.model_copy(update={"hold_out": hold_out, "sample": {}})
        rest = before.counts(self._survey.queries)[whole]
        share = round(min(wanted / rest, 1 / (3 if whole == "train" else 2)), 4)
        pool = f"{rest:,} remaining" if rest < queries else f"{rest:,}"
        self._note(
            f"data.hold_out.{split}",
            f"{{of: {whole}, share: {share:g}}}",
            f"a random sample of about {round(share * rest):,} of the {pool} queries of {whole}; the collection "
            "has none of its own",
        )
        return HoldOut(of=whole, share=share)

    def _measures(self) -> list[str]:
        """Choose the measures. The first one decides."""
        findings = self._survey
        if findings.graded or findings.relevant >= SEVERAL:
            reason = "judgements are graded" if findings.graded else relevant_documents(findings.relevant)
            measures = ["nDCG@10", "R@100"]
        else:
            reason, measures = f"{relevant_documents(findings.relevant)}, not graded", ["RR@10", "Success@5", "R@100"]
        self._note("evaluate.measures", listing(measures), reason)
        return measures

    def _limit(self) -> int:
        """Return the maximum number of tokens of a text that the start model reads and that are kept."""
        return min(longest(self._config.model), self._config.tokens.max_tokens)

    def _model(self) -> Any:
        """Fill in the start model's lengths. If its folder does not say how vectors are made and compared, fill in that
        too."""
        model, limit, update = self._config.model, self._limit(), {}
        for key, standard in UNREAD.items():
            if getattr(model, key) is not None:
                continue
            measured = getattr(self._survey, key)
            wanted = standard if measured is None else 8 * math.ceil(measured / 8)
            none = key == "query_tokens" and self._seen and not self._survey.asked
            unknown = "the collection has no queries" if none else "the model's tokenizer cannot be read here"
            reason = f"95 % have at most {measured} tokens" if measured else unknown
            reason += f"; the model reads {limit}" if wanted > limit else ""
            update[key] = self._note(f"model.{key}", min(wanted, limit), reason)
        folder = Path(locate_model(model.model))
        if folder.is_dir() and not (folder / MODULES).exists():
            pooling = "last" if self._causal() else "mean"
            for key, value in {"pooling": pooling, "similarity": "cosine"}.items():
                if getattr(model, key) is None:
                    update[key] = self._note(f"model.{key}", value, "an encoder alone", of_collection=False)
        return model.model_copy(update=update)

    def _trainings(self, counts: Mapping[str, int]) -> Trainings | bool:
        """Fill in the updates of the trainings. Return False if there are no queries to train on."""
        config, queries = self._config.train, counts.get("train", 0)
        if config is False:
            return False
        if not queries:
            judged = self._survey.queries.get("train", 0)
            reason = f"all {judged:,} judged queries of `train` are held out" if judged else NO_TRAINING_QUERY
            return bool(self._note("train", False, reason))
        update = {}
        for name in ("warm", "ranker", "game"):
            unit = "training queries", "; few: expect little" if queries < FEW else ""
            update[name] = self._lasting(f"train.{name}", getattr(config, name), queries, unit, UPDATES[name])
        return config.model_copy(update=update)

    def _pairs(self, counts: Mapping[str, int]) -> Pairs | bool:
        """Fill in the training on pairs made of documents. Return False if there are enough queries."""
        pairs, findings, queries = self._config.pretrain, self._survey, counts.get("train", 0)
        if pairs is None:
            if findings.queries and (findings.documents < LARGE or 10 * queries >= findings.documents):
                return False
            pairs = Pairs(**PAIRS)
            reason = f"{findings.documents:,} documents and {queries:,} training queries"
            self._note("pretrain", f"{{pairs: {pairs.pairs}}}", reason)
        if pairs is False:
            return False
        return self._lasting("pretrain", pairs, findings.documents, ("documents", ""), UPDATES["pairs"])

    def _lasting(
        self, key: str, training: Lasting, count: int, unit: tuple[str, str], bounds: tuple[int, int]
    ) -> Lasting:
        """Fill in a training's updates. `unit` names what a pass counts, and ends the reason."""
        if training.updates is not None:
            return training
        (least, most), passes = bounds, training.epochs or 1
        once = math.ceil(passes * count / training.batch)
        updates = once if training.epochs else min(max(once, least), most)
        reason = f"{passes:g} x {count:,} {unit[0]} in batches of {training.batch}"
        if updates != once:
            reason += f" make {once:,} update{'' if once == 1 else 's'}; "
            reason += f"raised to the minimum of {least:,}" if updates > once else f"cut to the maximum of {most:,}"
        self._note(f"{key}.updates", updates, reason + unit[1])
        return training.model_copy(update={"updates": updates, "epochs": None})

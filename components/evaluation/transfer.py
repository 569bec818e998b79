"""Transfer tasks: linear classifiers over frozen sentence vectors.

As in SentEval (Conneau and Kiela, 2018): logistic regression, its strength chosen by the accuracy on data that is not
tested on. A set without splits is cross-validated, and within the training part of each fold the strength is chosen by
another cross-validation (MR, CR, SUBJ, MPQA). One with splits is trained on `train`; the strength is chosen on `dev`
(SST2) or, where there is no dev, by cross-validation of `train` (TREC, MRPC). This is SentEval with scikit-learn.
DiffCSE (Chuang et al., 2022, Table 2.2) says logistic regression too; its released code has SentEval fit the same
classifier with PyTorch, by Adam, and stop early.

The value of an example is whether it was classified right. Their mean is the accuracy over all examples; SentEval has
the mean of the folds' accuracies, which differs in the third digit at most where folds differ in size by one. The same
holds for the accuracy that the strength is chosen by, SentEval's `devacc`, which DiffCSE's ablations report.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, model_validator

from sparring.components.config import Config, UserError, distinct

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Measure = Literal["accuracy", "dev accuracy"]


class TransferConfig(Config):
    """Training of classifiers on frozen vectors. The defaults are SentEval's."""

    measures: Annotated[list[Measure], AfterValidator(distinct)] = Field(
        ["accuracy"], min_length=1, exclude_if=lambda measures: measures == ["accuracy"]
    )
    """`accuracy` on the test examples, and `dev accuracy` on the examples that choose the penalty (Chuang et al.,
    2022, Tables 2.3 to 2.6 and 2.13)."""
    folds: int = Field(10, ge=2)
    """Number of folds of every cross-validation. Each fold has the class shares of the whole."""
    inverse_penalties: list[Annotated[float, Field(gt=0)]] = Field([0.25, 0.5, 1.0, 2.0, 4.0, 8.0], min_length=1)
    """Candidates for scikit-learn's `C`, the inverse strength of the penalty on weights. The first of the best is
    taken. A single value needs no choice. SentEval's values are made for vectors that are not of length 1."""
    seed: int = Field(1111, ge=0, lt=2**32)
    """Seed of the folds."""

    @model_validator(mode="after")
    def _chooses(self) -> Self:
        if "dev accuracy" in self.measures and len(self.inverse_penalties) == 1:
            raise ValueError(
                f"measures: dev accuracy: a penalty is chosen by it, and inverse_penalties has "
                f"{self.inverse_penalties[0]} alone; accepted: accuracy, or two or more"
            )
        return self


class Classified(NamedTuple):
    """Results on the test examples."""

    right: Bools
    """(n,) whether each test example was classified correctly, in order."""
    chosen: list[float]
    """The inverse penalty of each classifier."""
    dev: Floats | None
    """Share of right classifications of each example that penalties were chosen by (SentEval's `devacc`, by which
    DiffCSE chooses its numbers): examples of dev, or of train. With cross-validation this is the mean over the folds
    that do not test the example. None if there was no choice."""


def features(first: npt.NDArray, second: npt.NDArray | None) -> npt.NDArray[np.float32]:
    """Return the vectors (n, d) that a classifier reads, for pairs (n, 2 d): |u - v| and u * v (SentEval, MRPC)."""
    u = first.astype(np.float32)
    if second is None:
        return u
    v = second.astype(np.float32)
    return np.concatenate([np.abs(u - v), u * v], axis=1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """With several threads, waiting takes longer than products of this size: 10 to 15 times the CPU time."""
    import sklearn.linear_model  # noqa: F401 (only libraries that are loaded already are limited)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


@_one_thread()
def cross_validated(x: npt.NDArray, y: npt.NDArray, config: TransferConfig) -> Classified:
    """Classify each of (n, d) examples by a classifier that was trained on the other folds. UserError for a class with
    fewer examples than folds."""
    right, chosen, often, seen = np.zeros(len(y), bool), [], np.zeros(len(y)), np.zeros(len(y))
    for train, test in _folds(y, config).split(x, y):
        penalty, dev = _best_penalty(x[train], y[train], None, config)
        right[test] = _fitted(x[train], y[train], penalty).predict(x[test]) == y[test]
        chosen.append(penalty)
        if dev is not None:
            often[train], seen[train] = often[train] + dev, seen[train] + 1
    return Classified(right, chosen, often / seen if seen.any() else None)


@_one_thread()
def on_given_splits(
    train: tuple[npt.NDArray, npt.NDArray],
    dev: tuple[npt.NDArray, npt.NDArray] | None,
    test: tuple[npt.NDArray, npt.NDArray],
    config: TransferConfig,
) -> Classified:
    """Classify the test examples by a classifier that was trained on the training examples alone. Each split is its
    examples (n, d) and their classes (n,)."""
    penalty, right = _best_penalty(*train, dev, config)
    tested = _fitted(*train, penalty).predict(test[0]) == test[1]
    return Classified(tested, [penalty], None if right is None else right.astype(np.float64))


def _best_penalty(
    x: npt.NDArray, y: npt.NDArray, dev: tuple[npt.NDArray, npt.NDArray] | None, config: TransferConfig
) -> tuple[float, Bools | None]:
    """Return the best inverse penalty, and which of the examples that chose it are classified correctly."""
    if len(classes := np.unique(y)) < 2:
        raise UserError(f"a classifier needs two classes or more, got {', '.join(map(repr, classes.tolist()))}")
    penalties = config.inverse_penalties
    if len(penalties) == 1:
        return penalties[0], None
    if dev is not None:
        right = [_fitted(x, y, penalty).predict(dev[0]) == dev[1] for penalty in penalties]
        scores = [answers.mean() for answers in right]
    else:
        folds = list(_folds(y, config).split(x, y))
        right = [np.zeros(len(y), bool) for _ in penalties]
        for answers, penalty in zip(right, penalties, strict=True):
            for train, test in folds:
                answers[test] = _fitted(x[train], y[train], penalty).predict(x[test]) == y[test]
        scores = [np.mean([answers[test].mean() for _, test in folds]) for answers in right]
    best = int(np.argmax(scores))
    return penalties[best], right[best]


def _fitted(x: npt.NDArray, y: npt.NDArray, penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=penalty, max_iter=1_000).fit(x, y)


def _folds(y: npt.NDArray, config: TransferConfig) -> Any:
    from sklearn.model_selection import StratifiedKFold

    classes, counts = np.unique(y, return_counts=True)
    if counts.min() < config.folds:
        rare = str(classes[counts.argmin()])
        raise UserError(f"class {rare!r} has {counts.min()} examples to train on; {config.folds} folds need as many")
    return StratifiedKFold(config.folds, shuffle=True, random_state=config.seed)

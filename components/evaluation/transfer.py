"""What a linear classifier learns from frozen sentence vectors (transfer tasks).

As in SentEval (Conneau and Kiela, 2018): logistic regression, its strength chosen by the accuracy on data that is not
tested on. A set without splits is cross-validated, and within the training part of each fold the strength is chosen by
another cross-validation (MR, CR, SUBJ, MPQA). One with splits is trained on `train`; the strength is chosen on `dev`
(SST2) or, where there is no dev, by cross-validation of `train` (TREC, MRPC). This is SentEval with scikit-learn.
DiffCSE (Chuang et al., 2022, Table 2.2) says logistic regression too; its released code has SentEval fit the same
classifier with PyTorch, by Adam, and stop early.

The value of an example is whether it was classified right. Their mean is the accuracy over all examples; SentEval has
the mean of the folds' accuracies, which differs in the third digit at most where folds differ in size by one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sparring.components.config import Config, UserError

Bools = npt.NDArray[np.bool_]


class TransferConfig(Config):
    """How classifiers are trained on frozen vectors. The defaults are SentEval's."""

    folds: int = Field(10, ge=2)
    """Of every cross-validation. Each fold has the classes' shares of the whole."""
    inverse_penalties: list[Annotated[float, Field(gt=0)]] = Field([0.25, 0.5, 1.0, 2.0, 4.0, 8.0], min_length=1)
    """Among which scikit-learn's `C` is chosen: the inverse of the strength of the penalty on weights. The first of the
    best is taken; one alone needs no choice. SentEval's are made for vectors that are not of length 1."""
    seed: int = Field(1111, ge=0, lt=2**32)
    """Of the folds."""


class Classified(NamedTuple):
    """What became of the tested examples."""

    right: Bools
    """(n,) whether each was classified right, in their order."""
    chosen: list[float]
    """The inverse penalty of each classifier."""
    dev: float | None
    """The mean accuracy by which they were chosen, on data that is not tested on (SentEval's `devacc`, which DiffCSE
    chooses its numbers by); None where there was no choice."""


def features(first: npt.NDArray, second: npt.NDArray | None) -> npt.NDArray[np.float32]:
    """(n, d) vectors as a classifier reads them; of pairs (n, 2 d): |u - v| and u * v (SentEval, MRPC)."""
    u = first.astype(np.float32)
    if second is None:
        return u
    v = second.astype(np.float32)
    return np.concatenate([np.abs(u - v), u * v], axis=1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Several threads wait for one another longer than products of this size take: 10 to 15 times as much CPU time."""
    import sklearn.linear_model  # noqa: F401 (only libraries that are loaded already are limited)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


@_one_thread()
def cross_validated(x: npt.NDArray, y: npt.NDArray, config: TransferConfig) -> Classified:
    """Classify each of (n, d) examples by a classifier that was trained on the other folds. UserError for a class with
    fewer examples than folds."""
    right, chosen = np.zeros(len(y), bool), []
    for train, test in _folds(y, config).split(x, y):
        penalty, dev = _best_penalty(x[train], y[train], None, config)
        right[test] = _fitted(x[train], y[train], penalty).predict(x[test]) == y[test]
        chosen.append((penalty, dev))
    return _classified(right, chosen)


@_one_thread()
def on_given_splits(
    train: tuple[npt.NDArray, npt.NDArray], dev: tuple[npt.NDArray, npt.NDArray] | None,
    test: tuple[npt.NDArray, npt.NDArray], config: TransferConfig,
) -> Classified:  # fmt: skip
    """Classify the test examples by a classifier that was trained on the training examples alone. Each split is its
    examples (n, d) and their classes (n,)."""
    chosen = _best_penalty(*train, dev, config)
    return _classified(_fitted(*train, chosen[0]).predict(test[0]) == test[1], [chosen])


def _classified(right: Bools, chosen: list[tuple[float, float | None]]) -> Classified:
    accuracies = [accuracy for _, accuracy in chosen if accuracy is not None]
    return Classified(right, [penalty for penalty, _ in chosen], float(np.mean(accuracies)) if accuracies else None)


def _best_penalty(
    x: npt.NDArray, y: npt.NDArray, dev: tuple[npt.NDArray, npt.NDArray] | None, config: TransferConfig
) -> tuple[float, float | None]:
    """The best inverse penalty, and its accuracy on what it was chosen by."""
    if len(classes := np.unique(y)) < 2:
        raise UserError(f"a classifier needs two classes or more, got {', '.join(map(repr, classes.tolist()))}")
    penalties = config.inverse_penalties
    if len(penalties) == 1:
        return penalties[0], None
    if dev is not None:
        scores = [_fitted(x, y, penalty).score(*dev) for penalty in penalties]
    else:
        folds = list(_folds(y, config).split(x, y))
        scores = [
            float(np.mean([_fitted(x[train], y[train], penalty).score(x[test], y[test]) for train, test in folds]))
            for penalty in penalties
        ]
    best = int(np.argmax(scores))
    return penalties[best], scores[best]


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

"""Linear classifiers over frozen vectors: scikit-learn's own results on the same vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit, StratifiedKFold, cross_val_predict

from sparring.components.config import UserError
from sparring.components.evaluation.transfer import TransferConfig, cross_validated, features, on_given_splits

SMALL = TransferConfig(folds=3, inverse_penalties=[0.25, 1.0, 8.0], seed=5)


def some(n: int, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(n, 6) vectors of length 1 and classes that go with them, but not always."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y = np.argmax(x[:, :classes] + rng.normal(size=(n, classes)), axis=1)
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.array(list("abcdef"))[y]


def folds(config: TransferConfig) -> Any:
    return StratifiedKFold(config.folds, shuffle=True, random_state=config.seed)


def search(config: TransferConfig, cv: Any) -> Any:
    """scikit-learn's search for the penalty."""
    return GridSearchCV(LogisticRegression(max_iter=1_000), {"C": config.inverse_penalties}, cv=cv)


@pytest.mark.parametrize("classes", [2, 3])
def test_nested_cross_validation_is_scikit_learns(classes: int) -> None:
    x, y = some(120, classes)
    expected = cross_val_predict(search(SMALL, folds(SMALL)), x, y, cv=folds(SMALL))
    output = cross_validated(x, y, SMALL)
    assert output.right.tolist() == (expected == y).tolist()
    chose = [search(SMALL, folds(SMALL)).fit(x[train], y[train]).best_score_ for train, _ in folds(SMALL).split(x, y)]
    assert output.dev is not None
    assert output.dev.mean() == pytest.approx(np.mean(chose), abs=0.01)  # of folds whose sizes may differ by one
    assert len(output.chosen) == 3
    assert 1 / classes < output.right.mean() < 1


def test_a_given_test_split_is_scikit_learns() -> None:
    (x, y), test = some(120), some(60, seed=1)
    expected = search(SMALL, folds(SMALL)).fit(x, y)
    output = on_given_splits((x, y), None, test, SMALL)
    assert output.chosen == [expected.best_params_["C"]]
    assert output.dev is not None
    assert output.dev.mean() == pytest.approx(expected.best_score_)
    assert output.right.mean() == pytest.approx(expected.score(*test))


def test_a_dev_split_chooses_the_penalty_and_is_not_trained_on() -> None:
    (x, y), dev, test = some(60), some(80, seed=2), some(60, seed=1)
    both = np.concatenate([x, dev[0]]), np.concatenate([y, dev[1]])
    held = PredefinedSplit([-1] * 60 + [0] * 80)
    best = search(SMALL, held).fit(*both).best_params_["C"]
    output = on_given_splits((x, y), dev, test, SMALL)
    assert output.chosen == [best]
    alone = LogisticRegression(C=best, max_iter=1_000).fit(x, y)
    assert output.dev is not None
    assert output.dev.tolist() == (alone.predict(dev[0]) == dev[1]).tolist()
    assert output.right.tolist() == (alone.predict(test[0]) == test[1]).tolist()


def test_what_a_line_divides_is_learned_and_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    assert cross_validated(x + 5 * np.sign(x), np.where(x[:, 0] > 0, "up", "down"), SMALL).right.all()
    noise = np.array(["up", "down"])[rng.integers(0, 2, 200)]
    assert abs(cross_validated(x, noise, SMALL).right.mean() - 0.5) < 0.12
    same = np.ones((40, 4), np.float32)  # vectors that say nothing: the greater class is as good as it gets
    assert cross_validated(same, np.repeat(["a", "b"], [30, 10]), SMALL).right.mean() == 0.75


def test_one_penalty_is_not_chosen() -> None:
    single = TransferConfig(folds=3, inverse_penalties=[2.0])
    output = cross_validated(*some(60), single)
    assert (output.chosen, output.dev) == ([2.0] * 3, None)


def test_pairs_are_read_as_difference_and_product() -> None:
    first, second = np.array([[1.0, 2.0]], np.float16), np.array([[3.0, -1.0]], np.float16)
    assert features(first, second).tolist() == [[2.0, 3.0, 3.0, -2.0]]
    assert features(first, None).tolist() == first.tolist()
    assert features(first, None).dtype == np.float32


def test_too_few_classes_or_examples() -> None:
    x = np.ones((20, 2), np.float32)
    with pytest.raises(UserError, match="two classes or more, got 'a'"):
        on_given_splits((x, np.array(["a"] * 20)), (x, np.array(["a"] * 20)), (x, np.array(["a"] * 20)), SMALL)
    with pytest.raises(UserError, match="class 'b' has 2 examples to train on; 3 folds need as many"):
        cross_validated(x, np.array(["a"] * 18 + ["b"] * 2), SMALL)

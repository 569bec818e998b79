"""SamToNe and PAIR against the paper's equations: by hand, by loops, and what they are at their limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparring.components.functions import keyword_options
from sparring.components.losses import simlm
from sparring.components.losses.in_batch import both_directions, hardness_weighted
from sparring.components.losses.listwise import cross_entropy, distillation
from sparring.components.losses.same_tower import pair, released_pair, samtone
from sparring.components.scores import Block, Scores
from tests.components.losses.test_contract import losses
from tests.support.vectors import batch, objective_scores, one_row, soft_row, unit

SIDES = [{"query_side": q, "document_side": d} for q, d in itertools.product((True, False), repeat=2)]


def similarity(a: Tensor, b: Tensor, temperature: float) -> float:
    return math.exp(a @ b / temperature)


def test_samtone_by_hand() -> None:
    """From the query odds 1 : 2 : 5, of which 5 is another query: ln 8. Back, 1 : 3 : 4, of which 4 is another
    document, where the document side is on: ln 8, else ln 4."""
    scores = one_row(
        0, [math.log(2)], query_query=[math.log(5)], document_query=[math.log(3)], document_document=[math.log(4)]
    )
    assert samtone(scores, temperature=1.0, both_directions=False).item() == pytest.approx(math.log(8))
    assert samtone(scores, temperature=1.0).item() == pytest.approx(math.log(8) + math.log(4))
    both = samtone(scores, temperature=1.0, document_side=True)
    assert both.item() == pytest.approx(math.log(8) + math.log(8))
    document = samtone(scores, temperature=1.0, query_side=False, document_side=True)
    assert document.item() == pytest.approx(math.log(3) + math.log(8))
    joint = samtone(scores, temperature=1.0, document_side=True, both_directions=False)
    assert joint.item() == pytest.approx(math.log(1 + 2 + 5 + 4))


@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_samtone_is_the_equation_in_both_directions(sides: dict[str, bool]) -> None:
    t, (q, d) = 0.3, (unit(4, seed=1), unit(4, seed=2))
    values = samtone(batch(q, d), temperature=t, **sides)
    for i in range(4):
        rest = [j for j in range(4) if j != i]
        positive = similarity(q[i], d[i], t)
        forward = sum(similarity(q[i], d[j], t) for j in range(4))
        back = sum(similarity(d[i], q[j], t) for j in range(4))
        forward += sides["query_side"] * sum(similarity(q[i], q[j], t) for j in rest)
        back += sides["document_side"] * sum(similarity(d[i], d[j], t) for j in rest)
        assert values[i].item() == pytest.approx(-math.log(positive / forward) - math.log(positive / back))


def test_samtone_of_one_direction_is_equation_2() -> None:
    t, (q, d) = 0.3, (unit(4, seed=1), unit(6, seed=2))  # two mined negatives
    values = samtone(batch(q, d), temperature=t, both_directions=False)
    for i in range(4):
        below = sum(similarity(q[i], d[j], t) for j in range(6))
        below += sum(similarity(q[i], q[j], t) for j in range(4) if j != i)
        assert values[i].item() == pytest.approx(-math.log(similarity(q[i], d[i], t) / below))


def test_the_papers_temperature_is_the_default() -> None:
    scores = batch(unit(4, seed=1), unit(4, seed=2))
    torch.testing.assert_close(samtone(scores), samtone(scores, temperature=0.01))


def test_samtone_without_its_terms_is_the_plain_softmax() -> None:
    scores = batch(unit(4, seed=1), unit(6, seed=2))
    none = {"query_side": False, "document_side": False, "temperature": 0.2}
    torch.testing.assert_close(samtone(scores, **none), both_directions(scores, temperature=0.2))
    torch.testing.assert_close(samtone(scores, both_directions=False, **none), cross_entropy(scores, temperature=0.2))


def test_the_two_sides_are_mirror_images() -> None:
    """Queries called documents and documents queries, the document side is the query side."""
    a, b = unit(5, seed=3), unit(5, seed=4)
    query = samtone(batch(a, b), temperature=0.2)
    document = samtone(batch(b, a), temperature=0.2, query_side=False, document_side=True)
    torch.testing.assert_close(query, document)


def test_samtone_pushes_queries_apart() -> None:
    """Two queries close to each other and far from all documents: the regulariser dominates, as in Section 2."""
    q = torch.tensor([[1.0, 0, 0], [0.98, 0.199, 0]], dtype=torch.float64).requires_grad_()
    d = torch.tensor([[0, 0, 1.0], [0, 0.1, 0.995]], dtype=torch.float64)
    samtone(batch(q, d), temperature=0.1).sum().backward()
    assert q.grad is not None
    step = q.detach() - 0.01 * q.grad
    plain = torch.autograd.grad(both_directions(batch(q, d), temperature=0.1).sum(), q)[0]
    second = q.detach() - 0.01 * plain
    assert torch.cosine_similarity(step[0], step[1], dim=0) < torch.cosine_similarity(second[0], second[1], dim=0)


# PAIR


def test_pair_by_hand() -> None:
    """Odds 1 : 3 among documents, 1 : 7 where the document takes its query's place: .9 ln 4 + .1 ln 8."""
    scores = one_row(0, [math.log(3)], document_candidate=[math.log(5), math.log(2)])
    assert pair(scores, temperature=1.0).item() == pytest.approx(0.9 * math.log(4) + 0.1 * math.log(8))
    assert pair(scores, temperature=1.0, alpha=1.0).item() == pytest.approx(math.log(8))


def test_pair_is_the_equation() -> None:
    """Documents against all others, those of other rows and mined ones, with the positive in the denominator."""
    t, (q, d) = 0.3, (unit(4, seed=1), unit(6, seed=2))
    values = pair(batch(q, d), temperature=t, alpha=0.25)
    for i in range(4):
        positive = similarity(q[i], d[i], t)
        plain = sum(similarity(q[i], d[j], t) for j in range(6))
        among = positive + sum(similarity(d[i], d[j], t) for j in range(6) if j != i)
        assert values[i].item() == pytest.approx(-0.75 * math.log(positive / plain) - 0.25 * math.log(positive / among))


def test_pair_in_both_directions_has_them_in_its_plain_part() -> None:
    scores = batch(unit(4, seed=1), unit(6, seed=2))
    alone = pair(scores, temperature=0.3, alpha=1.0)
    wanted = 0.75 * both_directions(scores, temperature=0.3) + 0.25 * alone
    torch.testing.assert_close(pair(scores, temperature=0.3, alpha=0.25, both_directions=True), wanted)


def test_pair_as_released_is_a_loop_over_queries_and_mined_negatives() -> None:
    """The document against its own and the other queries, and against every mined negative; not against other rows'."""
    t, (q, d) = 0.3, (unit(4, seed=1), unit(6, seed=2))
    values = released_pair(batch(q, d), temperature=t, alpha=0.25)
    for i in range(4):
        positive = similarity(q[i], d[i], t)
        plain = sum(similarity(q[i], d[j], t) for j in range(6))
        centred = sum(similarity(d[i], q[j], t) for j in range(4)) + sum(similarity(d[i], d[j], t) for j in (4, 5))
        assert values[i].item() == pytest.approx(
            -0.75 * math.log(positive / plain) - 0.25 * math.log(positive / centred)
        )


def test_pair_as_released_without_mined_negatives_is_the_way_there_and_back() -> None:
    scores = batch(unit(4, seed=1), unit(4, seed=2))
    forward = cross_entropy(scores, temperature=0.2)
    back = both_directions(scores, temperature=0.2) - forward
    torch.testing.assert_close(released_pair(scores, temperature=0.2, alpha=0.3), 0.7 * forward + 0.3 * back)


def test_the_second_stage_of_pair_is_the_plain_softmax() -> None:
    scores = batch(unit(4, seed=1), unit(6, seed=2))
    for loss in (pair, released_pair):
        torch.testing.assert_close(loss(scores, temperature=0.2, alpha=0.0), cross_entropy(scores, temperature=0.2))


@pytest.mark.parametrize("margin", [0.0, 1.0, 5.0, 10.0])
def test_pair_as_printed_would_have_no_lower_bound(margin: float) -> None:
    """Eq. 3 lacks the positive in the denominator: ours is ln(1 + e^l) > 0, where l is the loss as printed."""
    among_documents = [-margin, -margin - 1]
    scores = one_row(margin, [0.5], document_candidate=among_documents)
    positive, rest = scores.student[0, 0], scores.others["document-candidate"].scores[0]
    printed = -(positive.exp() / rest.exp().sum()).log()
    assert printed <= 0.5 - 2 * margin
    actual = pair(scores, temperature=1.0, alpha=1.0)
    torch.testing.assert_close(actual, torch.nn.functional.softplus(printed).unsqueeze(0))
    assert actual > 0


def test_several_positives_of_a_row_share_every_denominator() -> None:
    """Odds 1, 2 and 3 of the documents, 4 and 5 of other queries, 8, 9 and 10 of other documents."""
    odds = {
        "document_query": 4,
        "query_query": 5,
        "document_document": 8,
        "document_candidate": 9,
        "document_mined": 10,
    }
    scores = soft_row(**{name: [math.log(value)] for name, value in odds.items()})

    def wanted(*denominators: int) -> float:
        return sum(math.log(denominator) - 0.25 * math.log(2) for denominator in denominators)

    single = {"temperature": 1.0}
    assert samtone(scores, **single).item() == pytest.approx(wanted(6 + 5, 3 + 4))
    assert samtone(scores, **single, document_side=True).item() == pytest.approx(wanted(6 + 5, 3 + 4 + 8))
    joint = samtone(scores, **single, document_side=True, both_directions=False)
    assert joint.item() == pytest.approx(wanted(6 + 5 + 8))
    assert pair(scores, **single).item() == pytest.approx(0.9 * wanted(6) + 0.1 * wanted(3 + 9))
    both = pair(scores, **single, both_directions=True)
    assert both.item() == pytest.approx(0.9 * wanted(6, 3 + 4) + 0.1 * wanted(3 + 9))
    assert released_pair(scores, **single).item() == pytest.approx(0.9 * wanted(6) + 0.1 * wanted(3 + 4 + 10))


# All of them


def variants() -> Iterator[Any]:
    """Every loss of the files that look over the batch, found by file, with all that its options can switch."""
    for case in losses():
        (loss,) = case.values
        if loss.__module__.rpartition(".")[2] in ("same_tower", "in_batch", "simlm"):
            options = keyword_options(f"{loss.__module__}.{loss.__name__}")
            switches = {name: (True, False) for name, default in options.items() if isinstance(default, bool)}
            switches |= {name: (options[name], 1.0) for name in options if name == "alpha"}
            for chosen in itertools.product(*switches.values()):
                report = dict(zip(switches, chosen, strict=True))
                yield pytest.param(partial(loss, **report), id=f"{case.id} {report or ''}")


ALL = pytest.mark.parametrize("loss", list(variants()))


@ALL
@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32),
    queries=st.integers(1, 5),
    mined=st.integers(0, 3),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    kept=st.floats(0, 1),
)
def test_the_loss_is_never_negative(
    loss: Callable[[Scores], Tensor], seed: int, queries: int, mined: int, scale: float, kept: float
) -> None:
    """Whatever the vectors and whatever is masked: of none the positive is missing in the denominator."""
    draw = torch.Generator().manual_seed(seed)
    whole = batch(scale * unit(queries, seed=seed), unit(queries + mined, seed=seed + 1))

    def some(where: Tensor) -> Tensor:
        return where & (torch.rand(where.shape, generator=draw) < kept)

    rest = {name: Block(block.scores, some(block.where)) for name, block in whole.others.items()}
    values = loss(Scores(whole.student, whole.target, some(whole.where), others=rest))
    assert values.isfinite().all()
    assert (values >= 0).all()


@ALL
def test_the_order_of_the_batch_does_not_matter(loss: Callable[[Scores], Tensor]) -> None:
    q, d = unit(5, seed=1), unit(5, seed=2)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(loss(batch(q[order], d[order])), loss(batch(q, d))[order])


@ALL
def test_gradients_of_vectors_are_those_of_finite_differences(loss: Callable[[Scores], Tensor]) -> None:
    """Scores and blocks are made of the same vectors, which is where their gradients meet."""
    if getattr(loss, "func", loss) is hardness_weighted:
        pytest.skip("no gradient flows through its weights: see its own test")
    vectors = (0.05 * unit(3, seed=5)).requires_grad_(), unit(4, seed=6).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, d: loss(batch(q, d)), vectors)


@ALL
def test_the_objective_scores_a_batch_as_the_equations_here_do(loss: Callable[[Scores], Tensor]) -> None:
    q, d = unit(4, seed=1), unit(6, seed=2)
    torch.testing.assert_close(loss(objective_scores(q, d)), loss(batch(q, d)))


@ALL
def test_rotating_all_vectors_does_not_change_the_loss(loss: Callable[[Scores], Tensor]) -> None:
    """The objective looks at angles between vectors alone; rotating one side alone changes them."""
    q, d = unit(4, seed=1), unit(6, seed=2)
    rotation, _ = torch.linalg.qr(unit(4, seed=3))
    before = loss(objective_scores(q, d))
    torch.testing.assert_close(loss(objective_scores(q @ rotation, d @ rotation)), before)
    assert not torch.isclose(loss(objective_scores(q, d @ rotation)), before).any()


def test_a_loss_that_wants_what_the_group_has_not_says_so() -> None:
    student = torch.zeros(1, 2)
    group = Scores(student, torch.tensor([[1.0, 0]]), torch.ones(1, 2, dtype=torch.bool))
    for loss in (samtone, pair, released_pair, both_directions, simlm.released, simlm.contrastive):
        with pytest.raises(ValueError, match="over: batch"):
            loss(group)
    assert samtone(group, query_side=False, both_directions=False).item() == pytest.approx(math.log(2))


def test_blocks_join_what_has_no_teacher() -> None:
    """A teacher judged a row's own candidates and knows no block: distilling over the joint list is an error."""
    scores = batch(unit(3, seed=1), unit(3, seed=2))
    wide: Any = Scores(**{**vars(scores), "teacher": scores.student}).joined("query-query")
    assert wide.student.shape == (3, 6)
    with pytest.raises(ValueError, match="needs a teacher"):
        distillation(wide)

"""The exact k best documents: the same as sorting everything, whatever is cut how."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sparring.components.retrieval import blocks, topk


def sorted_whole(queries, documents, order, k):
    """The oracle: all scores, sorted by score and then by place."""
    scores = queries.astype(np.float32) @ documents.astype(np.float32).T
    best = np.lexsort((np.broadcast_to(order, scores.shape), -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, best, axis=1), order[best]


def whole_numbers(shape, low=-3, high=4, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def cut(array, size):
    return [array[start : start + size] for start in range(0, len(array), size)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("k", [1, 7, 100, 3000])
def test_equals_sorting_everything_with_many_ties(dtype, k):
    queries, documents = whole_numbers((37, 8)), whole_numbers((3000, 8), seed=1, dtype=dtype)
    order = np.random.default_rng(2).permutation(3000)
    keys = topk.top_k(queries, cut(documents, 1000), order, k)
    scores, places = sorted_whole(queries, documents, order, k)
    np.testing.assert_array_equal(topk.tie_ranks_of(keys), places)
    np.testing.assert_array_equal(topk.scores_of(keys), scores)


def test_half_precision_vectors_are_multiplied_in_single_precision():
    """Sums that half precision has no numbers for, and a difference that is lost where they are rounded."""
    documents = np.full((3, 64), 200, np.float16)
    documents[2, 0] += np.float16(0.125)
    keys = topk.top_k(np.full((1, 64), 200, np.float16), [documents], None, 3)
    assert topk.tie_ranks_of(keys).tolist() == [[2, 0, 1]]
    assert topk.scores_of(keys).tolist() == [[2_560_025.0, 2_560_000.0, 2_560_000.0]]


def test_exact_duplicates_at_the_end_of_the_list_go_by_place():
    documents = np.ones((5000, 4), np.float32)
    order = np.random.default_rng(0).permutation(5000)
    keys = topk.top_k(np.ones((3, 4), np.float32), cut(documents, 700), order, 10)
    np.testing.assert_array_equal(topk.tie_ranks_of(keys), np.tile(np.arange(10), (3, 1)))


def test_blocks_and_shards_do_not_matter(monkeypatch):
    queries, documents = whole_numbers((50, 6)), whole_numbers((2000, 6), seed=1)
    expected = topk.top_k(queries, [documents], None, 33)
    for block, many, segment, first, shard in [(64, 7, 8, 16, 333), (1, 50, 1, 1, 2000), (1000, 3, 7, 100, 1)]:
        monkeypatch.setattr(topk, "QUERY_BLOCK", many)
        for name, value in {"BLOCK": block, "SEGMENT": segment, "FIRST_BLOCK": first}.items():
            monkeypatch.setattr(blocks, name, value)
        np.testing.assert_array_equal(topk.top_k(queries, cut(documents, shard), None, 33), expected)


def test_partial_lists_merge_to_the_whole():
    queries, documents = whole_numbers((20, 6)), whole_numbers((1000, 6), seed=1)
    order = np.random.default_rng(3).permutation(1000)
    starts = [0, 5, 400]  # the first has fewer documents than k
    stops = [5, 400, 1000]
    partials = [topk.top_k(queries, [documents[a:b]], order[a:b], 50) for a, b in zip(starts, stops, strict=True)]
    assert [partial.shape[1] for partial in partials] == [5, 50, 50]
    expected = topk.top_k(queries, [documents], order, 50)
    np.testing.assert_array_equal(topk.merge(partials, 50), expected)
    np.testing.assert_array_equal(topk.merge(partials[::-1], 50), expected)


def test_documents_that_get_ever_better_are_all_kept_track_of():
    documents = np.arange(20_000, dtype=np.float32)[:, None]  # every one passes every bar
    keys = topk.top_k(np.array([[1.0], [-1.0]]), cut(documents, 6000), None, 5)
    np.testing.assert_array_equal(topk.tie_ranks_of(keys), [[19999, 19998, 19997, 19996, 19995], [0, 1, 2, 3, 4]])


def test_agrees_with_faiss():
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((40, 24), dtype=np.float32)
    documents = rng.standard_normal((5000, 24), dtype=np.float32)
    index = faiss.IndexFlatIP(24)
    index.add(documents)
    scores, rows = index.search(queries, 20)
    keys = topk.top_k(queries, cut(documents, 1234), None, 20)
    np.testing.assert_array_equal(topk.tie_ranks_of(keys), rows)
    np.testing.assert_allclose(topk.scores_of(keys), scores, rtol=1e-5)


def test_keys_order_like_scores_then_places_and_can_be_read_back():
    scores = np.array([3.5, 0.0, -0.0, -2.0, 1e-38, -np.inf, np.inf, 3.5], np.float32)
    places = np.array([2, 5, 4, 0, 1, 3, 2**31, 1])
    keys = topk.keys(scores, places)
    best = np.lexsort((places, -scores))
    np.testing.assert_array_equal(np.argsort(keys), best)
    np.testing.assert_array_equal(topk.scores_of(keys), scores)
    np.testing.assert_array_equal(topk.tie_ranks_of(keys), places)
    assert (keys < topk.NO_DOCUMENT).all()


def test_more_than_there_is_gives_all_there_is():
    keys = topk.top_k(whole_numbers((2, 3)), [whole_numbers((4, 3))], None, 9)
    assert keys.shape == (2, 4)
    assert topk.top_k(np.empty((0, 3), np.float32), [whole_numbers((4, 3))], None, 9).shape == (0, 4)


@pytest.mark.parametrize(("where", "value"), [("queries", np.nan), ("documents", np.inf)])
def test_what_is_not_a_finite_number_is_refused(where, value):
    vectors = {"queries": whole_numbers((5, 3)), "documents": whole_numbers((90, 3))}
    vectors[where][3, 1] = value
    with pytest.raises(ValueError, match=f"{where} hold values that are not finite"):
        topk.top_k(vectors["queries"], [vectors["documents"]], None, 2)


def test_reads_memory_maps_as_they_are(tmp_path):
    documents = whole_numbers((300, 5), dtype=np.float16)
    np.save(tmp_path / "documents.npy", documents)
    mapped = np.load(tmp_path / "documents.npy", mmap_mode="r")
    queries = whole_numbers((4, 5), seed=3)
    np.testing.assert_array_equal(topk.top_k(queries, [mapped], None, 9), topk.top_k(queries, [documents], None, 9))


def test_without_onednn_it_is_the_same(monkeypatch):
    queries, documents = whole_numbers((37, 8)), whole_numbers((3000, 8), seed=1)
    expected = topk.top_k(queries, [documents], None, 70)
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    np.testing.assert_array_equal(topk.top_k(queries, [documents], None, 70), expected)


def test_segments_whose_documents_lie_apart_find_the_same(monkeypatch):
    queries, documents = whole_numbers((37, 8)), whole_numbers((20_000, 8), seed=1)
    expected = topk.top_k(queries, cut(documents, 999), None, 70)
    cut_up = topk._segments
    monkeypatch.setattr(topk, "_segments", lambda documents, *, apart: cut_up(documents, apart=not apart))
    np.testing.assert_array_equal(topk.top_k(queries, cut(documents, 999), None, 70), expected)


@pytest.mark.gpu
def test_on_a_gpu_as_on_a_processor():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    queries, documents = whole_numbers((37, 8)), whole_numbers((3000, 8), seed=1, dtype=np.float16)
    expected = topk.top_k(queries, [documents], None, 70)
    np.testing.assert_array_equal(topk.top_k(queries, cut(documents, 999), None, 70, device="cuda"), expected)


def test_two_halves_hold_a_query_as_float32_does():
    torch = pytest.importorskip("torch")
    vectors = torch.randn(50, 384, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 50)[:, None]
    rounded, rest = topk.halves(vectors).chunk(2, dim=1)
    together = rounded.double() + rest.double() / topk.REST
    assert float(((together - vectors.double()).abs() / vectors.norm(dim=1, keepdim=True)).max()) < 2**-23


def test_parts_are_gathered_in_their_order():
    parts = cut(whole_numbers((1000, 8)), 300)
    out = np.zeros((1000, 8), np.float32)
    with ThreadPoolExecutor(3) as hands:
        blocks.gather(parts, out, hands)
    np.testing.assert_array_equal(out, np.concatenate(parts))

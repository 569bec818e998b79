"""Smaller vectors: naive loops, sentence-transformers' and FAISS's."""

import json

import faiss
import numpy as np
import pytest

from sparring.components.config import UserError
from sparring.components.data.vectors import DocumentVectors, Shards, document_shards
from sparring.components.retrieval import hamming, index, quantised, topk
from sparring.components.retrieval.quantised import Quantiser
from tests.support import toy

DOCS, WIDTH, ASKED = 300, 40, 17


def drawn(count, seed, dtype=np.float32):
    vectors = np.random.default_rng(seed).normal(size=(count, WIDTH)) * np.geomspace(2, 0.2, WIDTH)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(dtype)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory) -> Shards:
    folder = tmp_path_factory.mktemp("vectors")
    vectors = drawn(DOCS, 0, np.float16)
    return document_shards(toy.write_document_vectors(folder, [vectors[:100], vectors[100:130], vectors[130:]]))


def whole(shards):
    return np.concatenate([np.asarray(shard, np.float32) for shard in shards])


def kept(quantiser, shards):
    return [quantiser.documents(shard) for shard in shards]


def sorted_whole(scores, order, k):
    best = np.lexsort((np.broadcast_to(order, scores.shape), -scores), axis=1)[:, :k]
    return order[best]


@pytest.mark.parametrize("normalize", [True, False])
def test_shorter_vectors_are_the_first_dimensions(normalize):
    vectors = drawn(5, 1)
    cut = quantised.cut(vectors, 8, normalize=normalize)
    for row, shortened in zip(vectors, cut, strict=True):
        first = row[:8] / (np.sqrt((row[:8].astype(np.float64) ** 2).sum()) if normalize else 1)
        np.testing.assert_allclose(shortened, first, rtol=1e-6)
    for all_of_them in (None, WIDTH, 99):
        np.testing.assert_array_equal(quantised.cut(vectors, all_of_them, normalize=normalize), vectors)


@pytest.mark.parametrize("dimensions", [None, 16])
def test_int8_is_that_of_sentence_transformers_with_symmetric_ranges(encoded, dimensions):
    """It has 256 numbers, of which 0 is none, and we 255: both are half a distance at most from what was encoded."""
    from sentence_transformers.util import quantize_embeddings

    quantiser = Quantiser.of(encoded, dimensions, "int8", normalize=True)
    vectors = quantised.cut(whole(encoded), dimensions, normalize=True)
    largest = np.abs(vectors).max(0)
    np.testing.assert_allclose(np.asarray(quantiser.scale) * 127, largest, rtol=1e-6)
    reference = quantize_embeddings(vectors, "int8", ranges=np.stack([-largest, largest]))
    codes = np.concatenate(kept(quantiser, encoded))
    assert codes.dtype == np.int8
    distances = np.asarray(quantiser.scale)
    for numbers in (codes * distances, (reference + 1.0) * largest / 127.5):
        assert (np.abs(numbers - vectors) <= 0.501 * distances).all()


def test_bits_are_those_of_sentence_transformers(encoded):
    from sentence_transformers.util import quantize_embeddings

    quantiser = Quantiser.of(encoded, None, "binary", normalize=True)
    np.testing.assert_array_equal(
        np.concatenate(kept(quantiser, encoded)), quantize_embeddings(whole(encoded), "ubinary")
    )
    np.testing.assert_array_equal(
        quantiser.numbers(quantiser.documents(whole(encoded))), np.where(whole(encoded) > 0, 1, -1)
    )


@pytest.mark.parametrize("kind", ["encoded", "int8", "binary"])
@pytest.mark.parametrize("dimensions", [None, 20])
def test_the_best_are_those_of_sorting_all_scores(encoded, kind, dimensions):
    quantiser = Quantiser.of(encoded, dimensions, kind, normalize=True)
    queries, order = drawn(ASKED, 2), np.random.default_rng(3).permutation(DOCS)
    keys = quantised.top_k(queries, kept(quantiser, encoded), quantiser, order, 30, device="cpu", threads=1)
    query_rows = quantised.cut(queries, dimensions, normalize=True)
    documents = quantised.cut(whole(encoded), dimensions, normalize=True)
    if kind == "binary":
        scores = np.where(query_rows > 0, 1, -1) @ np.where(documents > 0, 1, -1).T
    elif kind == "int8":
        scale = np.asarray(quantiser.scale, np.float32)
        scores = query_rows @ (np.rint(documents / scale) * scale).T
    else:
        scores = query_rows @ documents.astype(np.float16).astype(np.float32).T
    ordered = np.take_along_axis(scores[:, np.argsort(order)], topk.tie_ranks_of(keys), axis=1)
    np.testing.assert_allclose(topk.scores_of(keys), ordered, atol=1e-6)
    if kind == "binary":  # whole numbers: many are equal, and in order of their places
        np.testing.assert_array_equal(topk.tie_ranks_of(keys), sorted_whole(scores, order, 30))
    else:
        np.testing.assert_allclose(ordered, -np.sort(-scores, axis=1)[:, :30], atol=1e-6)


@pytest.mark.parametrize(("block", "counters"), [(64, 1), (7, 10**6), (2**20, 5000)])
def test_how_hamming_is_cut_does_not_matter(monkeypatch, block, counters):
    """Few bits, so that most distances are equal."""
    bits = np.random.default_rng(4).integers(0, 256, (DOCS, 1), np.uint8)
    queries, order = bits[:ASKED], np.random.default_rng(5).permutation(DOCS)
    monkeypatch.setattr(hamming, "BLOCK", block)
    monkeypatch.setattr(hamming, "COUNTERS", counters)
    keys = hamming.top_k(queries, [bits[:9], bits[9:200], bits[200:]], order, 50, dimensions=8, threads=1)
    scores = 8 - 2 * np.bitwise_count(queries[:, None, 0] ^ bits[None, :, 0]).astype(int)
    np.testing.assert_array_equal(topk.tie_ranks_of(keys), sorted_whole(scores, order, 50))
    assert hamming.top_k(queries[:0], [bits], order, 50, dimensions=8, threads=1).shape == (0, 50)
    assert hamming.top_k(queries, [bits], order, 0, dimensions=8, threads=1).shape == (ASKED, 0)
    assert hamming.top_k(queries, [bits], None, 999, dimensions=8, threads=1).shape == (ASKED, DOCS)


def test_hamming_distances_are_faiss_own(encoded):
    quantiser = Quantiser.of(encoded, None, "binary", normalize=True)
    reference = faiss.IndexBinaryFlat(WIDTH)
    reference.add(np.concatenate(kept(quantiser, encoded)))
    queries = drawn(ASKED, 2)
    distances, _ = reference.search(quantiser.documents(queries), 25)
    keys = quantised.top_k(queries, kept(quantiser, encoded), quantiser, None, 25, device="cpu", threads=1)
    np.testing.assert_array_equal(WIDTH - 2 * distances, topk.scores_of(keys))


@pytest.mark.parametrize("by", ["encoded", "int8", "binary"])
def test_candidates_are_ordered_by_the_query_with_all_its_bits(encoded, by, tmp_path):
    """As sentence-transformers' `semantic_search_faiss` does for bits: the float query with the bits as 1 and -1."""
    quantiser = Quantiser.of(encoded, None, by, normalize=True)
    toy.write_document_vectors(tmp_path, kept(quantiser, encoded))
    bits = Quantiser.of(encoded, None, "binary", normalize=True)
    queries, order = drawn(ASKED, 2), np.random.default_rng(3).permutation(DOCS)
    candidates = quantised.top_k(queries, kept(bits, encoded), bits, order, 40, device="cpu", threads=1)
    candidates[3, 30:] = topk.NO_DOCUMENT
    rankings = quantised.rescore(queries, candidates, order, DocumentVectors(tmp_path), quantiser, 10)
    numbers = {"encoded": whole(encoded), "binary": np.where(whole(encoded) > 0, 1, -1)}.get(by)
    if numbers is None:
        numbers = np.concatenate(kept(quantiser, encoded)) * np.asarray(quantiser.scale, np.float32)
    row_of = np.argsort(order)
    for query, row, keys in zip(queries, candidates, rankings, strict=True):
        places = topk.tie_ranks_of(row[row != topk.NO_DOCUMENT])
        best = sorted((-float(np.float32(query @ numbers[row_of[place]])), place) for place in places)[:10]
        np.testing.assert_allclose(topk.scores_of(keys), [-score for score, _ in best], atol=2e-6)
        assert set(topk.tie_ranks_of(keys)) == {place for _, place in best}


def test_the_kept_form_is_written_down(encoded, tmp_path):
    quantiser = Quantiser.of(encoded, 16, "int8", normalize=False)
    quantiser.save(tmp_path)
    assert quantised.read(tmp_path) == quantiser
    assert len(json.loads((tmp_path / quantised.FILE).read_text())["scale"]) == 16
    assert quantised.read(tmp_path / "other") is None
    with pytest.raises(UserError, match="dimensions: 41: the vectors have 40; accepted: as many at most"):
        Quantiser.of(encoded, 41, "encoded", normalize=False)


def test_a_dimension_of_nothing_but_zeros_stays_zero(tmp_path):
    shards = document_shards(toy.write_document_vectors(tmp_path, [np.array([[0, 3], [0, -6]], np.float32)]))
    quantiser = Quantiser.of(shards, None, "int8", normalize=False)
    assert quantiser.documents(shards[0]).tolist() == [[0, 64], [0, -127]]
    assert quantiser.queries(np.array([[5, 127]], np.float32)).tolist() == [[5, 6]]


def test_int8_vectors_as_a_faiss_index_have_the_same_scores(encoded, tmp_path):
    quantiser = Quantiser.of(encoded, None, "int8", normalize=True)
    index.write(index.of_int8(quantiser.scale, kept(quantiser, encoded)), tmp_path / "index.faiss")
    opened = faiss.read_index(str(tmp_path / "index.faiss"))
    queries = drawn(ASKED, 2)
    scores, _ = opened.search(queries, 20)
    keys = quantised.top_k(queries, kept(quantiser, encoded), quantiser, None, 20, device="cpu", threads=1)
    np.testing.assert_allclose(scores, topk.scores_of(keys), atol=2e-6)
    numbers = np.concatenate(kept(quantiser, encoded)) * np.asarray(quantiser.scale, np.float32)
    np.testing.assert_allclose(opened.reconstruct_n(0, DOCS), numbers, atol=1e-6)

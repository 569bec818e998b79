"""FAISS indexes: what they find, in our keys."""

import faiss
import numpy as np
import pytest

from sparring.components.config import UserError
from sparring.components.retrieval import index, topk
from tests.support.errors import refused


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    documents = rng.standard_normal((1000, 16), dtype=np.float32)
    return [documents[:400].astype(np.float16), documents[400:].astype(np.float16)], documents[:20].copy()


def opened(built, tmp_path, **options):
    index.write(built, tmp_path / "index.faiss")
    return index.read(tmp_path / "index.faiss", **{"probes": 4, "ef": 64, "threads": 1, "gpu": False, **options})


def test_flat_finds_what_exact_search_finds(vectors, tmp_path):
    shards, queries = vectors
    order = np.random.default_rng(1).permutation(1000)
    keys = index.search(opened(index.build("Flat", shards, threads=1), tmp_path), queries, order, 10)
    exact = topk.top_k(queries, shards, order, 10)
    np.testing.assert_array_equal(topk.tie_ranks_of(keys), topk.tie_ranks_of(exact))
    np.testing.assert_allclose(topk.scores_of(keys), topk.scores_of(exact), rtol=1e-5)


KINDS = [
    "HNSW16",
    "IVF8,Flat",
    "IVF8,PQ8x4",
    "PCA8,IVF8,Flat",
    "OPQ8,HNSW16",
    "PQ8x4",
    "OPQ8,PQ8x4",
    "IVF8,PQ8x4,RFlat",
    "HNSW16_SQ8",
    "SQ8",
    "SQfp16",
    "IVF8,SQ8",
    "PQ8x4fs",
    "OPQ8,IVF8,PQ8x4fs",
]


ON_A_GPU = {"Flat", "IVF8,Flat", "PCA8,IVF8,Flat", "IVF8,SQ8", "IVF8,PQ4", "OPQ8,IVF8,PQ4"}


@pytest.mark.parametrize("factory", [*KINDS, *sorted(ON_A_GPU - set(KINDS)), "IVF8_HNSW4,Flat", "PQ4"])
def test_it_is_known_what_faiss_has_on_a_gpu(factory):
    assert index.fits_a_gpu(index.create(factory, 16)) == (factory in ON_A_GPU)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("factory", sorted(ON_A_GPU))
def test_every_kind_finds_on_a_gpu_what_it_finds_on_a_processor(vectors, factory, tmp_path):
    if not index.built_for_gpus():
        pytest.skip("FAISS has no GPU")
    built = index.build(factory, vectors[0], threads=1)
    cpu, gpu = (
        index.search(opened(built, tmp_path, gpu=gpu), vectors[1], np.arange(1000), 10) for gpu in (False, True)
    )
    np.testing.assert_allclose(topk.scores_of(gpu), topk.scores_of(cpu), rtol=1e-4)


@pytest.mark.parametrize("factory", ["PQ8x4", "OPQ8,PQ8x4", "IVF8,PQ8x4"])
@pytest.mark.filterwarnings("default")
def test_training_again_gives_the_same_index(vectors, factory):
    first, second = (
        index.search(index.build(factory, vectors[0], threads=1), vectors[1], np.arange(1000), 10) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("factory", ["PQ8x4", "OPQ8,PQ8x4", "IVF8,PQ8x4", "IVF8,PQ8x4,RFlat"])
@pytest.mark.filterwarnings("default")
def test_quantizers_find_the_same_without_the_training_of_codes_that_nobody_compares(vectors, factory):
    """That is, without ordering the centroids so that the codes' Hamming distance says something (polysemous codes)."""
    rows = np.concatenate(vectors[0]).astype(np.float32)
    reference, created = faiss.index_factory(16, factory, faiss.METRIC_INNER_PRODUCT), index.create(factory, 16)
    for built in (reference, created):
        built.train(rows)
        built.add(rows)
    assert [
        part.do_polysemous_training
        for part in index._parts(created)
        if "PQ" in type(part).__name__ and hasattr(part, "do_polysemous_training")
    ] == [False]
    for actual, wanted in zip(created.search(vectors[1], 10), reference.search(vectors[1], 10), strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("factory", KINDS)
@pytest.mark.filterwarnings("default")
def test_every_kind_is_built_written_and_searched(vectors, tmp_path, factory):
    shards, queries = vectors
    seen = []
    built = index.build(factory, shards, threads=1, on_added=seen.append)
    assert sum(seen) == built.ntotal == 1000
    keys = index.search(opened(built, tmp_path, probes=99), queries, np.arange(1000), 10)
    exact = topk.tie_ranks_of(topk.top_k(queries, shards, None, 10))
    both = [len(np.intersect1d(a, b)) for a, b in zip(topk.tie_ranks_of(keys), exact, strict=True)]
    assert np.mean(both) / 10 > (0.9 if factory in ("HNSW16", "IVF8,Flat") else 0.2)
    assert faiss.read_index(str(tmp_path / "index.faiss")).metric_type == faiss.METRIC_INNER_PRODUCT


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF8,Flat"])
def test_whole_vectors_are_read_as_they_are(vectors, tmp_path, factory):
    shards, _ = vectors
    built = opened(index.build(factory, shards, threads=1), tmp_path)
    assert index.holds_vectors(built)
    rows = np.array([999, 3, 400, 3])
    np.testing.assert_array_equal(index.reader(built)(rows), np.concatenate(shards)[rows].astype(np.float32))


@pytest.mark.parametrize("factory", ["IVF8,PQ8x4", "PCA8,IVF8,Flat", "OPQ8,HNSW16", "L2norm,Flat", "SQ8", "HNSW16,SQ8"])
@pytest.mark.filterwarnings("default")
def test_vectors_that_are_no_longer_what_they_were(vectors, tmp_path, factory):
    assert not index.holds_vectors(opened(index.build(factory, vectors[0], threads=1), tmp_path))


def test_options_reach_the_index_behind_a_transform(vectors, tmp_path):
    shards, _ = vectors
    inverted = opened(index.build("PCA8,IVF8,Flat", shards, threads=1), tmp_path, probes=3)
    assert faiss.extract_index_ivf(inverted).nprobe == 3
    graph = opened(index.build("PCA8,HNSW16", shards, threads=1, ef_construction=99), tmp_path, ef=77)
    assert (index._graph(graph).hnsw.efSearch, index._graph(graph).hnsw.efConstruction) == (77, 99)


def test_more_candidates_while_it_is_built_make_a_better_graph(vectors, tmp_path):
    shards, queries = vectors
    exact = topk.tie_ranks_of(topk.top_k(queries, shards, None, 10))

    def found(**options):
        graph = opened(index.build("HNSW4", shards, threads=1, **options), tmp_path, ef=32)
        lists = topk.tie_ranks_of(index.search(graph, queries, np.arange(1000), 10))
        return sum(len(np.intersect1d(a, b)) for a, b in zip(lists, exact, strict=True))

    assert found(ef_construction=200) > found(ef_construction=4)


def test_no_document_is_nothing_rather_than_minus_one(vectors, tmp_path):
    shards, queries = vectors
    keys = index.search(
        opened(index.build("IVF8,Flat", shards, threads=1), tmp_path, probes=1), queries, np.arange(1000), 900
    )
    missing = keys == topk.NO_DOCUMENT
    assert missing.any()
    assert (np.diff(missing.astype(int), axis=1) >= 0).all()  # only at the end
    assert topk.tie_ranks_of(keys[~missing]).max() < 1000


def test_trains_on_the_same_rows_however_shards_are_cut(monkeypatch):
    monkeypatch.setattr(index, "SAMPLE", 30)
    rows = np.arange(100, dtype=np.float32)[:, None]
    for size in (1, 7, 33, 100):
        shards = [rows[start : start + size] for start in range(0, 100, size)]
        np.testing.assert_array_equal(index._even_rows(shards, 30)[:, 0], np.arange(0, 100, 4))


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("Nonsense", "Nonsense"),
        ("IVF8,PQ5", "16 dimensions"),
        ("IVF2000,Flat", "1000 documents"),
        ("HNSW16,PQ8", "by distance"),
        ("NSG16,PQ8", "by distance"),
        ("OPQ8,HNSW16,PQ8", "by distance"),
        ("IVF8,ITQ8,SH", "by distance"),
        ("IDMap,Flat", "without IDMap"),
        ("IDMap2,HNSW16", "without IDMap"),
        ("IVF0,Flat", "no cells"),
    ],
)
def test_what_faiss_cannot_make_is_a_clear_error(vectors, factory, says):
    """Of what ranks by distance the best was the last of its list, and the recall, of sets, hid it."""
    with pytest.raises(UserError, match=rf"^search\.index: .*{says}"):
        index.build(factory, vectors[0], threads=1)


@pytest.mark.parametrize("factory", ["HNSW16,SQ8", "IVF8,RQ4x8", "OPQ8,IVF8,PQ8", "IVF8,RaBitQ", "PQ8,RFlat"])
def test_what_is_near_is_ranked_first(vectors, tmp_path, factory):
    """In the mean the first half of a list has larger products than the second."""
    shards, queries = vectors
    rows = np.concatenate(shards).astype(np.float32)
    keys = index.search(opened(index.build(factory, shards, threads=1), tmp_path), queries, np.arange(1000), 20)
    places = topk.tie_ranks_of(keys).astype(int)  # a row's own number, by the order that was given
    products = np.take_along_axis(queries @ rows.T, places, 1)
    assert products[:, :10].mean() > products[:, 10:].mean()


@pytest.mark.parametrize("factory", ["Flat", "PQ9", "IVF64,PQ48x4fs", "OPQ8_64,IVF256_HNSW32,PQ8", "PCA64,HNSW32"])
def test_a_factory_is_known_without_the_dimension(factory):
    index.check_factory(factory)


def test_a_factory_that_is_none_is_refused_without_the_dimension():
    for factory, code in (("Nonsense", "unknown-index"), ("HNSW32,PQ8", "unsupported-index")):
        with refused("search.index", code):
            index.check_factory(factory)

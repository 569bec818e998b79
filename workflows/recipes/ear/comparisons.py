"""Pairs of systems to compare, as in Chuang et al. (2023)."""

from itertools import pairwise

from sparring.workflows.recipes.ear.config import Config

Pairs = list[tuple[str, str]]


def comparisons(config: Config, dense: str) -> Pairs:
    """List systems with their baselines. `dense` is the dense retriever's name. The first pair is the purpose of the
    run."""
    ears = [f"EAR-{kind.upper()}" for kind in reversed(config.kinds())]
    pairs = [(ear, baseline) for ear in ears for baseline in ("first expansion", "BM25")]
    pairs += pairwise(ears)
    pairs += [("first expansion", "BM25"), ("concat", "first expansion")]
    pairs += [("best query", ear) for ear in ears] + [(ear, dense) for ear in ears]
    pairs += [(f"{ear} + dense", baseline) for ear in ears for baseline in (dense, "BM25 + dense")]
    pairs += [(ear, "RM3") for ear in ears] + [("RM3", "BM25")] if config.rm3 is not None else []
    pairs += [(ear, "all expansions") for ear in ears] if config.all_expansions is not None else []
    pairs += [(f"{dense} ({config.hnsw})", dense)] if config.hnsw is not None else []
    if config.to_dense:
        pairs += [(f"{ear} issued to dense", baseline) for ear in ears for baseline in (dense, ear)]
    return [*pairs, *_of_passages(config, ears), *_of_reader(config, ears, dense)]


def _of_passages(config: Config, ears: list[str]) -> Pairs:
    pairs: Pairs = []
    passages = config.passages
    for ear in ears if passages is not None else []:
        assert passages is not None
        if passages.other_depth:
            pairs.append((ear, f"first expansion + passages k={passages.other_depth}"))
        pairs += [(f"{ear} + passages", baseline) for baseline in ("first expansion + passages", ear)]
        if passages.top_queries is not None:
            pairs.append((f"{ear} top {passages.top_queries} + passages", f"{ear} + passages"))
    return pairs


def _of_reader(config: Config, ears: list[str], dense: str) -> Pairs:
    depths = [] if config.reader is None else config.reader.depths
    pairs = [
        (f"{ear} + reader k={depth}", f"{baseline} + reader k={depth}")
        for depth in depths
        for ear in ears
        for baseline in ("first expansion", "BM25", dense)
    ]
    return [
        *pairs,
        *(
            (f"{system} + reader k={many}", f"{system} + reader k={few}")
            for system in ("BM25", dense, *ears)
            for few, many in pairwise(sorted(depths))
        ),
    ]

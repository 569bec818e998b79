"""Query expansions, as a stage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config, Invalid
from sparring.components.expansion import feedback
from sparring.components.expansion.relevance_model import RelevanceConfig
from sparring.components.models.generator_configs import GenerateConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.systems.rankings import Ranking
from sparring.components.systems.searching import LaterStage, Search
from sparring.components.systems.stages.fused import fusion_lines

FEEDBACK = """\
import collections
import numpy as np
import regex
config, counted = stage["relevance"], json.load(open(stage["frequencies"]))
words = lambda text: regex.findall(r"[\\p{L}\\p{N}\\p{M}]{2,20}", text.lower())
feedback = [(*contents[id], score) for id, score in list(scores["OF"].items())[: config["documents"]]]
shares = np.array([score for *_, score in feedback], float)
shares /= shares.sum() or 1

# The weight of a term in the documents that the query finds, without the query's own terms and common ones.
weights = collections.defaultdict(float)
for (title, text, _), share in zip(feedback, shares.tolist()):
    counts = collections.Counter(words(f"{title} {text}"))
WEIGHTS\
common = lambda term: counted["counts"].get(term, 0) > config["common"] * counted["documents"]
weights = {t: w for t, w in weights.items() if w > 0 and t not in words(query) and not common(t)}
"""
RM3 = """\
    for term, count in counts.items():
        weights[term] += share * count / counts.total()
"""
ROCCHIO = """\
    idf = lambda term: float(np.log((counted["documents"] + 1) / (counted["counts"].get(term, 0) + 1)))
    vector = {term: count * idf(term) for term, count in counts.items()}
    norm = float(np.sqrt(sum(value**2 for value in vector.values()))) or 1
    for term, value in vector.items():
        weights[term] += value / norm / len(feedback)
"""
TERMS = """\
choices = dict(sorted(weights.items(), key=lambda item: (-item[1], item[0]))[: config["pool"]])
"""
SENTENCES = """\
choices = {}
for (_, text, _), share in zip(feedback, shares.tolist()):
    for sentence in filter(None, regex.split(r"(?<=[.!?][\\"')\\]]?)\\s+(?=\\S)", text.strip())):
        inside = words(sentence)
        weight = share * sum(weights.get(term, 0) for term in inside) / max(1, len(inside))
        choices |= {sentence: max(weight, choices.get(sentence, 0))} if weight > 0 else {}
"""
TITLES = """\
choices = collections.defaultdict(float)
for (title, *_), share in zip(feedback, shares.tolist()):
    if title:
        choices[title] += share
"""
RANDOM = """\
import hashlib
import numpy as np
def random(number):  # which depends on the query and the number alone
    key = "\\x1f".join(map(str, [*stage["seed"], "expand", query, number]))
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
    return np.random.Generator(np.random.Philox(key=seed))
"""
SAMPLED = """\

# The first expansion is the likeliest. The others are samples: the largest logits after adding Gumbel noise.
texts = sorted(choices, key=lambda text: (-choices[text], text))
logits, count = np.log([choices[text] for text in texts]) / config["temperature"], COUNT
written = [" ".join(texts[:count])] if texts else []
for number in range(2, config["number"] + 1 if texts else 0):
    noisy = logits + random(number).gumbel(size=len(logits))
    written.append(" ".join(texts[i] for i in np.argsort(-noisy, kind="stable")[:count]))
"""
WRITTEN = """\
import torch
from transformers import AutoModelFor, AutoTokenizer
config, tokenizer = stage["generate"], AutoTokenizer.from_pretrained(stage["generator"])
writer = AutoModelFor.from_pretrained(stage["generator"]).eval()
read = tokenizer([config["prompt"].replace("{query}", query)], return_tensors="pt", truncation=True,
                 max_length=stage["query_tokens"])["input_ids"]
CONTINUED\
pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
options = {"do_sample": False, "max_new_tokens": config["new_tokens"], "min_new_tokens": 0, "max_length": None,
           "pad_token_id": pad}
decoded = lambda output: tokenizer.batch_decode(output[:, CUT:], skip_special_tokens=True)
"""
BEAMS = """\
written = decoded(writer.generate(
    input_ids=read, attention_mask=torch.ones_like(read), num_beams=config["beams"] or config["number"],
    num_return_sequences=config["number"], **options))
"""
SAMPLES = """\
written = decoded(writer.generate(input_ids=read, attention_mask=torch.ones_like(read), num_beams=1, **options))
"""
MORE_SAMPLES = """\

# The first expansion is the likeliest. The others are samples: greedy decoding takes the only token that is left.
class Sampler:
    numbers, position = np.stack([random(n).random(config["new_tokens"]) for n in range(config["number"] - 1)]), 0
    def __call__(self, ids, logits):
        logits = logits.float() / config["temperature"]
        if config["top_k"] is not None and config["top_k"] < logits.shape[-1]:
            logits = logits.masked_fill(logits < logits.topk(config["top_k"], -1).values[:, -1:], -torch.inf)
        if config["top_p"] is not None and config["top_p"] < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            ordered = ordered.masked_fill(before >= config["top_p"], -torch.inf)
            logits = torch.full_like(logits, -torch.inf).scatter(-1, order, ordered)
        total = logits.softmax(-1).double().cumsum(-1)
        reached = total <= torch.from_numpy(self.numbers[:, [self.position]]) * total[:, -1:]
        self.position += 1
        token = reached.sum(-1, keepdim=True).clamp_max(logits.shape[-1] - 1)
        return torch.full_like(logits, -torch.inf).scatter_(1, token, 0.0)
copies = read.repeat(config["number"] - 1, 1)
written += decoded(writer.generate(
    input_ids=copies, attention_mask=torch.ones_like(copies), num_beams=1, logits_processor=[Sampler()], **options))
"""
CONTINUED = """\
read = read[:, :-1] if read[0, -1] == tokenizer.eos_token_id and read.shape[1] > 1 else read
"""
ISSUED = """\

# Without duplicates, case and white space aside.
kinds = {}
for number, text in enumerate(written, 1):
    kinds.setdefault(" ".join(text.split()).casefold(), (number, " ".join(text.split())))
kinds.pop("", None)
expansions = QUESTION[*kinds.values()]
CONCAT\
issued = [f"{query.rstrip(' ?')} ? {text}".strip() for _, text in expansions]
"""
CONCAT = """\
whole = " ".join(" ".join(text for _, text in expansions).split())
expansions = [(1, whole)] if whole else []
"""
FIRST = """\
chosen = sorted(range(len(issued)), key=lambda i: expansions[i][0] or float("inf"))[:1]
"""
ALL = """\
chosen = range(len(issued))
"""
ALONE = """\
from sentence_transformers import CrossEncoder
ranker = CrossEncoder(stage["reranker"]["folder"]).eval()
predicted = ranker(ranker.preprocess(issued))["scores"].reshape(-1).tolist() if issued else []
"""
WITH_PASSAGES = """\
from sentence_transformers import CrossEncoder
tops = [next(iter(kept["OF"](text)), None) for text in issued]
pairs = [(text, "" if top is None else documents[top]) for text, top in zip(issued, tops)]
predicted = CrossEncoder(stage["reranker"]["folder"]).predict(pairs).tolist() if issued else []
"""
LOWEST = """\
allowed = [i for i in range(len(issued)) if stage["number"] is None or expansions[i][0] <= stage["number"]]
chosen = sorted(allowed, key=lambda i: (predicted[i], expansions[i][0]))[: stage["most"]]
"""
ONE = """\
scores["NAME"] = kept["OF"](issued[chosen[0]]) if chosen else scores["OF"]
"""
SEVERAL = """\
lists, stage = [kept["OF"](issued[i]) for i in chosen], stage["fusion"]
"""
UNCHANGED = """\
scores["NAME"] = scores["NAME"] if chosen else scores["OF"]
"""


class QueryRerankerConfig(Config):
    """A query reranker. It predicts, for each expansion of a query, the rank of the first relevant document."""

    folder: str = "query-reranker"
    """Folder of the query reranker."""
    precision: Literal["bf16", "fp32", "int8"] = "fp32"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster."""
    template: Literal["paper", "released"] = "paper"
    """Layout of its input, as `components.expansion.query_reading` describes it."""
    passage: bool = False
    """True if it also reads the first document that the expansion retrieves."""


class ExpansionStage(LaterStage):
    """Expansions of the query, and the rankings that a lexical stage's index has for the chosen ones (Chuang et al.,
    2023, chapter 3). The expansions come from feedback documents or from a language model."""

    kind: Literal["expansion"] = "expansion"
    of: str
    """Name of the lexical stage. Its own ranking has the feedback documents, and is the ranking of a query without an
    expansion."""
    relevance: RelevanceConfig | None = None
    """Settings of sampling expansions from feedback documents. If None, a language model writes them."""
    frequencies: str | None = None
    """File with the number of documents that have each term, for feedback documents."""
    generate: GenerateConfig | None = None
    """Settings of a language model that writes expansions. If None, they come from feedback documents."""
    generator: str | None = None
    """Folder of the language model."""
    architecture: Literal["seq2seq", "causal"] = "seq2seq"
    """Kind of the language model. `seq2seq` reads its input and then writes. `causal` continues its input."""
    query_tokens: int = Field(64, ge=3)
    """Maximum length of the language model's input in tokens, special tokens included."""
    seed: list[int | str] = []
    """Beginning of the key of a random choice. The query's text follows, so that a query always has the same
    expansions."""
    question: bool = False
    """True if the query without an expansion is a candidate too."""
    choice: Literal["first", "lowest", "concat", "all"] = "first"
    """Expansions that are searched for. `first`: the first that was generated. `lowest`: those with the lowest
    predicted rank. `concat`: all as one query. `all`: each, and the rankings are fused."""
    reranker: QueryRerankerConfig | None = None
    """Predicts ranks for `choice: lowest`."""
    number: int | None = Field(None, ge=1)
    """Choose among so many expansions that were generated first. If None, among all."""
    most: int = Field(1, ge=1)
    """Number of expansions with the lowest predicted ranks whose rankings are fused."""
    fusion: FusionConfig | None = None
    """Fusion of the rankings of several expansions of a query."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.relevance is None) == (self.generate is None):
            raise Invalid("relevance, generate: accepted: one of them", "one-of")
        if self.generate is not None and self.generator is None:
            raise Invalid("generator: none; accepted: the folder of a language model", "missing-key")
        if self.relevance is not None and self.frequencies is None:
            raise Invalid("frequencies: none; accepted: the file of the terms' frequencies", "missing-key")
        if (self.reranker is None) == (self.choice == "lowest"):
            raise Invalid("reranker: accepted with `choice: lowest`, and needed there", "needed-together")
        if (self.fusion is None) == (self.choice == "all" or self.most > 1):
            raise Invalid("fusion: accepted for several expansions of a query, and needed there", "needed-together")
        return self

    searches: ClassVar[bool] = True
    needs: ClassVar[Literal["vectors", "words"] | None] = "words"

    def is_lexical(self, system: Any) -> bool:
        """Return True: an index of words is searched."""
        return True

    def reach(self, config: Any) -> int:
        """Return the number of documents that the index lists, or that the fusion keeps."""
        reached: int = config.reach(self.of) if self.fusion is None else self.fusion.depth
        return reached

    def rank(self, name: str, search: Search) -> None:
        """Rank the documents for the chosen expansions."""
        lexical, k = search.parts[self.of], search.config.length(self.of, 1)

        def issue(issued: Sequence[str], queries: Sequence[int]) -> list[Ranking]:
            rankings: list[Ranking] = lexical(issued, k, [search.without[query] for query in queries])()
            return rankings

        with search.seconds.of("expand"):
            search.add(name, search.parts[name](search.texts, search.rankings[self.of], search.documents, issue))

    @property
    def contents(self) -> dict[str, str]:
        files = {}
        if self.frequencies is not None:
            files[self.frequencies] = "the number of documents that have each term"
        if self.generator is not None:
            files[self.generator] = f"the language model that writes expansions, for `{_model(self)}`"
        if self.reranker is not None:
            reranker = "the query reranker, for `CrossEncoder`; the lowest score is the best expansion"
            files[self.reranker.folder] = reranker
        return files

    @property
    def precisions(self) -> set[str]:
        return {model.precision for model in (self.generate, self.reranker) if model is not None}

    def sentence(self, name: str) -> str:
        """Say where expansions come from, and which are searched for."""
        source = "a language model expands the query"
        if self.relevance is not None:
            source = f"the first {self.relevance.documents} documents of `{self.of}` expand the query"
        return f"`{name}`: {source}, and `{self.of}` searches for {self._choice}."

    @property
    def _choice(self) -> str:
        if self.reranker is not None:
            count = "the expansion" if self.most == 1 else f"the {self.most} expansions"
            return f"{count} that a query reranker puts first"
        return {"concat": "all expansions as one query", "all": "all expansions"}.get(
            self.choice, "the first expansion"
        )

    def lines(self, system: Any, name: str) -> str:
        """Expand the query, choose, and search."""
        issued = ISSUED.replace("QUESTION", '[(0, "")] + ' if self.question else "")
        issued = issued.replace("CONCAT", CONCAT if self.choice == "concat" else "")
        ranked = ONE if self.fusion is None else SEVERAL + fusion_lines(self.fusion, None) + UNCHANGED
        return (_expanded(self) + issued + _chosen(self) + ranked).replace("OF", self.of)

    def open(self, folder: Path, options: Mapping[str, Any]) -> Any:
        """Open the models."""
        from sparring.components.systems.expanding import Expander, ExpansionWriter, RankPredictor

        writer = None if self.generator is None else ExpansionWriter(folder / self.generator, **options)
        frequencies = None if self.frequencies is None else feedback.read_frequencies(folder / self.frequencies)
        predictor = None
        if (reranker := self.reranker) is not None:
            predictor = RankPredictor(folder / reranker.folder, precision=reranker.precision, **options)
        return Expander(self, writer=writer, frequencies=frequencies, predictor=predictor)


def _expanded(stage: ExpansionStage) -> str:
    """Return the lines that write expansions."""
    if stage.relevance is not None:
        draws = stage.relevance.draws
        choices = {"terms": TERMS, "sentence": SENTENCES, "title": TITLES}[draws]
        count = 'config["terms"]' if draws == "terms" else "1"
        weights = RM3 if stage.relevance.model == "rm3" else ROCCHIO
        return FEEDBACK.replace("WEIGHTS", weights) + choices + RANDOM + SAMPLED.replace("COUNT", count)
    assert stage.generate is not None
    causal = stage.architecture == "causal"
    written = WRITTEN.replace("CONTINUED", CONTINUED if causal else "").replace("AutoModelFor", _model(stage))
    written = written.replace("CUT", "read.shape[1]" if causal else "0")
    if stage.generate.method == "beam":
        return written + BEAMS
    return written + SAMPLES + (RANDOM + MORE_SAMPLES if stage.generate.number > 1 else "")


def _chosen(stage: ExpansionStage) -> str:
    """Return the lines that choose expansions."""
    if stage.reranker is not None:
        return (WITH_PASSAGES if stage.reranker.passage else ALONE) + LOWEST
    return ALL if stage.choice == "all" else FIRST


def _model(stage: ExpansionStage) -> str:
    return "AutoModelForCausalLM" if stage.architecture == "causal" else "AutoModelForSeq2SeqLM"


Stage = ExpansionStage

"""Lines of `example.py` for a stage of query expansions."""

from sparring.components.systems.config import ExpansionStage

FEEDBACK = """\
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
ranker = CrossEncoder(stage["reranker"]["folder"]).eval()
predicted = ranker(ranker.preprocess(issued))["scores"].reshape(-1).tolist() if issued else []
"""
WITH_PASSAGES = """\
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


def lines(stage: ExpansionStage, fusing: str) -> str:
    """Return the lines that compute a stage's scores. `fusing` fuses the rankings of several expansions."""
    issued = ISSUED.replace("QUESTION", '[(0, "")] + ' if stage.question else "")
    issued = issued.replace("CONCAT", CONCAT if stage.choice == "concat" else "")
    ranked = ONE if stage.fusion is None else SEVERAL + fusing + UNCHANGED
    return _expanded(stage) + issued + _chosen(stage) + ranked


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


def modules(stage: ExpansionStage) -> list[str]:
    """List the modules that the lines use."""
    if stage.relevance is not None:
        return ["collections", "hashlib", "numpy as np", "regex"]
    return ["hashlib", "numpy as np", "torch"]


def transformers(stage: ExpansionStage) -> list[str]:
    """List the names that the lines import from transformers."""
    return [] if stage.relevance is not None else ["AutoTokenizer", _model(stage)]

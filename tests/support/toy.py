"""A collection of invented words, and models of a few thousand weights, made in a moment and without a network."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparring.components.config import parse
from sparring.components.data import own_documents
from sparring.components.data.tables import DOCUMENTS, GROUPS, OWN, QRELS, QUERIES, RANKING
from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig, MaskedLanguageModelConfig
from sparring.components.training.config import TrainConfig
from sparring.workflows.chaos.toy import CROSS_ENTROPY, LETTERS, WORDS, bert_tokenizer, some_text
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine

# One thread: models are tiny, and on a busy machine threads that wait for one another take ten times as long.
# A checkpoint after every update.
INLINE = resolve_machine(
    Cluster(mode="inline", device="cpu", max_tokens_per_pass=256, train={"threads": 1}, save_seconds=0)
)


def roberta_tokenizer() -> Any:
    """Byte-level BPE without a merge: a token a byte."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import RobertaTokenizer

    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(ByteLevel.alphabet())]
    return RobertaTokenizer(
        vocab={max_tokens: i for i, max_tokens in enumerate(pieces)}, merges=[], model_max_length=128
    )


def t5_tokenizer() -> Any:
    """Unigrams: the toy words, and letters for what is none."""
    from transformers import T5Tokenizer

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -2.0), ("\u2581", -3.0)]
    pieces += [*((f"\u2581{word}", -4.0) for word in WORDS), *((letter, -6.0) for letter in LETTERS)]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=64)


def qwen_tokenizer() -> Any:
    """Byte-level BPE without a merge: a token a byte. It puts nothing around texts."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    pieces = [*sorted(ByteLevel.alphabet()), "<|endoftext|>", "<|im_end|>"]
    tokenizer = Qwen2Tokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=512)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    return tokenizer


def llama_tokenizer() -> Any:
    """Letters, and a mark where a word begins. As Llama's and Mistral's, it begins texts by `<s>`, ends none, and has
    no padding."""
    from tokenizers.processors import TemplateProcessing
    from transformers import LlamaTokenizer

    pieces = ["<unk>", "<s>", "</s>", "\u2581", *LETTERS, ":", "?"]
    tokenizer = LlamaTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=512)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def modernbert_tokenizer() -> Any:
    """As BERT's, but without token types."""
    tokenizer = bert_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


TOKENIZERS = {
    "roberta": roberta_tokenizer,
    "xlm-roberta": roberta_tokenizer,
    "t5": t5_tokenizer,
    "qwen3": qwen_tokenizer,
    "llama": llama_tokenizer,
    "mistral": llama_tokenizer,
    "modernbert": modernbert_tokenizer,
}
CAUSAL = {"qwen3": "Qwen3", "llama": "Llama", "mistral": "Mistral"}
"""Causal language models, and what their classes are called."""

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}


def write_encoder(
    folder: Path, kind: str = "bert", *, seed: int = 0, tokenizer: Any | None = None, head: bool = False, **sizes: Any
) -> Path:
    """A pre-trained encoder as one finds them: weights, config and tokenizer in a directory. With `head`, a causal
    language model with the head that predicts tokens."""
    import torch
    import transformers

    tokenizer = tokenizer or TOKENIZERS.get(kind, bert_tokenizer)()
    options = {**SIZES, **sizes, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if kind == "distilbert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
        config = transformers.DistilBertConfig(
            dim=32, n_layers=2, n_heads=2, hidden_dim=48, max_position_embeddings=96, vocab_size=len(tokenizer)
        )
    elif kind in ("roberta", "xlm-roberta"):
        config_class = transformers.RobertaConfig if kind == "roberta" else transformers.XLMRobertaConfig
        config = config_class(**options, type_vocab_size=1, bos_token_id=0, eos_token_id=2)
    elif kind == "deberta-v2":
        config = transformers.DebertaV2Config(**options, relative_attention=True, pos_att_type=["c2p", "p2c"])
    elif kind == "t5":  # its decoder comes along, as it does where one finds it
        config = transformers.T5Config(
            d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, vocab_size=len(tokenizer), decoder_start_token_id=0
        )
    elif kind in CAUSAL:  # two heads share the keys and values of one
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            del options[name]
        sharing = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024}
        # Mistral's windows are shorter than texts here.
        sharing |= {"sliding_window": 8} if kind == "mistral" else {}
        config = getattr(transformers, f"{CAUSAL[kind]}Config")(**{**options, **sharing, **sizes}, eos_token_id=None)
    elif kind == "modernbert":
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            del options[name]
        config = transformers.ModernBertConfig(
            **{**options, "max_position_embeddings": 1024, **sizes},
            local_attention=16,
            global_attn_every_n_layers=2,
            cls_token_id=2,
            sep_token_id=3,
            bos_token_id=2,
            eos_token_id=3,
        )
    elif kind == "electra":
        config = transformers.ElectraConfig(**options, embedding_size=16)
    else:
        config = transformers.BertConfig(**options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (transformers.AutoModelForCausalLM if head else transformers.AutoModel).from_config(config)
        for name, value in model.named_parameters():  # so that no two texts look alike to it
            if value.ndim >= 2:
                torch.nn.init.normal_(value, std=0.15)
            elif name.endswith("bias") or kind in CAUSAL:
                torch.nn.init.normal_(value, mean=float(kind in CAUSAL), std=0.05)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def write_document_vectors(folder: Path, parts: Iterable[np.ndarray]) -> Path:
    """The vectors of a collection's documents as `encode` writes them, a file a part."""
    lengths = {}
    for number, part in enumerate(parts):
        name = f"documents-{number:05d}.npy"
        np.save(folder / name, part)
        lengths[name] = len(part)
    (folder / "documents.json").write_text(json.dumps(lengths))
    return folder


def write_data(folder: Path, *, documents: int = 40, queries: int = 24, row_group: int = 16) -> Path:
    """A collection: documents of very different lengths, some with a title, two texts that stand twice.

    Query i asks with words of document i, its positive; every third has a second positive. Documents 30 and 31
    say what documents 0 and 1 say. Two thirds of the queries are `train`, the others `dev` and `test`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    texts = [some_text(rng, int(rng.integers(2, 24))) for _ in range(documents)]
    titles = [WORDS[i % len(WORDS)] if i % 4 == 0 else "" for i in range(documents)]
    texts[30], titles[30], texts[31], titles[31] = texts[0], titles[0], texts[1], titles[1]
    doc_ids = [f"d{i}" for i in range(documents)]
    pq.write_table(
        pa.table({"doc_id": doc_ids, "title": titles, "text": texts}, schema=DOCUMENTS),
        folder / "documents.parquet",
        row_group_size=row_group,
    )
    splits = ["train" if i % 3 else ("dev" if i % 2 else "test") for i in range(queries)]
    query_texts = [" ".join(texts[i].split()[: 1 + i % 5]) for i in range(queries)]
    pq.write_table(
        pa.table(
            {
                "query_id": [f"q{i}" for i in range(queries)],
                "text": query_texts,
                "answers": [[]] * queries,
                "split": splits,
            },
            schema=QUERIES,
        ),
        folder / "queries.parquet",
    )
    judged = [(i, i, 1) for i in range(queries)] + [(i, (i + 9) % documents, 2) for i in range(0, queries, 3)]
    judged += [(i, (i + 5) % documents, 0) for i in range(0, queries, 4)]  # judged, and found not relevant
    pq.write_table(
        pa.table(
            {
                "query_id": [f"q{q}" for q, _, _ in judged],
                "doc_id": [f"d{d}" for _, d, _ in judged],
                "relevance": [r for _, _, r in judged],
                "split": [splits[q] for q, _, _ in judged],
            },
            schema=QRELS,
        ),
        folder / "qrels.parquet",
    )
    return folder


def with_answers(folder: Path, data: Path, *, rare: bool = False) -> Path:
    """The toy collection whose queries have answers, the first words of their document, or its last three, which few
    documents have; every sixth has none."""
    shutil.copytree(data, folder)
    rows = pq.read_table(data / "queries.parquet").to_pylist()
    texts = pq.read_table(data / "documents.parquet")["text"].to_pylist()
    for i, row in enumerate(rows):
        words = texts[i].split()
        answers = [" ".join(words[-3:])] if rare else [" ".join(words[:2]), words[0]]
        row["answers"] = [] if i % 6 == 5 else answers
    pq.write_table(pa.Table.from_pylist(rows, schema=QUERIES), folder / "queries.parquet")
    return folder


def with_own(folder: Path, data: Path, own: list[tuple[str, str]], *, left_out: bool = True) -> Path:
    """The tables of a collection with pairs of queries and the documents that they are."""
    folder.mkdir(exist_ok=True)
    for path in data.glob("*.parquet"):
        shutil.copy(path, folder)
    rows = [{"query_id": query, "doc_id": document, "left_out": left_out} for query, document in own]
    pq.write_table(pa.Table.from_pylist(rows, schema=OWN), folder / own_documents.FILE)
    return folder


def without_own(ranking: list[dict[str, Any]], data: Path, k: int) -> list[dict[str, Any]]:
    """The rows of a ranking without queries' own documents, ranked anew and cut to `k` a query."""
    pairs = {(row["query_id"], row["doc_id"]) for row in pq.read_table(data / own_documents.FILE).to_pylist()}
    ranks, rows = Counter[str](), []
    for row in ranking:
        if (query := row["query_id"], row["doc_id"]) not in pairs and ranks[query] < k:
            ranks[query] += 1
            rows.append({**row, "rank": ranks[query]})
    return rows


def write_groups(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A groups artifact; `targets` are 1 and then 0, `visit` is 0 and `teacher` null where a row does not say."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = [{"visit": 0, "targets": [1.0] + [0.0] * (len(row["doc_ids"]) - 1), "teacher": None, **row} for row in rows]
    pq.write_table(pa.Table.from_pylist(whole, schema=GROUPS), folder / "groups.parquet")
    return folder


def write_ranking(folder: Path, found: dict[str, list[str]]) -> Path:
    """A ranking artifact with scores that fall by 1 from rank to rank."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"query_id": query, "doc_id": document, "rank": rank, "score": 100.0 - rank}
        for query, documents in found.items()
        for rank, document in enumerate(documents, 1)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=RANKING), folder / "ranking.parquet")
    return folder


def retriever_config(model: Path | str, **options: Any) -> DualEncoderConfig:
    """A retriever that begins from a toy encoder, without dropout."""
    defaults = {"dropout": 0.0, "query_tokens": 8, "document_tokens": 24}
    return DualEncoderConfig(**{"model": str(model), **defaults, **options})


def ranker_config(model: Path | str, **options: Any) -> CrossEncoderConfig:
    """A ranker that begins from a toy encoder, without dropout."""
    return CrossEncoderConfig(**{"model": str(model), "dropout": 0.0, "pair_tokens": 24, **options})


def started(folder: Path, config: Any) -> Path:
    """The artifact of a start model."""
    from sparring.workflows.steps.start import start

    folder.mkdir()
    start(folder, INLINE, config=config)
    return folder


def language_model_config(model: Path | str, **options: Any) -> MaskedLanguageModelConfig:
    """A masked language model made of a toy encoder, without dropout."""
    return MaskedLanguageModelConfig(**{"model": str(model), "dropout": 0.0, "document_tokens": 24, **options})


def train_config(**options: Any) -> TrainConfig:
    """A short training in fp32, of cross entropy over the group unless said otherwise. It keeps its optimizer."""
    defaults: dict[str, Any] = {
        "updates": 4,
        "batch": 4,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "losses": [{"function": CROSS_ENTROPY}],
        "schedule_updates": options.get("updates", 4),
    }
    return parse(TrainConfig, {**defaults, **options}, where="test")

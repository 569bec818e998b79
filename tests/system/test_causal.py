"""A whole run with causal language models: AR2 on a retriever by the last token and a ranker by a token's logit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support import tiny, toy
from tests.support.tiny import Place
from tests.system.test_end_to_end import copy_of_beginning, predictions


def test_ar2_plays_on_causal_language_models(played: Place, beir: Path, toys: Path, tmp_path: Path) -> None:
    """Each player has its own instructions in its own tokens. sentence-transformers gives the documents' vectors and
    the ranker's scores with the models of the run, on the texts."""
    from sentence_transformers import SentenceTransformer

    source = str(toy.write_encoder(toys / "playing", "qwen3", head=True))
    tree = tiny.ar2(beir, Path(source))
    tree["retriever"]["model"] |= {
        "pooling": None,
        "end_token": "<|im_end|>",
        "query_prompt": "Instruct: find\nQuery:",
        "query_tokens": 48,
        "document_tokens": 64,
    }
    tree["ranker"]["model"] = {
        "model": source,
        "true_token": "y",
        "false_token": "n",
        "pair_tokens": 120,
        "dropout": 0.0,
        "template": "q: {query}\nd: {document}<|im_end|>\n",
    }
    tree["controls"] = {}
    place = tiny.place(tmp_path, tree)
    copy_of_beginning(played, place)
    assert place("run") == 0
    judged = pq.read_table(place.artifact("judged 1") / "groups.parquet").to_pylist()[0]
    assert judged["teacher"] == pytest.approx(predictions(place, "ranker 1", judged), abs=1e-4)

    data = pq.read_table(place.artifact("data") / "documents.parquet").to_pylist()
    texts = [f"{row['title']} {row['text']}".strip() for row in data]
    reference = SentenceTransformer(str(place.artifact("retriever 1") / "model"), device="cpu", local_files_only=True)
    vectors = place.artifact("retriever 1 vectors")
    rows = np.concatenate([np.load(path) for path in sorted(vectors.glob("documents-*.npy"))])
    np.testing.assert_allclose(reference.encode_document(texts), rows, rtol=0, atol=1e-4)
    assert place("export", str(tmp_path / "out")) == 0  # which compares vectors once more
    assert place("search", "bara comi", "--system", "ranker over retriever 1") == 0

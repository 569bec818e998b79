"""What people write who have sentence-transformers and FastAPI: a model, an index and documents behind one path.

python -m tests.benchmarks.peer_search FOLDER PORT
"""

import json
import sys
from pathlib import Path
from typing import Any

import faiss
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import CrossEncoder, SentenceTransformer


class Texts(BaseModel):
    """Texts to embed."""

    input: list[str]
    model: str


class Pairs(BaseModel):
    """Documents to order for a query."""

    query: str
    documents: list[str]
    model: str


class Question(BaseModel):
    """As the service's."""

    queries: list[str]
    k: int = 10


def main() -> None:
    """Open an exported system's retriever and serve it."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    stages = json.loads((folder / "system.json").read_text())["stages"]
    model = SentenceTransformer(str(folder / "retriever"))
    model.max_seq_length = stages["dense"]["query_tokens"]
    if stages["dense"]["precision"] == "bf16":
        model.to(torch.bfloat16)
    ranker = CrossEncoder(str(folder / "ranker"), trust_remote_code=True) if "ranker" in stages else None
    if ranker is not None and stages["ranker"]["precision"] == "bf16":
        ranker.model.to(torch.bfloat16)
    index = faiss.read_index(str(folder / "index.faiss"))
    with (folder / "documents.jsonl").open(encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    app = FastAPI()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/search")
    def search(question: Question) -> dict[str, Any]:
        vectors = model.encode_query(question.queries, show_progress_bar=False)
        scores, rows = index.search(vectors, question.k)
        return {
            "results": [
                {"query": query, "documents": [{**documents[row], "score": float(scores[row])} for row in scores]}
                for query, scores in zip(
                    question.queries, map(dict, map(zip, rows.tolist(), scores.tolist())), strict=True
                )
            ]
        }

    @app.post("/v1/embeddings")
    def embeddings(texts: Texts) -> dict[str, Any]:
        vectors = model.encode(texts.input, show_progress_bar=False).tolist()
        rows = [{"object": "embedding", "index": place, "embedding": vector} for place, vector in enumerate(vectors)]
        return {"object": "list", "data": rows, "model": texts.model}

    @app.post("/v1/rerank")
    def rerank(pairs: Pairs) -> dict[str, Any]:
        assert ranker is not None
        scores = ranker.predict([(pairs.query, text) for text in pairs.documents], show_progress_bar=False).tolist()
        order = sorted(range(len(scores)), key=lambda place: -scores[place])
        return {"results": [{"index": place, "relevance_score": scores[place]} for place in order]}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


if __name__ == "__main__":
    main()

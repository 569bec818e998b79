"""Writes `example_<database>.py`, a short program that searches in a database with the models of a system.

It fuses and reranks as `example.py` does. The database finds the nearest vectors, and its full-text search stands in
for BM25.
"""

import pprint
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.components.retrieval.kinds.dense import DenseStage
from sparring.components.retrieval.kinds.lexical import LexicalStage
from sparring.components.systems.config import SystemConfig
from sparring.components.systems.database import KEY, Layout, VectorDatabase, column
from sparring.components.systems.example import STAGE, program
from sparring.components.systems.searching import LaterStage

DATA = """
import os
import sys
query, k = (sys.argv[1:] or sys.exit(__doc__))[0], int([*sys.argv[2:], 10][0])
stages = STAGES
documents, scores = {}, {}  # texts by document, and scores of each stage by document, best first
# $DATABASE_URL may add a user and a password.
url = os.environ.get("DATABASE_URL", URL)
"""
KEEP = """
def keep(rows):
    rows = sorted(rows, key=lambda row: (-row[3], row[0]))
    documents.update({id: f"{title} {text}".strip() for id, title, text, score in rows})
    return {id: score for id, title, text, score in rows}
"""
NEAREST = """\
scores["NAME"] = keep(nearest("COLUMN", vector[0], stage["k"]))
"""
WORDS = """\
scores["NAME"] = keep(words(query, stage["k"]))
"""


def check(config: SystemConfig) -> None:
    """Raise UserError if a stage of the system cannot work with a database."""
    for name, stage in config.stages.items():
        works = isinstance(stage, DenseStage | LexicalStage | LaterStage) and not stage.is_last
        if not works or (isinstance(stage, LaterStage) and stage.needs):
            raise UserError(
                f"{KEY}: the stage `{name}` works with our own indexes only. Use --system NAME, with a system of dense "
                "retrievers, BM25, fusions and rankers.",
                code="no-database-stage",
            )
        if isinstance(stage, LexicalStage) and stage.rm3 is not None:
            raise UserError(
                f"{KEY}: the stage `{name}` has relevance feedback, which no database has. Use --system NAME, with a "
                "system without it.",
                code="no-database-stage",
            )


def file_name(database: str) -> str:
    """Name the program of a database.

    >>> file_name("my_package.databases.milvus")
    'example_milvus.py'
    """
    return f"example_{database.rpartition('.')[2]}.py"


def example(
    config: SystemConfig,
    database: type[VectorDatabase],
    layout: Layout,
    url: str,
    models: Mapping[str, Path],
    name: str,
) -> str:
    """Write the program called `name`. `url` is the database's, without user and password, and `models` has the place
    of each model, by its folder in the system."""
    stages = {key: _placed(stage.model_dump(mode="json"), models) for key, stage in config.stages.items()}
    shown = pprint.pformat(stages, width=110, sort_dicts=False)
    data = DATA.replace("STAGES", shown).replace("URL)", f"{url!r})")
    words = database.program_words if layout.lexical is not None else ""
    parts = [data, database.named(database.program + words, layout), KEEP]
    for key, stage in config.stages.items():
        if isinstance(stage, DenseStage):
            lines = stage.encoding + NEAREST.replace("COLUMN", column(key))
        else:
            lines = WORDS if isinstance(stage, LexicalStage) else stage.lines(config, key)
        parts.append((STAGE + lines).replace("NAME", key))
    return program(config, name, parts)


def _placed(stage: dict[str, Any], models: Mapping[str, Path]) -> dict[str, Any]:
    """Return a stage's numbers, and the places of its models on this machine."""
    paths = {key: str(models[stage[key]]) for key in ("retriever", "folder") if key in stage}
    return {key: value for key, value in (stage | paths).items() if value is not None and key != "index"}

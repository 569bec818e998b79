"""Turn texts into vectors with a retriever: a run's, an exported system's or that of a folder. The vectors are those
that the run itself would compute."""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from sparring.components.config import UserError
from sparring.components.files import replacing, save_array
from sparring.workflows.commands.models import add_model, load_encoder
from sparring.workflows.commands.shared_arguments import check_output
from sparring.workflows.commands.texts import ACCEPTED, STANDARD_INPUT, read_texts

AT_ONCE = 10_000
"""Number of texts that are tokenised and encoded together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_model(parser, "retriever")
    parser.add_argument(
        "texts",
        type=Path,
        metavar="TEXTS",
        nargs="?",
        help=f"{ACCEPTED} (default: standard input)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the file to write: .npy with one row per text, or .jsonl with one `id` and `vector` per line (default: "
        ".jsonl to standard output)",
    )
    parser.add_argument(
        "--side",
        choices=("document", "query"),
        default="document",
        help="what the texts are: models with prompts or with two towers read documents and queries differently "
        "(default: document)",
    )


def call(arguments: argparse.Namespace) -> None:
    """Write the vectors, and say how many there are."""
    output = arguments.output
    if output is not None:
        if output.suffix not in (".npy", ".jsonl"):
            raise UserError(f"--output: {output} has another ending. Use .npy or .jsonl.", key="--output")
        check_output(output, "another FILE")
    encode = load_encoder(arguments)
    names, blocks = list[str](), list[np.ndarray]()
    file = arguments.texts or STANDARD_INPUT
    texts = read_texts(file)
    for block in iter(lambda: list(islice(texts, AT_ONCE)), []):
        vectors = encode([text.text for text in block], arguments.side)
        if not isinstance(vectors, np.ndarray):
            raise UserError(
                f"{arguments.config}: its retriever gives each text several vectors. Use a dense retriever.",
                code="wrong-kind",
            )
        names += [text.id for text in block]
        blocks.append(vectors)
    if not blocks:
        raise UserError(f"{file}: there are no texts. Give a file that has some.", code="no-texts")
    vectors = np.concatenate(blocks)
    if output is None:
        sys.stdout.writelines(_lines(names, vectors))
        return
    with replacing(output) as temporary:
        if output.suffix == ".npy":
            save_array(temporary, vectors)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(_lines(names, vectors))
    print(f"{output}: {len(vectors):,} vectors of {vectors.shape[1]} numbers ({vectors.dtype})", file=sys.stderr)


def _lines(names: list[str], vectors: np.ndarray) -> Iterator[str]:
    for name, vector in zip(names, vectors.tolist(), strict=True):
        yield json.dumps({"id": name, "vector": vector}, ensure_ascii=False) + "\n"

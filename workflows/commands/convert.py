"""Convert a checkpoint of DPR's, AR2's, ANCE's or CODER's own code to a retriever's folder, which `retriever.model` and
sentence-transformers take. Convert a checkpoint of Fusion-in-Decoder to a reader's folder. The checkpoint must be in
safetensors, because a pickle would be executed."""

import argparse
from pathlib import Path

from sparring.components.config import UserError, parse
from sparring.components.files import new_folder
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.models.reader_configs import ReaderConfig
from sparring.workflows.commands.shared_arguments import check_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "checkpoint",
        type=Path,
        nargs="+",
        metavar="CHECKPOINT",
        help="a file in safetensors, or a hub's folder with one; two for a retriever with an encoder in each",
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="the folder to write, which must not exist")
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="the model that it was trained from, for its shape and its tokeniser: a name of the hub or a folder; for "
        "CODER the retriever whose document vectors it was trained with",
    )
    parser.add_argument(
        "--query-tokens", type=int, metavar="N", help="maximum length of a query, for a retriever (default: 32)"
    )
    parser.add_argument(
        "--document-tokens",
        type=int,
        metavar="N",
        help="maximum length of a document (default: 256; for a reader, of a question with its passage: 250)",
    )


def call(arguments: argparse.Namespace) -> None:
    """Write the folder, and print its contents."""
    from sparring.components.models import checkpoints  # imports torch

    paths, folder = arguments.checkpoint, arguments.directory
    if len(paths) > 2:
        raise UserError(f"{len(paths)} checkpoints; accepted: one, or the query's and the document's")
    if folder.exists():
        raise UserError(f"{folder}: is there already; accepted: a new directory")
    check_output(folder, "another DIRECTORY")
    of_query, of_document = arguments.query_tokens, arguments.document_tokens
    if checkpoints.has_reader(paths):
        if of_query is not None:
            raise UserError(
                "--query-tokens: a reader cuts a question together with its passage; accepted: --document-tokens"
            )
        lengths = {} if of_document is None else {"passage_tokens": of_document}
        reader_config = parse(ReaderConfig, {"model": arguments.model, **lengths}, where="convert")
        reader, tokenizer = checkpoints.reader(paths[0], reader_config)
        description, key = "a reader", f"reader: {{model: {{model: {folder}}}, train: null}}"
        with new_folder(folder) as place:
            checkpoints.write(reader, tokenizer, place)
    else:
        lengths = {
            "query_tokens": 32 if of_query is None else of_query,
            "document_tokens": 256 if of_document is None else of_document,
        }
        config = parse(DualEncoderConfig, {"model": arguments.model, **lengths}, where="convert")
        model, tokenizer, layout = checkpoints.retriever(paths, config)
        description = f"{layout}'s layout; {model.config.towers} towers, vectors of {model.dimensions} numbers"
        key = f"retriever: {{model: {folder}}}"
        with new_folder(folder) as place:
            checkpoints.write(model, tokenizer, place)
    print(f"{folder}: {description}\nIn a config: {key}")

"""Write a collection whose judgements include what people marked right or wrong in the service. It is a folder in
BEIR's layout. The original collection is not changed."""

import argparse
import shutil
from pathlib import Path

from sparring.components.config import UserError
from sparring.components.systems import config as configs
from sparring.workflows.commands.shared_arguments import add_config, check_output, opened
from sparring.workflows.experiments import loading
from sparring.workflows.store.availability import finished


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser, "an experiment, such as configs/demo.yaml, or the folder of an exported system")
    parser.add_argument("out", type=Path, metavar="DIRECTORY", help="the folder to write, which must not exist")
    parser.add_argument(
        "--split", default="train", help="split of the queries that the collection does not have (default: train)"
    )
    parser.add_argument(
        "--marks", type=Path, metavar="FILE", help="file of the marks (default: marks.jsonl in the run's folder)"
    )


def call(arguments: argparse.Namespace) -> None:
    """Write the collection, and print what the marks have changed."""
    from sparring.workflows.serving import judgements
    from sparring.workflows.serving.marks import FILE, Marks

    config, out, split = arguments.config, arguments.out, arguments.split
    if not split.isidentifier():
        raise UserError(f"--split: got {split!r}; accepted: a word, such as train")
    if out.exists():
        raise UserError(f"{out}: is there already; accepted: a new folder")
    check_output(out, "another DIRECTORY")
    folder, experiment = config, None
    if loading.is_system(config):
        configs.read(config)
    else:
        experiment, store = opened(arguments)
        folder = experiment.run
    file = arguments.marks or folder / FILE
    if not file.exists():
        raise UserError(
            f"{file}: no such file; marks are made on the page of `serve` (of a finished run, or of an exported system)"
        )
    marks = Marks(file).all()
    try:
        if experiment is None:
            added = judgements.write_folder(out, folder / configs.DOCUMENTS, marks, split)
        else:
            data = experiment.outcome.data
            finished(store, data)
            store.fetch([data])
            added = judgements.write(out, store.path(data), marks, split)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    from_marks = _counted(added.judgements, "judgement", "judgements")
    new = _counted(added.queries, "new query", "new queries")
    print(
        f"{out}: {from_marks} from marks, {added.changed} of them in place of the collection's own; "
        f"{new} in the split {split}"
    )
    if added.skipped:
        print(f"left out: {_counted(added.skipped, 'mark', 'marks')} of documents that are not there any more")
    print(f"To use it: data: {{format: beir, path: {out}}}")


def _counted(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"

"""SentEval's folder of downstream tasks (Conneau and Kiela, 2018), as its script `get_transfer_data.bash` creates it.

Semantic similarity: STS12 to STS16 (`STS/STS12-en-test/STS.input.*.txt`, with the scores in `STS.gs.*.txt`),
STSBenchmark and SICKRelatedness. Transfer: MR, CR, SUBJ and MPQA (a file per class, no splits), and SST2, TREC and MRPC
(with splits). Files, columns and encodings are those that SentEval reads. Quotes are part of the text. As in SentEval,
pairs without a score are skipped. In STS15 and STS16 these are most pairs.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import field_validator, model_validator

from sparring.components.config import listing
from sparring.components.sources import base, labelled
from sparring.components.sources.labelled import Labelled
from sparring.components.sources.reading import read_lines
from sparring.components.sources.records import Bad

Read = Callable[[list[Path], str], Iterator[Labelled | Bad]]


class Task(NamedTuple):
    """The files of a task, and the function that reads those of a split."""

    files: dict[str, list[str]]
    """Files of each split, inside SentEval's folder."""
    read: Read


def _columns(
    folder: str,
    files: tuple[str, ...],
    sentences: tuple[int, ...],
    value: int,
    *,
    scores: bool = False,
    header: bool = False,
) -> Task:
    """Make a task from tab-separated files for train, optionally dev, and test.

    `sentences` and `value` are numbers of columns, from 0. The value is a class, or with `scores` a score.
    """

    def read(paths: list[Path], split: str) -> Iterator[Labelled | Bad]:
        width = max(*sentences, value) + 1
        for line in read_lines(paths[0]):
            if isinstance(line, Bad):
                yield line
                continue
            cells = line.text.split("\t")
            if header and line.number == 1:
                continue
            if len(cells) < width:
                yield Bad("wrong columns", line.place, f"got {len(cells)}, expected {width} or more between tabs")
                continue
            checked = labelled.scored if scores else labelled.labelled
            texts = tuple(cells[column] for column in sentences)
            yield checked(f"{split}-{line.number}", texts, cells[value], split, line.place)

    splits = ("train", "dev", "test") if len(files) == 3 else ("train", "test")
    return Task({split: [f"{folder}/{name}"] for split, name in zip(splits, files, strict=True)}, read)


def _subsets(folder: str, *subsets: str) -> Task:
    """Make a task from a file of pairs and a file of scores per subset. The lines of both files correspond."""

    def read(paths: list[Path], split: str) -> Iterator[Labelled | Bad]:
        for subset, pairs, scores in zip(subsets, paths[::2], paths[1::2], strict=True):
            for pair, score in zip_longest(read_lines(pairs, blank=True), read_lines(scores, blank=True)):
                yield from (line for line in (pair, score) if isinstance(line, Bad))
                if pair is None or score is None:
                    longer = pair or score
                    yield Bad("line without its pair", longer.place, f"{pairs.name} and {scores.name} differ in length")
                    break
                if isinstance(pair, Bad) or isinstance(score, Bad) or not score.text.strip():
                    continue
                cells = pair.text.split("\t")[:2]  # some distributions of STS16 name the sources after the sentences
                if len(cells) < 2:
                    yield Bad("wrong columns", pair.place, f"got {len(cells)}, expected two sentences between tabs")
                    continue
                name = f"{subset}-{pair.number}"
                yield labelled.scored(name, tuple(cells), score.text, split, score.place, subset=subset)

    names = [name for subset in subsets for name in (f"STS.input.{subset}.txt", f"STS.gs.{subset}.txt")]
    return Task({"test": [f"STS/{folder}/{name}" for name in names]}, read)


def _classes(positive: str, negative: str) -> Task:
    """Make a task from a file per class, with a sentence per line."""

    def read(paths: list[Path], split: str) -> Iterator[Labelled | Bad]:
        for label, path in zip("10", paths, strict=True):
            for line in read_lines(path, encoding="latin-1"):
                if isinstance(line, Bad):
                    yield line
                else:
                    yield labelled.labelled(f"{label}-{line.number}", (line.text,), label, split, line.place)

    return Task({labelled.ALL: [positive, negative]}, read)


def _questions(paths: list[Path], split: str) -> Iterator[Labelled | Bad]:
    """Read TREC's questions, such as `DESC:manner How did ...`. The label is the coarse class."""
    for line in read_lines(paths[0], encoding="latin-1"):
        if isinstance(line, Bad):
            yield line
            continue
        label, colon, rest = line.text.partition(":")
        _, space, question = rest.partition(" ")
        if colon and space:
            yield labelled.labelled(f"{split}-{line.number}", (question,), label, split, line.place)
        else:
            yield Bad("wrong columns", line.place, f"got {line.text!r:.40}, expected CLASS:kind and a question")


STSB = ("sts-train.csv", "sts-dev.csv", "sts-test.csv")
SICK = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
SST = ("sentiment-train", "sentiment-dev", "sentiment-test")
MRPC = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")
TASKS: dict[str, Task] = {
    "STS12": _subsets("STS12-en-test", "MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": _subsets("STS13-en-test", "FNWN", "headlines", "OnWN"),
    "STS14": _subsets("STS14-en-test", "deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": _subsets("STS15-en-test", "answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": _subsets("STS16-en-test", "answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    "STSBenchmark": _columns("STS/STSBenchmark", STSB, (5, 6), 4, scores=True),
    "SICKRelatedness": _columns("SICK", SICK, (1, 2), 3, scores=True, header=True),
    "MR": _classes("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": _classes("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": _classes("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": _classes("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
    "SST2": _columns("SST/binary", SST, (0,), 1),
    "TREC": Task({"train": ["TREC/train_5500.label"], "test": ["TREC/TREC_10.label"]}, _questions),
    "MRPC": _columns("MRPC", MRPC, (3, 4), 0, header=True),
}
"""Tasks by their names in SentEval."""


class Source(labelled.LabelledSource):
    """The keys of `format: senteval`."""

    path: str
    """Folder with the folders of the tasks: SentEval's `data/downstream`. `$SPARRING_DATA`, if set, replaces a leading
    `data/`."""
    task: str
    """Task: STS12 to STS16, STSBenchmark, SICKRelatedness, MR, CR, SUBJ, MPQA, SST2, TREC or MRPC."""
    splits: base.Splits = None
    """Splits to read: all of the task (`null`), a list of names, or a mapping such as `{dev: train}`. STS12 to STS16
    have `test`. TREC and MRPC have `train` and `test`. MR, CR, SUBJ and MPQA have the single split `all`. The remaining
    tasks have `train`, `dev` and `test`."""

    @field_validator("task")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in TASKS:
            raise ValueError(f"got {name!r}. Use one of these: {listing(TASKS)}.")
        return name

    @model_validator(mode="after")
    def _has_splits(self) -> Self:
        present = TASKS[self.task].files
        for name in base.chosen(self.splits, list(present)).values():
            if name not in present:
                raise ValueError(f"splits: {self.task} has no split {name!r}. Use one of these: {listing(present)}.")
        return self

    def files(self) -> dict[str, Path]:
        """Return the files of the task's chosen splits."""
        folder = base.locate(self.path)
        return {name: folder / name for names in self._chosen().values() for name in names}

    def read_labelled(self) -> Iterator[Labelled | Bad]:
        """Yield the task's pairs or sentences, split by split."""
        folder = base.locate(self.path)
        for split, names in self._chosen().items():
            yield from TASKS[self.task].read([folder / name for name in names], split)

    def _chosen(self) -> dict[str, list[str]]:
        paths = TASKS[self.task].files
        return {split: paths[name] for split, name in base.chosen(self.splits, list(paths)).items()}

"""SentEval's folder of downstream tasks (Conneau and Kiela, 2018), as its script `get_transfer_data.bash` makes it.

Semantic similarity: STS12 to STS16 (`STS/STS12-en-test/STS.input.*.txt`, with the scores in `STS.gs.*.txt`),
STSBenchmark and SICKRelatedness. Transfer: MR, CR, SUBJ and MPQA (a file a class, no splits), SST2, TREC and MRPC
(given splits). Of each task the files and columns are those that SentEval reads, in the encodings that it reads them
in. Quotes are part of the text. A pair without a score, as most of those of STS15 and STS16 are, is left out, as in
SentEval.
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import field_validator, model_validator

from sparring.components.config import listing
from sparring.components.sources import base, labelled
from sparring.components.sources.labelled import Labelled
from sparring.components.sources.reading import read_lines
from sparring.components.sources.records import Bad


class Subsets(NamedTuple):
    """Pairs in files by subset, and their scores in others, line by line."""

    folder: str
    subsets: tuple[str, ...]

    def paths(self) -> dict[str, list[str]]:
        """The files of each split."""
        names = [name for subset in self.subsets for name in (f"STS.input.{subset}.txt", f"STS.gs.{subset}.txt")]
        return {"test": [f"{self.folder}/{name}" for name in names]}

    def read(self, paths: list[Path], split: str) -> Iterator[Labelled | Bad]:
        """The pairs that have a score."""
        for subset, pairs, scores in zip(self.subsets, paths[::2], paths[1::2], strict=True):
            for pair, score in zip_longest(read_lines(pairs, blank=True), read_lines(scores, blank=True)):
                for line in (pair, score):
                    if isinstance(line, Bad):
                        yield line
                if pair is None or score is None:
                    longer = pair or score
                    yield Bad("line without its pair", longer.place, f"{pairs.name} and {scores.name} differ in length")
                    break
                if isinstance(pair, Bad) or isinstance(score, Bad) or not score.text.strip():
                    continue
                cells = pair.text.split("\t")
                if len(cells) < 2:  # some distributions of STS16 name the sources behind the sentences
                    yield Bad("wrong columns", pair.place, f"got {len(cells)}, expected two sentences between tabs")
                    continue
                name = f"{subset}-{pair.number}"
                yield labelled.scored(name, tuple(cells[:2]), score.text, split, score.place, subset=subset)


class Columns(NamedTuple):
    """Tab-separated files, one a split."""

    folder: str
    files: dict[str, str]
    sentences: tuple[int, ...]
    """The columns of the sentences, from 0."""
    value: int
    """The column of the class or score."""
    scores: bool = False
    header: bool = False

    def paths(self) -> dict[str, list[str]]:
        """The file of each split."""
        return {split: [f"{self.folder}/{name}"] for split, name in self.files.items()}

    def read(self, paths: list[Path], split: str) -> Iterator[Labelled | Bad]:
        """The lines, without the header."""
        needed = max(*self.sentences, self.value) + 1
        for line in read_lines(paths[0]):
            if isinstance(line, Bad):
                yield line
                continue
            if self.header and line.number == 1:
                continue
            cells = line.text.split("\t")
            if len(cells) < needed:
                yield Bad("wrong columns", line.place, f"got {len(cells)}, expected {needed} or more between tabs")
                continue
            checked = labelled.scored if self.scores else labelled.labelled
            sentences = tuple(cells[at] for at in self.sentences)
            yield checked(f"{split}-{line.number}", sentences, cells[self.value], split, line.place)


class Classes(NamedTuple):
    """A sentence a line, in a file for each class."""

    folder: str
    classes: dict[str, str]
    """The file of each class."""

    def paths(self) -> dict[str, list[str]]:
        """The files of the one split."""
        return {labelled.ALL: [f"{self.folder}/{name}" for name in self.classes.values()]}

    def read(self, paths: list[Path], split: str) -> Iterator[Labelled | Bad]:
        """The sentences of each class."""
        for label, path in zip(self.classes, paths, strict=True):
            for line in read_lines(path, encoding="latin-1"):
                if isinstance(line, Bad):
                    yield line
                else:
                    yield labelled.labelled(f"{label}-{line.number}", (line.text,), label, split, line.place)


class Questions(NamedTuple):
    """TREC's questions: `DESC:manner How did ...`, of which the coarse class counts."""

    folder: str
    files: dict[str, str]

    def paths(self) -> dict[str, list[str]]:
        """The file of each split."""
        return {split: [f"{self.folder}/{name}"] for split, name in self.files.items()}

    def read(self, paths: list[Path], split: str) -> Iterator[Labelled | Bad]:
        """The questions."""
        for line in read_lines(paths[0], encoding="latin-1"):
            if isinstance(line, Bad):
                yield line
                continue
            label, colon, rest = line.text.partition(":")
            _, space, question = rest.partition(" ")
            if not colon or not space:
                yield Bad("wrong columns", line.place, f"got {line.text!r:.40}, expected CLASS:kind and a question")
                continue
            yield labelled.labelled(f"{split}-{line.number}", (question,), label, split, line.place)


Layout = Subsets | Columns | Classes | Questions


def _splits(train: str, dev: str, test: str) -> dict[str, str]:
    return {"train": train, "dev": dev, "test": test}


TASKS: dict[str, Layout] = {
    "STS12": Subsets("STS/STS12-en-test", ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews")),
    "STS13": Subsets("STS/STS13-en-test", ("FNWN", "headlines", "OnWN")),
    "STS14": Subsets("STS/STS14-en-test", ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news")),
    "STS15": Subsets("STS/STS15-en-test", ("answers-forums", "answers-students", "belief", "headlines", "images")),
    "STS16": Subsets(
        "STS/STS16-en-test", ("answer-answer", "headlines", "plagiarism", "postediting", "question-question")
    ),
    "STSBenchmark": Columns(
        "STS/STSBenchmark", _splits("sts-train.csv", "sts-dev.csv", "sts-test.csv"), (5, 6), 4, scores=True
    ),
    "SICKRelatedness": Columns(
        "SICK",
        _splits("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"),
        (1, 2),
        3,
        scores=True,
        header=True,
    ),
    "MR": Classes("MR", {"1": "rt-polarity.pos", "0": "rt-polarity.neg"}),
    "CR": Classes("CR", {"1": "custrev.pos", "0": "custrev.neg"}),
    "SUBJ": Classes("SUBJ", {"1": "subj.objective", "0": "subj.subjective"}),
    "MPQA": Classes("MPQA", {"1": "mpqa.pos", "0": "mpqa.neg"}),
    "SST2": Columns("SST/binary", _splits("sentiment-train", "sentiment-dev", "sentiment-test"), (0,), 1),
    "TREC": Questions("TREC", {"train": "train_5500.label", "test": "TREC_10.label"}),
    "MRPC": Columns(
        "MRPC", {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"}, (3, 4), 0, header=True
    ),
}
"""By SentEval's name."""


class Source(labelled.LabelledSource):
    """The keys of `format: senteval`."""

    path: str
    """The folder that holds the tasks' folders: SentEval's `data/downstream`. A leading `data/` is replaced by
    `$SPARRING_DATA`, if that is set."""
    task: str
    """One of STS12 to STS16, STSBenchmark, SICKRelatedness, MR, CR, SUBJ, MPQA, SST2, TREC, MRPC."""
    splits: base.Splits = None
    """Which splits are read: all of the task (null), a list of names, or a mapping such as `{dev: train}`. STS12 to
    STS16 have `test`, TREC and MRPC `train` and `test`, MR, CR, SUBJ and MPQA the one split `all`, the others `train`,
    `dev` and `test`."""

    @field_validator("task")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in TASKS:
            raise ValueError(f"got {name!r}; accepted: {listing(TASKS)}")
        return name

    @model_validator(mode="after")
    def _has_splits(self) -> Self:
        present = TASKS[self.task].paths()
        for theirs in base.chosen(self.splits, list(present)).values():
            if theirs not in present:
                raise ValueError(f"splits: {self.task} has no split {theirs!r}; accepted: {listing(present)}")
        return self

    def files(self) -> dict[str, Path]:
        """The files of the task's chosen splits."""
        folder = base.locate(self.path)
        return {name: folder / name for names in self._chosen().values() for name in names}

    def read_labelled(self) -> Iterator[Labelled | Bad]:
        """The task's pairs or sentences, split by split."""
        folder = base.locate(self.path)
        for split, names in self._chosen().items():
            yield from TASKS[self.task].read([folder / name for name in names], split)

    def _chosen(self) -> dict[str, list[str]]:
        paths = TASKS[self.task].paths()
        return {ours: paths[theirs] for ours, theirs in base.chosen(self.splits, list(paths)).items()}

"""MultiReQA: the sentences of the MRQA shared task's contexts, and the questions that they answer (Guo et al., 2021).

MultiReQA publishes no text, but where sentences begin and end: `SPLIT/NAME/candidates.json`. Contexts, questions and
answers are the shared task's (Fisch et al., 2019), a JSON-lines file for each split. Files are plain or .gz.

A sentence is relevant to a question if it is one of its context's and the whole of an answer that was found in the
context lies in it. MultiReQA lists a sentence once, where several contexts have it. A question without a relevant
sentence is left out.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from sparring.components.config import UserError
from sparring.components.sources import base
from sparring.components.sources.reading import Item, named, plain_or_gz, read_objects, some
from sparring.components.sources.records import Bad, Document, Judgement, Query, document, judgement, query


class Source(base.Source):
    """The keys of `format: multireqa`."""

    path: str
    """The folder with what MultiReQA's repository has in `data`. A leading `data/` is replaced by `$SPARRING_DATA`, if
    that is set."""
    name: str
    """The data set, as MultiReQA calls it: SQuAD, NaturalQuestions, TriviaQA, SearchQA or HotpotQA."""
    contexts: str = "mrqa/{split}/{name}.jsonl"
    """The shared task's file of each split, inside the folder. It calls two data sets otherwise: NaturalQuestionsShort
    and TriviaQA-web."""
    splits: dict[str, str] = Field({"train": "train", "test": "dev"}, min_length=1)
    """By our names, the splits that are read, as folders and files are called. MultiReQA tests on the shared task's
    development split."""

    def files(self) -> dict[str, Path]:
        """Sentences and contexts of every split."""
        paths = [path for split in self.splits.values() for path in (self._sentences(split), self._contexts(split))]
        return named(base.locate(self.path), paths)

    def read_documents(self) -> Iterator[Document | Bad]:
        """The sentences, by their ids in MultiReQA."""
        for split in self.splits.values():
            for context in self._read(split):
                if isinstance(context, Bad):
                    yield context
                    continue
                for sentence in context.sentences:
                    text = context.text[sentence.start : sentence.end]
                    yield document(sentence.name, None, text, context.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The questions that a sentence answers."""
        for ours, split in self.splits.items():
            for context in self._whole(split):
                for asked in context.questions:
                    if context.answering(asked):
                        yield query(asked.get("qid"), asked.get("question"), asked.get("answers"), ours, context.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The sentences that answer each question."""
        for ours, split in self.splits.items():
            for context in self._whole(split):
                for asked in context.questions:
                    for sentence in context.answering(asked):
                        yield judgement(asked.get("qid"), sentence.name, 1, ours, context.place)

    def _whole(self, split: str) -> "Iterator[_Context]":
        """The contexts of a split that have sentences; others were reported when the documents were read."""
        return (context for context in self._read(split) if isinstance(context, _Context))

    def _read(self, split: str) -> "Iterator[_Context | Bad]":
        """The contexts of a split that have sentences, and what is wrong with others."""
        found = _Sentences(self._sentences(split))
        yield from found.bad
        path = self._contexts(split)
        for item in some(read_objects(path), path, "contexts", "another file in `contexts`"):
            if isinstance(item, Bad):
                yield item
            elif "header" not in item.value:
                yield from _context(item, found)
        for place in found.left():
            yield Bad("sentence of a missing context", place, f"{path} has none of its questions")

    def _sentences(self, split: str) -> Path:
        return plain_or_gz(base.locate(self.path) / split / self.name / "candidates.json")

    def _contexts(self, split: str) -> Path:
        try:
            name = self.contexts.format(split=split, name=self.name)
        except (LookupError, ValueError):
            raise UserError(f"contexts: got {self.contexts!r}; accepted: a name with {{split}} and {{name}}") from None
        return plain_or_gz(base.locate(self.path) / name)


class _Sentence(NamedTuple):
    """A sentence: its id, and where it begins and ends in its context, the end excluded."""

    name: str
    start: int
    end: int


class _Context(NamedTuple):
    """A context with its sentences and questions."""

    text: str
    sentences: list[_Sentence]
    questions: list[dict[str, Any]]
    place: str

    def answering(self, question: dict[str, Any]) -> list[_Sentence]:
        """The sentences with the whole of an answer to a question. Ends of answers are included in them."""
        spans = [span for found in question["detected_answers"] for span in found["char_spans"]]
        return [one for one in self.sentences if any(one.start <= start and end < one.end for start, end in spans)]


class _Sentences:
    """Where the sentences of a split begin and end. Their ids are `NAME_QUESTION/QUESTION/.../_NUMBER`, with the ids of
    all questions about their context. Held in memory: 24 bytes a sentence, and the ids of contexts."""

    def __init__(self, path: Path) -> None:
        self.bad: list[Bad] = []
        self._of: dict[str, array[int]] = {}
        self._contexts: dict[str, tuple[str, str]] = {}
        """By the first question: the context's part of ids, and the place of its first sentence."""
        for item in some(read_objects(path), path, "sentences", "another `name`"):
            if isinstance(item, Bad):
                self.bad.append(item)
            elif (sentence := _sentence(item.value)) is None:
                how = "expected candidate_id, response_start and response_end"
                self.bad.append(Bad("wrong columns", item.place, how))
            else:
                context, _, number = sentence.name.rpartition("/_")
                first = context.partition("_")[2].partition("/")[0]
                self._contexts.setdefault(first, (context, item.place))
                self._of.setdefault(first, array("q")).extend((int(number), sentence.start, sentence.end))

    def take(self, questions: list[str]) -> list[_Sentence]:
        """The sentences of the context of some questions, in order; none where it has none. Only once."""
        first = next((one for one in questions if one in self._of), None)
        if first is None:
            return []
        numbers, (context, _) = self._of.pop(first), self._contexts[first]
        rows = sorted(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
        return [_Sentence(f"{context}/_{number}", start, end) for number, start, end in rows]

    def left(self) -> Iterator[str]:
        """The places of sentences that nobody has taken."""
        return (self._contexts[first][1] for first in self._of)


def _sentence(row: dict[str, Any]) -> _Sentence | None:
    """A row of MultiReQA; None where it is none."""
    name, start, end = (row.get(key) for key in ("candidate_id", "response_start", "response_end"))
    if not isinstance(name, str) or not isinstance(start, int) or not isinstance(end, int):
        return None
    context, _, number = name.rpartition("/_")
    fits = "_" in context and number.isdecimal() and len(number) < 10 and 0 <= start <= end < 2**31
    return _Sentence(name, start, end) if fits else None


def _context(item: Item, found: _Sentences) -> Iterator[_Context | Bad]:
    """A line of the shared task with its sentences; nothing where it has none."""
    text, questions = item.value.get("context"), item.value.get("qas")
    try:
        sentences = found.take([asked["qid"] for asked in questions])
        context = _Context(text, sentences, questions, item.place)
        for asked in questions:
            context.answering(asked)
    except (LookupError, TypeError, ValueError):
        yield Bad("wrong columns", item.place, "expected context and qas, with qid and detected_answers")
        return
    if not isinstance(text, str):
        yield Bad("wrong columns", item.place, f"the context must be text, and is {text!r:.60}")
    elif beyond := [one for one in sentences if one.end > len(text)]:
        yield Bad("sentence beyond its context", item.place, f"it ends at {len(text)}", beyond[0].name)
    elif sentences:
        yield context

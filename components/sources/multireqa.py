"""MultiReQA: the sentences of the MRQA shared task's contexts, and the questions that they answer (Guo et al., 2021).

MultiReQA publishes no texts, only the starts and ends of sentences, in `SPLIT/NAME/candidates.json`. Contexts,
questions and answers are those of the shared task (Fisch et al., 2019), in a JSON-lines file per split. Files are plain
or .gz.

A sentence is relevant to a question if it is in the question's context and contains a complete answer that was detected
there. If contexts share a sentence, MultiReQA lists it once. A question without a relevant sentence is skipped.
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
    """Folder with the contents of `data` in MultiReQA's repository. `$SPARRING_DATA`, if set, replaces a leading
    `data/`."""
    name: str
    """MultiReQA's name of the data set: SQuAD, NaturalQuestions, TriviaQA, SearchQA or HotpotQA."""
    contexts: str = "mrqa/{split}/{name}.jsonl"
    """File of the shared task for each split, inside the folder. The shared task calls two data sets
    NaturalQuestionsShort and TriviaQA-web."""
    splits: dict[str, str] = Field({"train": "train", "test": "dev"}, min_length=1)
    """Splits to read, as names of folders and files, by our names. MultiReQA tests on the shared task's development
    split."""

    def files(self) -> dict[str, Path]:
        """Return sentences and contexts of every split."""
        paths = [path for split in self.splits.values() for path in (self._sentences(split), self._contexts(split))]
        return named(base.locate(self.path), paths)

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the sentences, with their ids in MultiReQA."""
        for split in self.splits.values():
            for context in self._read(split):
                if isinstance(context, Bad):
                    yield context
                    continue
                for sentence in context.sentences:
                    text = context.text[sentence.start : sentence.end]
                    yield document(sentence.name, None, text, context.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the questions that have an answering sentence."""
        for question, answering, split, place in self._answered():
            if answering:
                yield query(question.get("qid"), question.get("question"), question.get("answers"), split, place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the sentences that answer each question."""
        for question, answering, split, place in self._answered():
            for sentence in answering:
                yield judgement(question.get("qid"), sentence.name, 1, split, place)

    def _answered(self) -> "Iterator[tuple[dict[str, Any], list[_Sentence], str, str]]":
        """Yield each question with the sentences that answer it, its split and its place.

        Bad contexts were reported when the documents were read.
        """
        for name, split in self.splits.items():
            for context in self._read(split):
                if isinstance(context, _Context):
                    for question in context.questions:
                        yield question, context.answering(question), name, context.place

    def _read(self, split: str) -> "Iterator[_Context | Bad]":
        """Yield the contexts of a split that have sentences, and the bad rows."""
        sentences, places = dict[str, Any](), dict[str, tuple[str, str]]()
        path = self._sentences(split)
        for item in some(read_objects(path), path, "sentences", "another `name`"):
            if isinstance(item, Bad):
                yield item
            elif (sentence := _sentence(item.value)) is None:
                yield Bad("wrong columns", item.place, "expected candidate_id, response_start and response_end")
            else:
                context, _, number = sentence.name.rpartition("/_")
                first = context.partition("_")[2].partition("/")[0]
                places.setdefault(first, (context, item.place))
                sentences.setdefault(first, array("q")).extend((int(number), sentence.start, sentence.end))
        path = self._contexts(split)
        for item in some(read_objects(path), path, "contexts", "another file in `contexts`"):
            if isinstance(item, Bad):
                yield item
            elif "header" not in item.value:
                yield from _context(item, sentences, places)
        for first in sentences:
            yield Bad("sentence of a missing context", places[first][1], f"{path} has none of its questions")

    def _sentences(self, split: str) -> Path:
        return plain_or_gz(base.locate(self.path) / split / self.name / "candidates.json")

    def _contexts(self, split: str) -> Path:
        try:
            name = self.contexts.format(split=split, name=self.name)
        except (LookupError, ValueError):
            raise UserError(
                f"contexts: got {self.contexts!r}. Use a file name in which only {{split}} and {{name}} are in braces."
            ) from None
        return plain_or_gz(base.locate(self.path) / name)


class _Sentence(NamedTuple):
    """A sentence: its id, and its start and end (exclusive) in its context."""

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
        """Return the sentences that contain a complete answer to a question. The ends of answers are inclusive."""
        spans = [span for answer in question["detected_answers"] for span in answer["char_spans"]]
        return [part for part in self.sentences if any(part.start <= start and end < part.end for start, end in spans)]


def _sentence(row: dict[str, Any]) -> _Sentence | None:
    """Parse a row of MultiReQA. Return None if its form is wrong.

    The id is `NAME_QUESTION/QUESTION/.../_NUMBER`, with the ids of all questions about the sentence's context.
    """
    name, start, end = (row.get(key) for key in ("candidate_id", "response_start", "response_end"))
    if not isinstance(name, str) or not isinstance(start, int) or not isinstance(end, int):
        return None
    context, _, number = name.rpartition("/_")
    fits = "_" in context and number.isdecimal() and len(number) < 10 and 0 <= start <= end < 2**31
    return _Sentence(name, start, end) if fits else None


def _context(item: Item, sentences: dict[Any, Any], places: dict[Any, tuple[str, str]]) -> Iterator[_Context | Bad]:
    """Yield a context of the shared task with its sentences, which are removed from `sentences`, or a bad record.

    Yield nothing if the context has no sentences.
    """
    text, questions = item.value.get("context"), item.value.get("qas")
    try:
        first = next((question["qid"] for question in questions if question["qid"] in sentences), None)
        numbers = sentences.pop(first, array("q"))
        rows = sorted(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
        parts = [_Sentence(f"{places[first][0]}/_{number}", start, end) for number, start, end in rows]
        context = _Context(text, parts, questions, item.place)
        for question in questions:
            context.answering(question)
    except (LookupError, TypeError, ValueError):
        yield Bad("wrong columns", item.place, "expected context and qas, with qid and detected_answers")
        return
    if not isinstance(text, str):
        yield Bad("wrong columns", item.place, f"the context must be text, but is {text!r:.60}")
    elif beyond := [part for part in parts if part.end > len(text)]:
        yield Bad("sentence beyond its context", item.place, f"it ends at {len(text)}", beyond[0].name)
    elif parts:
        yield context

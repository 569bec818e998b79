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
        """Return sentences and contexts of every split."""
        paths = [path for split in self.splits.values() for path in (self._sentences(split), self._contexts(split))]
        return named(base.locate(self.path), paths)

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the sentences, by their ids in MultiReQA."""
        for split in self.splits.values():
            for context in self._read(split):
                if isinstance(context, Bad):
                    yield context
                    continue
                for sentence in context.sentences:
                    text = context.text[sentence.start : sentence.end]
                    yield document(sentence.name, None, text, context.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the questions that a sentence answers."""
        for question, answering, split, place in self._answered():
            if answering:
                yield query(question.get("qid"), question.get("question"), question.get("answers"), split, place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the sentences that answer each question."""
        for question, answering, split, place in self._answered():
            for sentence in answering:
                yield judgement(question.get("qid"), sentence.name, 1, split, place)

    def _answered(self) -> "Iterator[tuple[dict[str, Any], list[_Sentence], str, str]]":
        """Yield each question with the sentences that answer it, its split and place. Bad contexts were reported when
        the documents were read."""
        for name, split in self.splits.items():
            for context in self._read(split):
                if isinstance(context, _Context):
                    for question in context.questions:
                        yield question, context.answering(question), name, context.place

    def _read(self, split: str) -> "Iterator[_Context | Bad]":
        """Yield the contexts of a split that have sentences, and bad rows."""
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
            raise UserError(f"contexts: got {self.contexts!r}; accepted: a name with {{split}} and {{name}}") from None
        return plain_or_gz(base.locate(self.path) / name)


class _Sentence(NamedTuple):
    """A sentence: its id, and its start and end in its context, the end excluded."""

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
        """Return the sentences with the whole of an answer to a question. Answers include their last character."""
        spans = [span for answer in question["detected_answers"] for span in answer["char_spans"]]
        return [part for part in self.sentences if any(part.start <= start and end < part.end for start, end in spans)]


def _sentence(row: dict[str, Any]) -> _Sentence | None:
    """Return a row of MultiReQA. Its id is `NAME_QUESTION/QUESTION/.../_NUMBER`, with the ids of all questions about
    its context."""
    name, start, end = (row.get(key) for key in ("candidate_id", "response_start", "response_end"))
    if not isinstance(name, str) or not isinstance(start, int) or not isinstance(end, int):
        return None
    context, _, number = name.rpartition("/_")
    fits = "_" in context and number.isdecimal() and len(number) < 10 and 0 <= start <= end < 2**31
    return _Sentence(name, start, end) if fits else None


def _context(item: Item, sentences: dict[Any, Any], places: dict[Any, tuple[str, str]]) -> Iterator[_Context | Bad]:
    """Yield a line of the shared task with its sentences, which are taken out; nothing if it has none."""
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
        yield Bad("wrong columns", item.place, f"the context must be text, and is {text!r:.60}")
    elif beyond := [part for part in parts if part.end > len(text)]:
        yield Bad("sentence beyond its context", item.place, f"it ends at {len(text)}", beyond[0].name)
    elif parts:
        yield context

"""A reader, as a stage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from sparring.components.data import reading
from sparring.components.data.reading import CONTEXT, QUESTION
from sparring.components.systems.searching import LaterStage, Search

READ = """\
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput
tokenizer = AutoTokenizer.from_pretrained(stage["folder"])
reader = AutoModelForSeq2SeqLM.from_pretrained(stage["folder"]).eval()
ids = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
whole, letter = tokenizer("a")["input_ids"], ids("a")
start = next(i for i in range(len(whole)) if whole[i : i + len(letter)] == letter)
before, between, after = whole[:start] + ids("BEFORE"), ids("BETWEEN"), whole[start + len(letter) :]
room, states = stage["passage_tokens"] - len(before + between + after), []
for id in list(scores["OF"])[: stage["passages"]]:
    title, text = contents[id]
    first, second = ids(ASKED), ids(PASSAGE)
    is_longer = len(first) > len(second)  # which of two texts of equal lengths loses a token
    while len(first) + len(second) > room:
        (first if len(first) > len(second) - (not is_longer) else second).pop()
    with torch.inference_mode():
        passage = torch.tensor([before + first + between + second + after])
        states.append(reader.get_encoder()(passage).last_hidden_state)

# The decoder attends to the states of all passages.
answer = ""
if states:
    joined = torch.cat(states, 1)
    output = reader.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=joined), attention_mask=torch.ones(joined.shape[:2]).long(),
        max_new_tokens=stage["new_tokens"], min_new_tokens=0, num_beams=1, do_sample=False, max_length=None,
        pad_token_id=tokenizer.pad_token_id)
    answer = tokenizer.decode(output[0], skip_special_tokens=True).strip()
"""
PRINTED = """
print(f"answer: {answer}")"""


class ReaderStage(LaterStage):
    """A reader that writes an answer from the first documents of a ranking (Izacard and Grave, 2021). It is the last
    stage, and leaves the ranking as it is."""

    kind: Literal["reader"] = "reader"
    of: str
    """Name of the stage whose ranking is read."""
    folder: str = "reader"
    """Folder of the reader."""
    passages: int = Field(ge=1)
    """Number of documents that it reads."""
    passage_tokens: int = Field(ge=8)
    """Maximum length of the query with one document, special tokens included."""
    template: reading.Template | None = None
    """Layout of its input, as `components.data.reading` describes it."""
    new_tokens: int = Field(ge=1)
    """Maximum length of an answer in tokens."""
    precision: Literal["bf16", "fp32"] = "fp32"
    """Precision of the forward passes."""

    is_last: ClassVar[bool] = True

    @property
    def depth_read(self) -> int:
        return self.passages

    def rank(self, name: str, search: Search) -> None:
        """Leave the ranking as it is: `LoadedSystem.answer` reads it."""

    @property
    def contents(self) -> dict[str, str]:
        return {self.folder: "the reader, for `AutoModelForSeq2SeqLM`"}

    @property
    def precisions(self) -> set[str]:
        return {self.precision}

    def sentence(self, name: str) -> str:
        """Name the number of documents."""
        return f"`{name}`: a reader writes an answer from the first {self.passages} documents of `{self.of}`."

    def lines(self, system: Any, name: str) -> str:
        """Write the answer."""
        fid = self.template == "fid"
        named = {
            "BEFORE": "" if fid else QUESTION,
            "BETWEEN": "" if fid else CONTEXT,
            "ASKED": 'f"question:{query}"' if fid else "query",
            "PASSAGE": 'f"title: {title} context: {text}"' if fid else "documents[id]",
        }
        text = READ
        for name, value in named.items():
            text = text.replace(name, value)
        return text.replace("OF", self.of)

    def open(self, folder: Path, options: Mapping[str, Any]) -> Any:
        """Open the reader."""
        from sparring.components.systems.reading import AnswerWriter

        return AnswerWriter(folder / self.folder, precision=self.precision, new_tokens=self.new_tokens, **options)


Stage = ReaderStage

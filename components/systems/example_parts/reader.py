"""Lines of `example.py` for a reader."""

from sparring.components.data.reading import CONTEXT, QUESTION
from sparring.components.systems.config import ReaderStage

TRANSFORMERS = ["AutoModelForSeq2SeqLM", "AutoTokenizer"]
OUTPUT = """\
from transformers.modeling_outputs import BaseModelOutput
"""
READ = """\
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


def lines(stage: ReaderStage) -> str:
    """Return the lines that write the answer."""
    fid = stage.template == "fid"
    named = {
        "BEFORE": "" if fid else QUESTION,
        "BETWEEN": "" if fid else CONTEXT,
        "ASKED": 'f"question:{query}"' if fid else "query",
        "PASSAGE": 'f"title: {title} context: {text}"' if fid else "documents[id]",
    }
    text = READ
    for name, value in named.items():
        text = text.replace(name, value)
    return text

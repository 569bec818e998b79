"""Generators: what is drawn, what is likely, and that neither batch nor order makes a difference."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from sparring.components.config import UserError
from sparring.components.models.generator import Generator, _Sampler, filter_logits
from sparring.components.models.generator_configs import GenerateConfig, GeneratorConfig
from tests.support.errors import refused
from tests.support.writers import KINDS, architecture, write_generator

QUERIES = ["ba co", "who won the long race of 1974?", "x", "du fe gi"]
KEYS = [(1, "expand", f"q{i}") for i in range(len(QUERIES))]


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each kind of generator, written and loaded again."""
    result = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        write_generator(folder / "model", kind)
        generator, tokenizer = Generator.start(
            GeneratorConfig(model=str(folder / "model"), architecture=architecture(kind))
        )
        tokenizer.save_pretrained(str(folder / "tokenizer"))
        generator.save(folder / "saved", folder / "tokenizer")
        result[kind] = Generator.load(folder / "saved").eval()
    return result


def write(generator: Generator, queries: list[str] = QUERIES, *, batch_tokens: int = 100_000, **config: Any) -> Any:
    defaults = {"precision": "fp32", "new_tokens": 6, "number": 4}
    keys = [KEYS[QUERIES.index(query)] for query in queries]
    return generator.expansions(
        queries, GenerateConfig(**{**defaults, **config}), keys=keys, batch_tokens=batch_tokens
    ).texts


def generated(generator: Generator, text: str, **options: Any) -> list[str]:
    """What Hugging Face writes of one text."""
    ids = generator.tokenizer(text)["input_ids"]
    ids = ids if generator.seq2seq else ids[:-1]
    inputs = torch.tensor([ids])
    with torch.inference_mode():
        out = generator.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=6,
            **{"num_beams": 1, **options},
        )
    cut = 0 if generator.seq2seq else len(ids)
    return list(generator.tokenizer.batch_decode(out[:, cut:], skip_special_tokens=True))


@pytest.mark.parametrize(("kind", "wrong"), [("gpt2", "seq2seq"), ("t5", "causal")])
def test_a_model_of_the_other_kind_is_refused(tmp_path: Path, kind: str, wrong: Any) -> None:
    write_generator(tmp_path / "model", kind)
    with pytest.raises(UserError, match=f"Use another model, or for a generator `architecture: {architecture(kind)}`"):
        Generator.start(GeneratorConfig(model=str(tmp_path / "model"), architecture=wrong))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_what_hugging_face_writes(generators: Any, kind: str) -> None:
    assert write(generators[kind], number=1) == [generated(generators[kind], query) for query in QUERIES]


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_the_same_in_any_batch(generators: Any, kind: str) -> None:
    together = write(generators[kind])
    assert [len(texts) for texts in together] == [4] * 4
    assert write(generators[kind], batch_tokens=1) == together
    assert write(generators[kind], QUERIES[::-1]) == together[::-1]
    assert any(len(set(texts)) > 1 for texts in together)
    assert [texts[0] for texts in together] == [texts[0] for texts in write(generators[kind], number=1)]


@pytest.mark.parametrize("kind", KINDS)
def test_beams_come_best_first(generators: Any, kind: str) -> None:
    """As Hugging Face has them, query by query."""
    result = write(generators[kind], method="beam", number=2, beams=3)
    for query, texts in zip(QUERIES, result, strict=True):
        assert texts == generated(generators[kind], query, num_beams=3, num_return_sequences=2)
    assert result != write(generators[kind], number=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_holds_the_query(generators: Any, kind: str) -> None:
    prompt = "what {query} ? we need"
    result = write(generators[kind], number=1, prompt=prompt)
    assert result == [generated(generators[kind], f"what {query} ? we need") for query in QUERIES]
    if kind != "bert":  # which writes the same whatever it reads
        assert result != write(generators[kind], number=1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_too_long_loses_the_end_of_the_query(generators: Any, kind: str) -> None:
    """And not of the prompt, which says what to do with it."""
    generator, long = generators[kind], "ba co " * 200
    most = generator.config.query_tokens
    cut, short = generator._prompted([long, "du fe"], "what {query} ? we need")
    assert short == generator.tokenizer("what du fe ? we need")["input_ids"]
    assert len(cut) == most
    assert cut[-4:] == short[-4:]
    assert cut[:20] == generator.tokenizer(f"what {long} ? we need")["input_ids"][:20]
    assert generator._prompted([long], "{query}") == [
        generator.tokenizer(long, truncation=True, max_length=most)["input_ids"]
    ]
    with pytest.raises(UserError, match=r"tokens without a query, but query_tokens is \d+\. Raise query_tokens"):
        generator._prompted([long], "what " * 100 + "{query}")


@pytest.mark.parametrize("method", ["sample", "beam"])
def test_the_encoder_reads_each_query_once(generators: Any, method: str) -> None:
    """However many texts are written of it."""
    read = []
    encoder = generators["t5"].model.get_encoder()
    hook = encoder.register_forward_hook(lambda _, __, result: read.append(len(result.last_hidden_state)))
    try:
        write(generators["t5"], method=method)
    finally:
        hook.remove()
    assert read == [len(QUERIES)]


def test_draws_have_the_models_probabilities() -> None:
    """Against the softmax over what temperature, top-k and top-p leave."""
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5])
    config = GenerateConfig(temperature=0.8, top_k=3, top_p=0.9)
    random = torch.rand(20_000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = _Sampler(config, random)(torch.empty(0), logits.expand(20_000, 4)).argmax(-1)
    wanted = filter_logits(logits[None] / 0.8, 3, 0.9).softmax(-1)[0]
    result = torch.bincount(drawn, minlength=4) / 20_000
    assert torch.allclose(result, wanted, atol=0.015)
    assert wanted[0] == 0
    assert result[0] == 0


def test_what_may_be_drawn() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert (filter_logits(logits, 2, None) > -torch.inf).tolist() == [[True, True, False, False]]
    assert (filter_logits(logits, None, 0.65) > -torch.inf).tolist() == [[True, True, False, False]]
    assert (filter_logits(logits, None, 0.71) > -torch.inf).tolist() == [[True, True, True, False]]
    assert (filter_logits(logits, None, 0.01) > -torch.inf).tolist() == [[True, False, False, False]]
    assert torch.equal(filter_logits(logits, None, None), logits)
    # Of the three likeliest the first has 4/9: with top-p after top-k two are enough for three quarters.
    assert (filter_logits(logits, 3, 0.75) > -torch.inf).tolist() == [[True, True, False, False]]


@pytest.mark.parametrize("kind", KINDS)
def test_likelihoods_are_those_of_one_text_at_a_time(generators: Any, kind: str) -> None:
    """Padded together, and against a plain loop over the tokens that the model itself is asked for."""
    generator = generators[kind]
    tokenizer = generator.tokenizer
    sources, targets = ["ba", "co du fe"], ["ra mi tol", "ven"]

    def padded(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        both = tokenizer(texts, padding=True, return_tensors="pt")
        return both["input_ids"], both["attention_mask"]

    with torch.inference_mode():
        together = generator.log_likelihoods(padded(sources), padded(targets))
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            ids, wanted = torch.tensor([tokenizer(source)["input_ids"]]), tokenizer(target)["input_ids"]
            for place, token in enumerate(wanted):
                if generator.seq2seq:
                    before = [generator.model.config.decoder_start_token_id, *wanted[:place]]
                    logits = generator.model(input_ids=ids, decoder_input_ids=torch.tensor([before])).logits
                else:
                    whole = torch.cat([ids, torch.tensor([wanted[:place]], dtype=torch.long)], 1)
                    logits = generator.model(input_ids=whole).logits
                alone = logits[0, -1].log_softmax(-1)[token]
                assert together[row, place].item() == pytest.approx(alone.item(), abs=2e-4)
            assert (together[row, len(wanted) :] == 0).all()


def test_sampling_finds_more_than_greedy(generators: Any) -> None:
    result = write(generators["bart"], number=12, temperature=2.0, top_k=None)
    assert all(Counter(texts).most_common(1)[0][1] < 12 for texts in result)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"prompt": "what"}, "it does not contain {query}"),
        ({"beams": 4}, "this key needs `method: beam`"),
        ({"method": "beam", "number": 5, "beams": 3}, "3 beams cannot give 5"),
    ],
)
def test_what_cannot_be_asked(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GenerateConfig(**config)


def test_an_encoder_begins_both_sides(generators: Any, tmp_path: Path) -> None:
    """Its layers and its words are on both; what stands between them is new, and all of it is saved."""
    write_generator(tmp_path / "model", "bert")
    whole = transformers.BertModel.from_pretrained(str(tmp_path / "model")).state_dict()
    model = generators["bert"].model
    for side in (model.encoder, model.decoder.bert):
        result = side.state_dict()
        same = [name for name in whole if not name.startswith("pooler")]
        assert all(torch.equal(result[name], whole[name]) for name in same)
    assert any("crossattention" in name for name in model.decoder.state_dict())
    assert not any("crossattention" in name for name in model.encoder.state_dict())
    tokenizer = generators["bert"].tokenizer
    text = model.generation_config
    assert [text.decoder_start_token_id, text.eos_token_id] == [tokenizer.cls_token_id, tokenizer.sep_token_id]


def test_a_generator_that_is_not_there(tmp_path: Path) -> None:
    with refused("model", "missing-folder"):
        Generator.start(GeneratorConfig(model=str(tmp_path / "nowhere")))

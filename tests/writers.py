"""Language models of a few thousand weights: a T5, a BART and a GPT-2 that read and write bytes."""

from __future__ import annotations

from pathlib import Path

from tests import toy

KINDS = ("t5", "bart", "gpt2")


def write_generator(folder: Path, kind: str = "t5", *, seed: int = 0) -> Path:
    """A pre-trained language model as one finds them: weights, config and tokenizer in a directory."""
    import torch
    import transformers

    tokenizer = toy.roberta_tokenizer()
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}
    if kind == "t5":
        config = transformers.T5Config(
            d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, decoder_start_token_id=1, dropout_rate=0.0, **ids
        )
        auto = transformers.AutoModelForSeq2SeqLM
    elif kind == "bart":
        config = transformers.BartConfig(
            d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=48, decoder_ffn_dim=48, decoder_start_token_id=2, max_position_embeddings=160, dropout=0.0,
            forced_eos_token_id=2, **ids,
        )  # fmt: skip
        auto = transformers.AutoModelForSeq2SeqLM
    else:
        config = transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=2, n_positions=160, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **ids
        )
        auto = transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config)
        for value in model.parameters():
            if value.ndim >= 2:
                torch.nn.init.normal_(value, std=0.2)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def architecture(kind: str) -> str:
    """What a config calls it."""
    return "causal" if kind == "gpt2" else "seq2seq"

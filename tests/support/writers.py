"""Language models of a few thousand weights: a T5, a BART and a GPT-2 of bytes, and a BERT to make one of."""

from __future__ import annotations

from pathlib import Path

from tests.support import toy

KINDS = ("t5", "bart", "gpt2", "bert")


def write_generator(folder: Path, kind: str = "t5", *, seed: int = 0, words: bool = False) -> Path:
    """A pre-trained language model as one finds them: weights, config and tokenizer in a directory.

    With `words` it writes whole words of the toy collection now and then, which BM25 can find.
    """
    if kind == "bert":
        return toy.write_encoder(folder, "bert", seed=seed)
    import torch
    import transformers

    tokenizer = toy.bert_tokenizer() if words else toy.roberta_tokenizer()
    if words:
        tokenizer.bos_token, tokenizer.eos_token = "[CLS]", "[SEP]"
    ids = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    if kind == "t5":
        config = transformers.T5Config(
            d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, decoder_start_token_id=1, dropout_rate=0.0, **ids
        )
        auto = transformers.AutoModelForSeq2SeqLM
    elif kind == "bart":
        config = transformers.BartConfig(
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            decoder_start_token_id=2,
            max_position_embeddings=160,
            dropout=0.0,
            forced_eos_token_id=2,
            **ids,
        )
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

"""Keys that other training libraries use, and how to say the same in our configs."""

FOREIGN: dict[str, str] = {
    **dict.fromkeys(
        ("epochs", "num_epochs", "num_train_epochs", "max_epochs"),
        "Use `updates`, the number of optimizer steps: epochs times training queries, divided by `batch`.",
    ),
    **dict.fromkeys(
        ("max_steps", "train_steps", "total_steps", "steps"), "Use `updates`, the number of optimizer steps."
    ),
    **dict.fromkeys(
        ("per_device_train_batch_size", "per_gpu_train_batch_size", "train_batch_size", "batch_size"),
        "Use `batch`, the number of queries in one update over all devices together.",
    ),
    "gradient_accumulation_steps": "Use `accumulate`, the number of parts that a batch is split into.",
    **dict.fromkeys(("lr", "max_lr", "peak_lr"), "Use `learning_rate`."),
    **dict.fromkeys(
        ("warmup_ratio", "warmup_proportion"),
        "Use `warmup`, the share of the updates in which the learning rate rises.",
    ),
    **dict.fromkeys(
        ("warmup_steps", "num_warmup_steps"),
        "Use `warmup`, the share of the updates in which the learning rate rises: warm-up steps divided by `updates`.",
    ),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler", "scheduler"), "Use `schedule`: linear, constant or noam."),
    **dict.fromkeys(("optim", "optimizer_name"), "Use `optimizer`: adamw or adafactor."),
    **dict.fromkeys(("max_grad_norm", "gradient_clip_val"), "Use `clip`, the largest norm of the gradient."),
    **dict.fromkeys(("bf16", "fp16"), "Use `precision: bf16`. Training in fp16 is not available."),
    **dict.fromkeys(("logging_steps", "log_steps"), "Use `log_every`, a number of updates."),
    "random_seed": "Use `seeds`, a list with a number for each training.",
    **dict.fromkeys(
        ("train_group_size", "train_n_passages"),
        "Use `negatives`, the number of hard negatives: the group size less 1, without the relevant document.",
    ),
    **dict.fromkeys(("hard_negatives", "num_negatives", "num_hard_negatives"), "Use `negatives`."),
    **dict.fromkeys(
        ("temperature", "temp"), "It is an option of a loss: `losses: [{function: ..., options: {temperature: 0.05}}]`."
    ),
    "scale": (
        "It is 1 divided by the option `temperature` of a loss. For a scale of 20 write "
        "`losses: [{function: ..., options: {temperature: 0.05}}]`."
    ),
    **dict.fromkeys(
        ("loss", "loss_function"), "Use `losses`, a list: `losses: [{function: cross_entropy, over: batch}]`."
    ),
    "matryoshka_dims": "It is `dimensions` of a loss: `losses: [{function: ..., dimensions: [384, 192]}]`.",
    **dict.fromkeys(
        ("model_name_or_path", "model_name", "base_model", "pretrained_model_name_or_path"),
        "Use `model`: a folder, a name of the hub, or `package:NAME`.",
    ),
    **dict.fromkeys(("query_max_len", "q_max_len", "query_max_length"), "Use `query_tokens`."),
    **dict.fromkeys(
        ("passage_max_len", "p_max_len", "doc_max_len", "document_max_length", "max_seq_length", "max_length"),
        "Use `document_tokens`, or `pair_tokens` of a ranker.",
    ),
    **dict.fromkeys(("query_instruction_for_retrieval", "query_instruction", "query_prefix"), "Use `query_prompt`."),
    **dict.fromkeys(
        ("passage_instruction_for_retrieval", "passage_instruction", "passage_prefix", "document_prefix", "doc_prefix"),
        "Use `document_prompt`.",
    ),
    **dict.fromkeys(("pooling_method", "pooling_mode", "sentence_pooling_method"), "Use `pooling`."),
    **dict.fromkeys(
        ("normalize", "normlized", "normalize_embeddings", "score_function", "similarity_fn_name"),
        "Use `similarity`: cosine, or dot for vectors that are not normalised.",
    ),
    **dict.fromkeys(("untie_encoder", "tied", "shared_weights"), "Use `towers`: shared or separate."),
    **dict.fromkeys(("lora", "use_lora", "lora_config"), "Use `adapter: {rank: 16, alpha: 32}`."),
    "lora_r": "Use `adapter: {rank: ...}`.",
    "lora_alpha": "Use `adapter: {alpha: ...}`.",
    "lora_dropout": "Use `adapter: {dropout: ...}`.",
    **dict.fromkeys(
        ("gradient_checkpointing", "fsdp", "deepspeed"),
        "It belongs in the cluster profile (`--cluster FILE`): `train: {gradient_checkpointing: true, shard: true}`.",
    ),
    **dict.fromkeys(
        ("grad_cache", "gc_q_chunk_size", "gc_p_chunk_size", "mini_batch_size"),
        "It belongs in the cluster profile (`--cluster FILE`): `recompute: true`.",
    ),
    "top_k": "Use `k`, the number of documents retrieved for a query.",
}
"""Translations of keys of sentence-transformers, transformers, Tevatron and FlagEmbedding. They are said only
where no config in the file has a key of that name."""

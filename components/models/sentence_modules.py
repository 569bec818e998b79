"""Reader of sentence-transformers folders: it translates their modules into this project's configs.

Such a folder lists the modules that process a text: a Transformer, a Pooling, and optionally a Dense, a LayerNorm after
the Dense, and a Normalize. A Router has a list for each side. A module or setting that this project does not support is
refused by name, so that no model is misread.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, NoReturn

from sparring.components.config import UserError, listing
from sparring.components.data.tokenizers import MODEL_CONFIG, TOKEN_LIMITS
from sparring.components.models import attention, pretrained
from sparring.components.models.capabilities import longest
from sparring.components.models.configs import BASE, MODULES, CrossEncoderConfig, DualEncoderConfig, Pretrained
from sparring.components.models.maxsim import CODE, MODULE

WEIGHTS = "model.safetensors"
"""File with the weights of a Dense module."""

SIDES = ("query", "document")
_ORDER = ["Transformer", "Pooling", "Dense", "LayerNorm", "Normalize"]
_IDENTITY = "torch.nn.modules.linear.Identity"
_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of older folders, which have no `pooling_mode`, with the mode that each means."""
_TRANSFORMER_CONFIGS = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
_POOLINGS = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
"""Our names of pooling modes, by the names in sentence-transformers."""
_POOLING_OF_RANKERS = {"cls": "first", "mean": "mean", "last": "last"}
"""A ranker's names of the pooling before a linear layer, by a retriever's names."""
_NO_LIMIT = 10**6
"""Limit from which a tokenizer's maximum length means that it is unknown."""


class Found(NamedTuple):
    """The places of a model's parts in its folder, and the values of our config that the folder determines."""

    encoders: dict[str, str]
    """Folder of each tower's encoder, by `shared`, or by `query` and `document`."""
    projections: dict[str, str]
    """File with the weights of each projection or head, by the same names."""
    values: dict[str, Any]
    norms: dict[str, str] = {}
    """File with the weights of each projection's layer normalization, by the same names."""


class _Module(NamedTuple):
    kind: str
    path: str


def retriever(source: DualEncoderConfig) -> Found | None:
    """Read the retriever in a folder. Return None if the folder lists no modules, such as the folder of an encoder.

    Raise UserError for a part that `DualEncoder` does not support, and for a prompt that `source` does not state.
    """
    modules = _modules(source)
    if modules is None:
        return None
    settings = _about(source, "SentenceTransformer")
    prompted = _check_prompts(source, settings.get("prompts") or {})
    sides = {side: _side(source, chain) for side, chain in _chains(source, modules).items()}
    cut, named = settings.get("truncate_dim"), settings.get("similarity_fn_name")
    if cut is not None and named not in (None, "cosine") and any("Normalize" in parts for parts in sides.values()):
        _refuse(
            source,
            f"its vectors are cut to {cut} numbers (truncate_dim) after Normalize, and compared by {named}",
            "this only with cosine",
        )
    encoders = {side: parts["Transformer"].path for side, parts in sides.items()}
    if len(sides) > len(set(encoders.values())):
        _refuse(
            source,
            "queries and documents share a Transformer, but have different modules after it",
            "a single list of modules, or a Transformer for each side",
        )
    limits = {side: _limit(source, parts["Transformer"].path, "feature-extraction") for side, parts in sides.items()}
    dense = {side: parts["Dense"].path for side, parts in sides.items() if "Dense" in parts}
    norms = {side: parts["LayerNorm"].path for side, parts in sides.items() if "LayerNorm" in parts}
    if norms.keys() - dense.keys():
        _refuse(source, "it has a LayerNorm without a Dense before it", "both of them, or neither")
    dense_configs = {side: _dense(source, path, bias=True if side in norms else None) for side, path in dense.items()}
    widths = {side: config["out_features"] for side, config in dense_configs.items()}
    biases = [
        side not in norms and dense_configs[side].get("bias", True) if side in dense_configs else None for side in sides
    ]
    normed = _same(source, "LayerNorm", [side in norms for side in sides])
    shared = len(sides) > 1 and len(set(dense.values())) == 1 and len(dense) == len(sides)
    if shared:
        dense = {"shared": dense["query"]}
        norms = {"shared": norms["query"]} if norms else {}
    values = {
        "towers": "shared" if "shared" in sides else "separate",
        "pooling": _same(source, "Pooling", [_pooling(source, parts["Pooling"], prompted) for parts in sides.values()]),
        "similarity": _same(source, "Normalize", [_similarity(source, parts, settings) for parts in sides.values()]),
        "query_tokens": limits.get("query", limits.get("shared")),
        "document_tokens": limits.get("document", limits.get("shared")),
        "projection": _same(source, "Dense", [widths.get(side) for side in sides]),
        "projection_norm": normed,
        "projection_bias": _same(source, "Dense", biases),
        "share": ["projection"] if shared else [],
        "truncate": cut,
    }
    # Values that sentence-transformers has no place for. If we wrote the folder, they are in our config.
    saved = _json(source, MODEL_CONFIG) or {}
    if saved.get("kind") == source.kind:
        if values["towers"] == "shared" and values["document_tokens"] == saved["document_tokens"]:
            values["query_tokens"] = saved["query_tokens"]
        values["share"] += [part for part in saved["share"] if part == "embedder"]
    files = [{side: f"{path}/{WEIGHTS}" for side, path in paths.items()} for paths in (dense, norms)]
    return Found(encoders, files[0], values, files[1])


def ranker(source: CrossEncoderConfig) -> Found | None:
    """Read the ranker in a folder. Return None for an encoder or a retriever, whose encoder gets a new head.

    Raise UserError for a part that `CrossEncoder` does not support.
    """
    modules = _modules(source)
    if modules is None or (_json(source, _ABOUT) or {}).get("model_type") != "CrossEncoder":
        return None
    settings = _about(source, "CrossEncoder")
    if any((settings.get("prompts") or {}).values()):
        _refuse(source, "this ranker puts prompts before its texts", "rankers without prompts")
    if [module.kind for module in modules] == ["Transformer"]:
        labels = pretrained.huggingface_config(source).num_labels
        # a base's config does not describe the adapter's head
        if labels != 1 and source.label is None and _json(source, BASE) is None:
            _refuse(source, f"this ranker gives {labels} scores", "it with the `label` whose score counts")
        limit = _limit(source, modules[0].path, "sequence-classification")
        return Found({"shared": modules[0].path}, {}, {"pooling": "cls", "pair_tokens": limit})
    if [module.kind for module in modules] == ["Transformer", "LogitScore"]:
        return _token_ranker(source, *modules)
    if [module.kind for module in modules] == ["Transformer", "MaxSim"]:
        limit = _limit(source, modules[0].path, "feature-extraction")
        return Found({"shared": modules[0].path}, {}, {"pooling": "maxsim", "pair_tokens": limit})
    if [module.kind for module in modules] != ["Transformer", "Pooling", "Dense"]:
        _refuse(
            source,
            f"its modules are {listing(module.kind for module in modules)}",
            "a sequence classifier, or the modules Transformer, LogitScore, or Transformer, Pooling, Dense",
        )
    transformer, pooling, head = modules
    limit = _limit(source, transformer.path, "feature-extraction")
    pooled_by = _POOLING_OF_RANKERS[_pooling(source, pooling, prompted=False)]
    if (outputs := _dense(source, head.path, bias=True)["out_features"]) != 1:
        _refuse(source, f"{head.path} gives {outputs} scores", "rankers that give one score")
    values = {"pooling": pooled_by, "pair_tokens": limit, "template": _saved_template(source)}
    return Found({"shared": transformer.path}, {"shared": f"{head.path}/{WEIGHTS}"}, values)


def usual(source: DualEncoderConfig | CrossEncoderConfig) -> dict[str, Any]:
    """Return the lengths in tokens with which sentence-transformers loads a model, by the keys of our config. For an
    encoder alone, add its pooling and similarity.

    Raise UserError for a ranker that would need a new head.
    """
    content = retriever(source) if isinstance(source, DualEncoderConfig) else ranker(source)
    if content is None and isinstance(source, CrossEncoderConfig):
        _check_head(source)
    stored = {} if content is None else content.values
    alone = isinstance(source, DualEncoderConfig) and content is None
    lengths = {key: stored.get(key) or longest(source) for key in TOKEN_LIMITS if hasattr(source, key)}
    return {**lengths, **({"pooling": "mean", "similarity": "cosine"} if alone else {})}


def _check_head(source: CrossEncoderConfig) -> None:
    """Raise UserError if a folder that lists no modules has no head that scores pairs."""
    config = pretrained.huggingface_config(source)
    heads = getattr(config, "architectures", None) or []
    pooling = "last" if attention.is_decoder(config) else "cls"
    classifies = source.pooling in (pooling, None) and any(name.endswith("ForSequenceClassification") for name in heads)
    if not classifies and source.true_token is None and source.pooling != "maxsim":
        _refuse(
            source,
            "it is not a reranker, because it has no head that scores a pair",
            "a cross-encoder, or a causal language model with `true_token`",
        )


def _token_ranker(source: CrossEncoderConfig, transformer: _Module, score: _Module) -> Found:
    """Read a ranker made from a causal language model that scores by the logits of one or two tokens.

    Raise UserError if it reads pairs by a chat template and the config has no `template`, or if the config's tokens
    differ.
    """
    limit = _limit(source, transformer.path, "text-generation", has_template=source.template is not None)
    settings, tokenizer = (
        _json(source, f"{score.path}/config.json") or {},
        pretrained.tokenizer(source, transformer.path),
    )
    numbers = {key: settings.get(f"{key}_id") for key in ("true_token", "false_token")}
    named = {key: tokenizer.convert_ids_to_tokens(number) for key, number in numbers.items() if number is not None}
    for key, token in named.items():
        if getattr(source, key) not in (None, token):
            problem = f"the ranker's {key} is {token!r}, but the config has {getattr(source, key)!r}"
            _refuse(source, problem, f"{token!r}, or null")
    return Found(
        {"shared": transformer.path},
        {},
        {"pooling": "token", **named, "pair_tokens": limit, "template": _saved_template(source)},
    )


def _saved_template(source: CrossEncoderConfig) -> str | None:
    """Return the template of pairs of a ranker that we wrote. Its tokenizer contains the template."""
    saved = _json(source, MODEL_CONFIG) or {}
    return saved.get("template") if saved.get("kind") == source.kind else None


_ABOUT = "config_sentence_transformers.json"


def _refuse(source: Pretrained, problem: str, accepted: str) -> NoReturn:
    """Raise UserError with a problem of the model and the accepted values."""
    raise UserError(f"model: {source.model}: {problem}. Sparring accepts {accepted}.", code="unsupported-model")


def _json(source: Pretrained, name: str) -> Any:
    """Read a JSON file of the model. Return None if there is no such file."""
    path = pretrained.file_of(source, name)
    try:
        return None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"model: {source.model}: {name} is not valid JSON: {error}.") from None


def _about(source: Pretrained, wanted: str) -> dict[str, Any]:
    settings = _json(source, _ABOUT) or {}
    if (kind := settings.get("model_type", wanted)) != wanted:
        _refuse(source, f"the folder contains a {kind}", f"a {wanted}, or an encoder here")
    return settings


def _modules(source: Pretrained) -> list[_Module] | None:
    listed = _json(source, MODULES)
    return None if listed is None else [_module(source, entry["type"], entry["path"]) for entry in listed]


def _module(source: Pretrained, kind: str, path: str) -> _Module:
    code = pretrained.file_of(source, CODE.name) if kind == MODULE else None
    if code is not None and code.read_bytes() == CODE.read_bytes():
        return _Module(kind.rsplit(".", 1)[1], path)
    if not kind.startswith("sentence_transformers."):
        _refuse(
            source,
            f"the module {kind} is custom code",
            f"only these modules of sentence-transformers: {', '.join(_ORDER)}, Router",
        )
    return _Module(kind.rsplit(".", 1)[1], path)


def _chains(source: Pretrained, modules: list[_Module]) -> dict[str, list[_Module]]:
    """Return the modules that process the texts of each side, in order."""
    first, *after = modules
    if first.kind not in ("Router", "Asym"):
        return {"shared": modules}
    inside = f"{first.path}/" if first.path else ""
    router = _json(source, f"{inside}router_config.json") or _json(source, f"{inside}config.json") or {}
    routes = router.get("structure", {})
    if set(routes) != set(SIDES) or router.get("parameters", {}).get("route_mappings"):
        _refuse(
            source,
            f"its Router has the routes {listing(routes)}",
            "a Router with the routes query and document, without mappings",
        )
    kinds = {name: _module(source, kind, f"{inside}{name}") for name, kind in router["types"].items()}
    chains = {side: [*(kinds[name] for name in routes[side]), *after] for side in SIDES}
    return {"shared": chains["query"]} if chains["query"] == chains["document"] else chains


def _side(source: Pretrained, chain: list[_Module]) -> dict[str, _Module]:
    """Return a side's modules by kind. Raise UserError for unsupported modules, or for an unsupported order."""
    kinds = [module.kind for module in chain]
    if kinds[:2] != _ORDER[:2] or kinds != [kind for kind in _ORDER if kind in kinds]:
        _refuse(
            source,
            f"its modules are {listing(kinds)}",
            "Transformer and Pooling, followed by at most one Dense, LayerNorm and Normalize",
        )
    return dict(zip(kinds, chain, strict=True))


def _same(source: Pretrained, kind: str, values: list[Any]) -> Any:
    """Return the value that both sides share. Raise UserError if they differ."""
    if len(set(values)) > 1:
        _refuse(source, f"queries and documents differ in {kind}: {listing(values)}", "only equal values for both")
    return values[0]


_OUTPUTS = {
    "feature-extraction": "token_embeddings",
    "sequence-classification": "scores",
    "text-generation": "causal_logits",
}
"""Names of a Transformer's output in sentence-transformers, by task."""


def _limit(source: Pretrained, folder: str, task: str, *, has_template: bool = False) -> int | None:
    """Return the length in tokens at which a Transformer cuts a text. Return None if the folder does not say.

    With `has_template`, the config has a template, so a chat template in the folder is accepted.
    """
    inside = f"{folder}/" if folder else ""
    settings: dict[str, Any] = next(filter(None, (_json(source, inside + name) for name in _TRANSFORMER_CONFIGS)), {})
    modes = settings.get("modality_config", {"text": {}})
    if task == "text-generation" and "message" in modes and not has_template:
        _refuse(source, "this ranker reads pairs by a chat template", "it only with the same template in `template`")
    text = modes.get("text", {"method": f"none for texts, only for {listing(modes)}"})
    checks = {
        "transformer_task": (settings.get("transformer_task", "feature-extraction"), task),
        "modality_config.text.method": (text.get("method", "forward"), "forward"),
        "module_output_name": (settings.get("module_output_name", "token_embeddings"), _OUTPUTS[task]),
        "processing_kwargs": (settings.get("processing_kwargs") or None, None),
        "query_length": (settings.get("query_length"), None),
        "document_length": (settings.get("document_length"), None),
    }
    for key, (value, accepted) in checks.items():
        if value != accepted:
            _refuse(source, f"the Transformer has `{key}: {value}`", f"only `{key}: {accepted}`")
    tokenizer = pretrained.tokenizer(source, folder)
    if settings.get("do_lower_case") and tokenizer("The ÀÉ")["input_ids"] != tokenizer("the àé")["input_ids"]:
        _refuse(
            source,
            "the Transformer has `do_lower_case: true`, but its tokenizer keeps capitals",
            "this only with a tokenizer that converts to lower case itself",
        )
    if settings.get("max_seq_length") is not None:
        return int(settings["max_seq_length"])
    positions = getattr(pretrained.huggingface_config(source, folder), "max_position_embeddings", -1)
    limit = min(tokenizer.model_max_length, positions if positions != -1 else _NO_LIMIT)
    return int(limit) if limit < _NO_LIMIT else None


def _pooling(source: Pretrained, module: _Module, prompted: bool) -> str:
    """Return our name of a Pooling's mode."""
    settings = _json(source, f"{module.path}/config.json") or {}
    modes = (
        settings.get("pooling_mode") or [mode for key, mode in _POOLING_MODES.items() if settings.get(key)] or "mean"
    )
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        _refuse(source, f"{module.path} pools by {listing(modes)}", "one of cls, mean and lasttoken")
    if prompted and not settings.get("include_prompt", True):
        _refuse(source, f"{module.path} excludes the prompt from pooling", "a Pooling over all tokens, or no prompts")
    return _POOLINGS[modes[0]]


def _dense(source: Pretrained, path: str, *, bias: bool | None) -> dict[str, Any]:
    """Read the config of a Dense, which must be a plain linear layer with or without `bias`. None accepts both."""
    settings: dict[str, Any] = _json(source, f"{path}/config.json") or {}
    biased = settings.get("bias", True)
    checks = {
        "bias": (biased, biased if bias is None else bias),
        "activation_function": (settings.get("activation_function", "torch.nn.modules.activation.Tanh"), _IDENTITY),
        "module_input_name": (settings.get("module_input_name", "sentence_embedding"), "sentence_embedding"),
        "use_residual": (settings.get("use_residual", False), False),
    }
    for key, (value, accepted) in checks.items():
        if value != accepted:
            _refuse(source, f"{path} (Dense) has `{key}: {value}`", f"only `{key}: {accepted}`")
    if pretrained.file_of(source, f"{path}/{WEIGHTS}") is None:
        _refuse(source, f"{path} (Dense) has no {WEIGHTS}", "weights in safetensors format")
    return settings


def _similarity(source: DualEncoderConfig, parts: dict[str, _Module], settings: dict[str, Any]) -> str | None:
    """Return the comparison of a folder's vectors. Return None if only the config states it."""
    if "Normalize" in parts:
        return "cosine"
    named = settings.get("similarity_fn_name")
    if named in ("dot", "cosine"):
        return str(named)
    if source.similarity is None:
        raise UserError(
            f"similarity: the folder of {source.model} "
            f"{f'names the unsupported {named}' if named else 'does not say how vectors are compared'}. Set "
            "`similarity` to dot or cosine."
        )
    return None


def _check_prompts(source: DualEncoderConfig, prompts: dict[str, str | None]) -> bool:
    """Raise UserError if the folder has a prompt that the config lacks. Return True if the config has prompts."""
    names = {"query": ["query"], "document": ["document", "passage", "corpus"]}
    stated = {"query": source.query_prompt, "document": source.document_prompt}
    for side, keys in names.items():
        prompt = next(filter(None, (prompts.get(key) for key in keys)), "")
        if prompt and not stated[side]:
            key = f"{side}_prompt"
            raise UserError(
                f"{key}: {source.model} puts {prompt!r} before every {side}. Write `{key}: {prompt!r}`.",
                code="unstated-prompt",
            )
    return any(stated.values())

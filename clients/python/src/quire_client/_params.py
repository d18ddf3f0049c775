"""What goes in. None is "not said": the server's default holds."""
from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, Mapping, Optional, Sequence, Union

from ._pb import quire_pb2 as pb

#: {"role": "user", "content": "..."}
Message = Mapping[str, str]
#: Text as it is, or token ids.
Prompt = Union[str, Sequence[int]]

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "top_n_sigma",
             "repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size",
             "n", "seed", "best_of")
_STOPPING = ("max_tokens", "min_tokens", "ignore_eos", "include_stop_in_output")
_BEAM = ("beam_width", "num_return_sequences", "length_penalty")
_SCHEDULING = ("priority", "queue_timeout_ms", "total_timeout_ms")


@dataclasses.dataclass(frozen=True)
class Params:
    """Ranges and defaults: proto/quire/v1/quire.proto. What is not here can be set by `edit`."""

    max_tokens: Optional[int] = None
    min_tokens: Optional[int] = None
    temperature: Optional[float] = None
    top_p: Optional[float] = None
    top_k: Optional[int] = None
    min_p: Optional[float] = None
    typical_p: Optional[float] = None
    top_n_sigma: Optional[float] = None
    repetition_penalty: Optional[float] = None
    presence_penalty: Optional[float] = None
    frequency_penalty: Optional[float] = None
    no_repeat_ngram_size: Optional[int] = None
    seed: Optional[int] = None
    n: Optional[int] = None
    best_of: Optional[int] = None
    logit_bias: Optional[Mapping[int, float]] = None
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[Sequence[int]] = ()
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: Optional[bool] = None
    include_stop_in_output: Optional[bool] = None
    # Beam search instead of sampling.
    beam_width: Optional[int] = None
    num_return_sequences: Optional[int] = None
    length_penalty: Optional[float] = None
    # What the output must look like: at most one of these.
    json_schema: Union[str, Mapping[str, Any], None] = None
    json_object: bool = False
    regex: Optional[str] = None
    grammar: Optional[str] = None
    choice: Sequence[str] = ()
    # What comes back besides text.
    token_ids: bool = False
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    skip_special_tokens: Optional[bool] = None
    # Who asks, and how urgent it is.
    priority: Optional[int] = None
    tenant: str = ""
    queue_timeout_ms: Optional[int] = None
    total_timeout_ms: Optional[int] = None
    # The cache.
    cache_salt: str = ""
    bypass_prefix_cache: Optional[bool] = None
    #: One of none, ngram, suffix, draft.
    speculation: Optional[str] = None
    request_id: str = ""
    model: str = ""
    add_special_tokens: Optional[bool] = None
    #: So many tokens of the prompt are kept; -1: as many as the model takes.
    truncate_prompt_tokens: Optional[int] = None
    #: left (the default: the end is kept) or right.
    truncation_side: Optional[str] = None
    #: Fields of a quire.v1.GenerateRequest that are merged in last.
    edit: Optional[pb.GenerateRequest] = None


def _set(message: Any, params: Params, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(params, name)
        if value is not None:
            setattr(message, name, value)


def _set_guide(guided: pb.GuidedDecoding, params: Params) -> None:
    given = [name for name in ("json_schema", "json_object", "regex", "grammar", "choice")
             if getattr(params, name)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are both given; choose one")
    if params.json_schema:
        guided.json_schema = (params.json_schema if isinstance(params.json_schema, str)
                              else json.dumps(params.json_schema))
    if params.json_object:
        guided.json_object = True
    if params.regex:
        guided.regex = params.regex
    if params.grammar:
        guided.grammar = params.grammar
    if params.choice:
        guided.choice.texts.extend(params.choice)


def chat_input(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]],
               template_kwargs: Optional[Mapping[str, Any]]) -> pb.ChatInput:
    for message in messages:
        unknown = set(message) - {"role", "content"}
        if unknown:
            raise ValueError(f"message has {', '.join(sorted(unknown))}; known are role and content")
    return pb.ChatInput(
        messages=[pb.ChatMessage(role=m["role"], content=m["content"]) for m in messages],
        tools_json=json.dumps(list(tools)) if tools else "",
        template_kwargs_json=json.dumps(dict(template_kwargs)) if template_kwargs else "")


def make_request(params: Optional[Params], *, prompt: Optional[Prompt] = None,
                 chat: Optional[pb.ChatInput] = None) -> pb.GenerateRequest:
    p = params if params is not None else Params()
    request = pb.GenerateRequest(request_id=p.request_id, model=p.model)
    if chat is not None:
        request.chat.CopyFrom(chat)
    elif isinstance(prompt, str):
        request.text = prompt
    elif prompt is not None:
        request.token_ids.ids.extend(prompt)
    _set(request.sampling, p, _SAMPLING)
    _set(request.stopping, p, _STOPPING)
    _set(request.scheduling, p, _SCHEDULING)
    if any(getattr(p, name) is not None for name in _BEAM):
        _set(request.beam, p, _BEAM)
    bias: Dict[int, float] = dict(p.logit_bias or {})
    for token, value in bias.items():
        request.sampling.logit_bias[token] = value
    request.sampling.allowed_token_ids.extend(p.allowed_token_ids)
    for word in p.bad_words:
        request.sampling.bad_words.add().ids.extend(word)
    if isinstance(p.stop, str):
        raise ValueError("stop is a list of texts, not a text")
    request.stopping.stop.extend(p.stop)
    request.stopping.stop_token_ids.extend(p.stop_token_ids)
    if p.json_schema or p.json_object or p.regex or p.grammar or p.choice:
        _set_guide(request.guided, p)
    request.response.token_ids = p.token_ids
    if p.logprobs is not None:
        request.response.num_logprobs = p.logprobs
    if p.prompt_logprobs is not None:
        request.response.prompt_logprobs = p.prompt_logprobs
    if p.skip_special_tokens is not None:
        request.response.skip_special_tokens = p.skip_special_tokens
    request.scheduling.tenant = p.tenant
    request.kv.cache_salt = p.cache_salt
    if p.bypass_prefix_cache is not None:
        request.kv.bypass_prefix_cache = p.bypass_prefix_cache
    if p.speculation is not None:
        name = f"SPECULATION_METHOD_{p.speculation.upper()}"
        if name not in pb.SpeculationMethod.keys():
            raise ValueError(f"speculation={p.speculation} is none of none, ngram, suffix, draft")
        request.spec.method = getattr(pb, name)
    if p.add_special_tokens is not None:
        request.add_special_tokens = p.add_special_tokens
    if p.truncate_prompt_tokens is not None:
        request.truncate_prompt_tokens = p.truncate_prompt_tokens
    if p.truncation_side is not None:
        name = f"TRUNCATION_SIDE_{p.truncation_side.upper()}"
        if name not in pb.TruncationSide.keys():
            raise ValueError(f"truncation_side={p.truncation_side} is neither left nor right")
        request.truncation_side = getattr(pb, name)
    if p.edit is not None:
        request.MergeFrom(p.edit)
    return request


def tokenize_request(text: str, add_special_tokens: Optional[bool]) -> pb.TokenizeRequest:
    request = pb.TokenizeRequest(text=text)
    if add_special_tokens is not None:
        request.add_special_tokens = add_special_tokens
    return request


def detokenize_request(token_ids: Sequence[int],
                       skip_special_tokens: Optional[bool]) -> pb.DetokenizeRequest:
    request = pb.DetokenizeRequest(token_ids=token_ids)
    if skip_special_tokens is not None:
        request.skip_special_tokens = skip_special_tokens
    return request

"""What comes back."""
from __future__ import annotations

import dataclasses
import enum
from typing import Optional, Tuple


class FinishReason(enum.Enum):
    STOP = "stop"  # end token, stop token or stop string
    LENGTH = "length"  # max_tokens
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


@dataclasses.dataclass(frozen=True)
class Logprob:
    token_id: int
    logprob: float


@dataclasses.dataclass(frozen=True)
class TokenLogprobs:
    """Of one token. `rank` is 1 for the likeliest, 0 if it is not known."""

    token_id: int
    logprob: float
    rank: int
    top: Tuple[Logprob, ...]
    asked: Tuple[Logprob, ...]


@dataclasses.dataclass(frozen=True)
class Delta:
    """What is new in one output. Texts of one output, joined, are its text."""

    output_index: int
    text: str
    token_ids: Tuple[int, ...]
    logprobs: Tuple[TokenLogprobs, ...]


@dataclasses.dataclass(frozen=True)
class Output:
    index: int
    text: str
    token_ids: Tuple[int, ...]  # empty unless Params.token_ids
    logprobs: Tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    stop_token_id: Optional[int]
    stop_string: Optional[str]
    completion_tokens: int
    score: Optional[float]  # of beams and best_of


@dataclasses.dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    preemptions: int
    draft_tokens: int
    accepted_draft_tokens: int


@dataclasses.dataclass(frozen=True)
class Timings:
    queue_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float


@dataclasses.dataclass(frozen=True)
class Answer:
    request_id: str
    outputs: Tuple[Output, ...]
    prompt_logprobs: Tuple[TokenLogprobs, ...]  # from the second token on
    usage: Usage
    timings: Timings

    @property
    def text(self) -> str:
        """Of the first output."""
        return self.outputs[0].text

"""From messages to what this package returns; an answer put together from a stream."""
from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Tuple

import grpc

from ._errors import IncompleteAnswerError
from ._pb import quire_pb2 as pb
from ._types import Answer, Delta, FinishReason, Logprob, Output, Timings, TokenLogprobs, Usage

_REASONS = {
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    pb.FINISH_REASON_DEADLINE: FinishReason.DEADLINE,
}


def _pairs(entries: Iterable[pb.TokenLogprob]) -> Tuple[Logprob, ...]:
    return tuple(Logprob(e.token_id, e.logprob) for e in entries)


def logprobs(entries: Iterable[pb.Logprobs]) -> Tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(e.token_id, e.logprob, e.rank, _pairs(e.top), _pairs(e.asked))
                 for e in entries)


def delta(d: pb.Delta) -> Delta:
    return Delta(d.output_index, d.text, tuple(d.token_ids), logprobs(d.logprobs))


def _output(text: str, token_ids: Iterable[int], probs: Tuple[TokenLogprobs, ...],
            finished: pb.Finished) -> Output:
    stop = finished.WhichOneof("stop")
    return Output(
        index=finished.output_index, text=text, token_ids=tuple(token_ids), logprobs=probs,
        finish_reason=_REASONS[finished.reason],
        stop_token_id=finished.stop_token_id if stop == "stop_token_id" else None,
        stop_string=finished.stop_string if stop == "stop_string" else None,
        completion_tokens=finished.completion_tokens,
        score=finished.score if finished.HasField("score") else None)


def _usage(u: pb.Usage) -> Usage:
    return Usage(u.prompt_tokens, u.completion_tokens, u.cached_tokens, u.preemptions,
                 u.draft_tokens, u.accepted_draft_tokens)


def _timings(t: pb.Timings) -> Timings:
    return Timings(t.queue_ms, t.prefill_ms, t.first_token_ms, t.decode_ms)


def answer(result: pb.GenerateResult) -> Answer:
    return Answer(
        request_id=result.request_id,
        outputs=tuple(_output(o.text, o.token_ids, logprobs(o.logprobs), o.finished)
                      for o in result.outputs),
        prompt_logprobs=logprobs(result.prompt_logprobs),
        usage=_usage(result.usage), timings=_timings(result.timings))


class Collector:
    """The answer that a stream's events add up to."""

    def __init__(self) -> None:
        self.request_id = ""
        self._deltas: Dict[int, List[Delta]] = {}
        self._finished: Dict[int, pb.Finished] = {}
        self._prompt: List[TokenLogprobs] = []
        self._last: Optional[pb.GenerateEvent] = None

    def take(self, event: pb.GenerateEvent) -> Optional[Delta]:
        self.request_id = event.request_id
        kind = event.WhichOneof("event")
        if event.HasField("usage"):
            self._last = event
        if kind == "prompt_logprobs":
            self._prompt.extend(logprobs(event.prompt_logprobs.logprobs))
        elif kind == "finished":
            self._finished[event.finished.output_index] = event.finished
        elif kind == "delta":
            new = delta(event.delta)
            self._deltas.setdefault(new.output_index, []).append(new)
            return new
        return None

    def answer(self) -> Answer:
        """Raises IncompleteAnswerError: a cut answer is never taken for a whole one."""
        if self._last is None or not self._finished or set(self._deltas) - set(self._finished):
            raise IncompleteAnswerError(grpc.StatusCode.UNKNOWN,
                                        "the stream ended before all outputs had ended")
        outputs = []
        for index in sorted(self._finished):
            deltas = self._deltas.get(index, [])
            outputs.append(_output(
                "".join(d.text for d in deltas), [t for d in deltas for t in d.token_ids],
                tuple(entry for d in deltas for entry in d.logprobs), self._finished[index]))
        return Answer(self.request_id, tuple(outputs), tuple(self._prompt),
                      _usage(self._last.usage), _timings(self._last.timings))

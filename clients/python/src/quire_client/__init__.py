"""Client of Quire over gRPC: text, messages or tokens in, an answer or a stream of it out.

    from quire_client import Client, Params

    with Client("localhost:50051") as client:
        print(client.generate("Once upon a time", Params(max_tokens=20)).text)
        for delta in client.stream_chat([{"role": "user", "content": "Hello"}]):
            print(delta.text, end="", flush=True)

AsyncClient has the same methods as coroutines. Every error is a QuireError.
"""
from ._admin import Admin, AsyncAdmin
from ._aio import AsyncClient, AsyncStream
from ._client import Client, Stream
from ._connection import Tls
from ._errors import (CancelledError, DeadlineExceededError, FailedPreconditionError,
                      IncompleteAnswerError, InternalError, InvalidArgumentError, NotFoundError,
                      PermissionDeniedError, QuireError, ResourceExhaustedError,
                      UnauthenticatedError, UnavailableError, UnimplementedError)
from ._params import Message, Params, Prompt
from ._types import Answer, Delta, FinishReason, Logprob, Output, Timings, TokenLogprobs, Usage

__all__ = [
    "Admin", "Answer", "AsyncAdmin", "AsyncClient", "AsyncStream", "CancelledError", "Client",
    "DeadlineExceededError", "Delta", "FailedPreconditionError", "FinishReason",
    "IncompleteAnswerError", "InternalError", "InvalidArgumentError", "Logprob", "Message",
    "NotFoundError", "Output", "Params", "PermissionDeniedError", "Prompt", "QuireError",
    "ResourceExhaustedError", "Stream", "Timings", "Tls", "TokenLogprobs", "UnauthenticatedError",
    "UnavailableError", "UnimplementedError", "Usage",
]

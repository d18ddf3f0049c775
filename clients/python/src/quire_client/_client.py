"""The client whose calls block."""
from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar
from typing import Union

import grpc

from . import _connection, _convert
from ._admin import Admin
from ._errors import from_rpc_error
from ._params import (Message, Params, Prompt, chat_input, detokenize_request, make_request,
                      tokenize_request)
from ._pb import quire_pb2 as pb
from ._pb import quire_pb2_grpc as rpc
from ._types import Answer, Delta

_Response = TypeVar("_Response")


class Stream:
    """Iterates over the deltas of an answer. Left early, by an exception or `break` from a `with`
    block or by cancel(), it ends the server's work, too."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._collector = _convert.Collector()
        self._answer: Optional[Answer] = None

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        try:
            for event in self._call:
                delta = self._collector.take(event)
                if delta is not None:
                    return delta
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        if self._answer is None:
            self._answer = self._collector.answer()
        raise StopIteration

    @property
    def request_id(self) -> str:
        """Empty until the first delta has come, unless Params gave it."""
        return self._collector.request_id

    def answer(self) -> Answer:
        """Reads what is left; the same as Client.generate would have returned."""
        for _ in self:
            pass
        assert self._answer is not None
        return self._answer

    def cancel(self) -> None:
        self._call.cancel()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()  # nothing happens if it has ended

    def __del__(self) -> None:
        self.cancel()


class Client:
    """A connection to one server; threads may share it. `timeout`, in seconds, is of each call that
    does not give its own; None: no limit. `api_key` is sent as a bearer token: use it with `tls`.
    `admin_address` is where `admin` is, if not here: a port or socket of its own."""

    def __init__(self, address: str = "localhost:50051", *, api_key: Optional[str] = None,
                 tls: Union[bool, _connection.Tls, None] = None, timeout: Optional[float] = None,
                 admin_address: Optional[str] = None,
                 options: Sequence[Tuple[str, Union[int, str]]] = ()) -> None:
        self._metadata = _connection.metadata(api_key)
        self._channel = _connection.channel(address, tls, options)
        self._timeout = timeout
        self._generation = rpc.GenerationStub(self._channel)
        self._admin_channel = self._channel
        if admin_address is not None:
            unix = admin_address.startswith("unix:")  # of this machine: nothing to encrypt
            self._admin_channel = _connection.channel(admin_address, None if unix else tls, options)
        self.admin = Admin(self._admin_channel, self._metadata, timeout)

    def _call(self, method: Callable[..., _Response], request: Any,
              timeout: Optional[float]) -> _Response:
        try:
            return method(request, timeout=self._timeout if timeout is None else timeout,
                          metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    def generate(self, prompt: Prompt, params: Optional[Params] = None, *,
                 timeout: Optional[float] = None) -> Answer:
        """Continues a text, as it is, or tokens."""
        return _convert.answer(self._call(self._generation.GenerateUnary,
                                          make_request(params, prompt=prompt), timeout))

    def stream(self, prompt: Prompt, params: Optional[Params] = None, *,
               timeout: Optional[float] = None) -> Stream:
        return Stream(self._call(self._generation.Generate, make_request(params, prompt=prompt),
                                 timeout))

    def chat(self, messages: Sequence[Message], params: Optional[Params] = None, *,
             tools: Sequence[Mapping[str, Any]] = (),
             template_kwargs: Optional[Mapping[str, Any]] = None,
             timeout: Optional[float] = None) -> Answer:
        """Answers a conversation, which the model's chat template renders."""
        request = make_request(params, chat=chat_input(messages, tools, template_kwargs))
        return _convert.answer(self._call(self._generation.GenerateUnary, request, timeout))

    def stream_chat(self, messages: Sequence[Message], params: Optional[Params] = None, *,
                    tools: Sequence[Mapping[str, Any]] = (),
                    template_kwargs: Optional[Mapping[str, Any]] = None,
                    timeout: Optional[float] = None) -> Stream:
        request = make_request(params, chat=chat_input(messages, tools, template_kwargs))
        return Stream(self._call(self._generation.Generate, request, timeout))

    def tokenize(self, text: str, *, add_special_tokens: Optional[bool] = None,
                 timeout: Optional[float] = None) -> List[int]:
        request = tokenize_request(text, add_special_tokens)
        return list(self._call(self._generation.Tokenize, request, timeout).token_ids)

    def tokenize_chat(self, messages: Sequence[Message], *,
                      tools: Sequence[Mapping[str, Any]] = (),
                      template_kwargs: Optional[Mapping[str, Any]] = None,
                      timeout: Optional[float] = None) -> Tuple[List[int], str]:
        """The tokens of a conversation, and the text that the template made of it."""
        request = pb.TokenizeRequest(chat=chat_input(messages, tools, template_kwargs))
        response = self._call(self._generation.Tokenize, request, timeout)
        return list(response.token_ids), response.rendered_text

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: Optional[bool] = None,
                   timeout: Optional[float] = None) -> str:
        request = detokenize_request(token_ids, skip_special_tokens)
        return self._call(self._generation.Detokenize, request, timeout).text

    def abort(self, *request_ids: str, timeout: Optional[float] = None) -> List[str]:
        """Ends requests, whoever started them; returns those that were in flight."""
        response = self._call(self._generation.Abort, pb.AbortRequest(request_ids=request_ids),
                              timeout)
        return list(response.aborted_request_ids)

    def abort_all(self, *, timeout: Optional[float] = None) -> List[str]:
        response = self._call(self._generation.Abort, pb.AbortRequest(all=True), timeout)
        return list(response.aborted_request_ids)

    def close(self) -> None:
        self._admin_channel.close()
        self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

"""The client whose calls are coroutines."""
from __future__ import annotations

from types import TracebackType
from typing import (Any, AsyncIterator, Callable, List, Mapping, Optional, Sequence, Tuple, Type,
                    Union)

import grpc
import grpc.aio

from . import _connection, _convert
from ._admin import AsyncAdmin
from ._errors import from_rpc_error
from ._params import (Message, Params, Prompt, chat_input, detokenize_request, make_request,
                      tokenize_request)
from ._pb import quire_pb2 as pb
from ._pb import quire_pb2_grpc as rpc
from ._types import Answer, Delta


class AsyncStream:
    """Iterates over the deltas of an answer. Left early, by an exception or `break` from an
    `async with` block or by cancel(), it ends the server's work, too."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._events = call.__aiter__()
        self._collector = _convert.Collector()
        self._answer: Optional[Answer] = None

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        try:
            async for event in self._events:
                delta = self._collector.take(event)
                if delta is not None:
                    return delta
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        if self._answer is None:
            self._answer = self._collector.answer()
        raise StopAsyncIteration

    @property
    def request_id(self) -> str:
        """Empty until the first delta has come."""
        return self._collector.request_id

    async def answer(self) -> Answer:
        """Reads what is left; the same as AsyncClient.generate would have returned."""
        async for _ in self:
            pass
        assert self._answer is not None
        return self._answer

    def cancel(self) -> None:
        self._call.cancel()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()  # nothing happens if it has ended


class AsyncClient:
    """As Client, for one event loop. Cancelling a task ends the call that it waits for."""

    def __init__(self, address: str = "localhost:50051", *, api_key: Optional[str] = None,
                 tls: Union[bool, _connection.Tls, None] = None, timeout: Optional[float] = None,
                 admin_address: Optional[str] = None,
                 options: Sequence[Tuple[str, Union[int, str]]] = ()) -> None:
        self._metadata = _connection.metadata(api_key)
        self._channel = _connection.aio_channel(address, tls, options)
        self._timeout = timeout
        self._generation = rpc.GenerationStub(self._channel)
        self._admin_channel = self._channel
        if admin_address is not None:
            unix = admin_address.startswith("unix:")  # of this machine: nothing to encrypt
            self._admin_channel = _connection.aio_channel(admin_address, None if unix else tls, options)
        self.admin = AsyncAdmin(self._admin_channel, self._metadata, timeout)

    def _start(self, method: Callable[..., Any], request: Any, timeout: Optional[float]) -> Any:
        return method(request, timeout=self._timeout if timeout is None else timeout,
                      metadata=self._metadata)

    async def _call(self, method: Callable[..., Any], request: Any,
                    timeout: Optional[float]) -> Any:
        try:
            return await self._start(method, request, timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    async def generate(self, prompt: Prompt, params: Optional[Params] = None, *,
                       timeout: Optional[float] = None) -> Answer:
        """Continues a text, as it is, or tokens."""
        return _convert.answer(await self._call(self._generation.GenerateUnary,
                                                make_request(params, prompt=prompt), timeout))

    def stream(self, prompt: Prompt, params: Optional[Params] = None, *,
               timeout: Optional[float] = None) -> AsyncStream:
        return AsyncStream(self._start(self._generation.Generate,
                                       make_request(params, prompt=prompt), timeout))

    async def chat(self, messages: Sequence[Message], params: Optional[Params] = None, *,
                   tools: Sequence[Mapping[str, Any]] = (),
                   template_kwargs: Optional[Mapping[str, Any]] = None,
                   timeout: Optional[float] = None) -> Answer:
        """Answers a conversation, which the model's chat template renders."""
        request = make_request(params, chat=chat_input(messages, tools, template_kwargs))
        return _convert.answer(await self._call(self._generation.GenerateUnary, request, timeout))

    def stream_chat(self, messages: Sequence[Message], params: Optional[Params] = None, *,
                    tools: Sequence[Mapping[str, Any]] = (),
                    template_kwargs: Optional[Mapping[str, Any]] = None,
                    timeout: Optional[float] = None) -> AsyncStream:
        request = make_request(params, chat=chat_input(messages, tools, template_kwargs))
        return AsyncStream(self._start(self._generation.Generate, request, timeout))

    async def tokenize(self, text: str, *, add_special_tokens: Optional[bool] = None,
                       timeout: Optional[float] = None) -> List[int]:
        request = tokenize_request(text, add_special_tokens)
        return list((await self._call(self._generation.Tokenize, request, timeout)).token_ids)

    async def tokenize_chat(self, messages: Sequence[Message], *,
                            tools: Sequence[Mapping[str, Any]] = (),
                            template_kwargs: Optional[Mapping[str, Any]] = None,
                            timeout: Optional[float] = None) -> Tuple[List[int], str]:
        """The tokens of a conversation, and the text that the template made of it."""
        request = pb.TokenizeRequest(chat=chat_input(messages, tools, template_kwargs))
        response = await self._call(self._generation.Tokenize, request, timeout)
        return list(response.token_ids), str(response.rendered_text)

    async def detokenize(self, token_ids: Sequence[int], *,
                         skip_special_tokens: Optional[bool] = None,
                         timeout: Optional[float] = None) -> str:
        request = detokenize_request(token_ids, skip_special_tokens)
        return str((await self._call(self._generation.Detokenize, request, timeout)).text)

    async def abort(self, *request_ids: str, timeout: Optional[float] = None) -> List[str]:
        """Ends requests, whoever started them; returns those that were in flight."""
        response = await self._call(self._generation.Abort,
                                    pb.AbortRequest(request_ids=request_ids), timeout)
        return list(response.aborted_request_ids)

    async def abort_all(self, *, timeout: Optional[float] = None) -> List[str]:
        response = await self._call(self._generation.Abort, pb.AbortRequest(all=True), timeout)
        return list(response.aborted_request_ids)

    async def close(self) -> None:
        await self._admin_channel.close()
        await self._channel.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        await self.close()

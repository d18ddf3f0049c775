"""For operators: what the server is and holds. Answers are the messages of quire/v1/quire.proto.

`rpc` has all calls of quire.v1.Admin, these and the others, for those who need more.
"""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import grpc
import grpc.aio

from ._connection import Metadata
from ._errors import from_rpc_error
from ._pb import quire_pb2 as pb
from ._pb import quire_pb2_grpc as rpc


def _flush_request(cache_salt: Optional[str]) -> pb.FlushPrefixCacheRequest:
    if cache_salt is None:
        return pb.FlushPrefixCacheRequest(all=True)
    return pb.FlushPrefixCacheRequest(cache_salt=cache_salt)


class Admin:
    def __init__(self, channel: grpc.Channel, metadata: Metadata,
                 timeout: Optional[float]) -> None:
        self.rpc = rpc.AdminStub(channel)
        self._metadata = metadata
        self._timeout = timeout

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    def server_info(self) -> pb.ServerInfo:
        return self._call(self.rpc.GetServerInfo, pb.GetServerInfoRequest())

    def model_info(self) -> pb.ModelInfo:
        return self._call(self.rpc.GetModelInfo, pb.GetModelInfoRequest())

    def block_stats(self) -> pb.BlockStats:
        return self._call(self.rpc.GetBlockStats, pb.GetBlockStatsRequest())

    def memory_profile(self) -> pb.MemoryProfile:
        return self._call(self.rpc.GetMemoryProfile, pb.GetMemoryProfileRequest())

    def config(self) -> pb.Config:
        return self._call(self.rpc.GetConfig, pb.GetConfigRequest())

    def requests(self, request_id: str = "") -> List[pb.RequestInfo]:
        """Those in flight."""
        try:
            batches = self._call(self.rpc.InspectRequests,
                                 pb.InspectRequestsRequest(request_id=request_id))
            return [r for batch in batches for r in batch.requests]
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    def flush_prefix_cache(self, cache_salt: Optional[str] = None) -> pb.FlushPrefixCacheResponse:
        """Of one salt ("" is a salt, too), or all of it."""
        return self._call(self.rpc.FlushPrefixCache, _flush_request(cache_salt))

    def pin(self, token_ids: Sequence[int], *, cache_salt: str = "",
            ttl_ms: Optional[int] = None) -> pb.Pin:
        """Keeps what is cached of a prompt."""
        return self._call(self.rpc.PinPrefix, pb.PinPrefixRequest(
            token_ids=pb.TokenIds(ids=token_ids), cache_salt=cache_salt, ttl_ms=ttl_ms))

    def unpin(self, pin_id: int) -> None:
        self._call(self.rpc.UnpinPrefix, pb.UnpinPrefixRequest(pin_id=pin_id))


class AsyncAdmin:
    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata,
                 timeout: Optional[float]) -> None:
        self.rpc = rpc.AdminStub(channel)
        self._metadata = metadata
        self._timeout = timeout

    async def _call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return await method(request, timeout=self._timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    async def server_info(self) -> pb.ServerInfo:
        return await self._call(self.rpc.GetServerInfo, pb.GetServerInfoRequest())

    async def model_info(self) -> pb.ModelInfo:
        return await self._call(self.rpc.GetModelInfo, pb.GetModelInfoRequest())

    async def block_stats(self) -> pb.BlockStats:
        return await self._call(self.rpc.GetBlockStats, pb.GetBlockStatsRequest())

    async def memory_profile(self) -> pb.MemoryProfile:
        return await self._call(self.rpc.GetMemoryProfile, pb.GetMemoryProfileRequest())

    async def config(self) -> pb.Config:
        return await self._call(self.rpc.GetConfig, pb.GetConfigRequest())

    async def requests(self, request_id: str = "") -> List[pb.RequestInfo]:
        """Those in flight."""
        call = self.rpc.InspectRequests(pb.InspectRequestsRequest(request_id=request_id),
                                        timeout=self._timeout, metadata=self._metadata)
        try:
            return [r async for batch in call for r in batch.requests]
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    async def flush_prefix_cache(self,
                                 cache_salt: Optional[str] = None) -> pb.FlushPrefixCacheResponse:
        """Of one salt ("" is a salt, too), or all of it."""
        return await self._call(self.rpc.FlushPrefixCache, _flush_request(cache_salt))

    async def pin(self, token_ids: Sequence[int], *, cache_salt: str = "",
                  ttl_ms: Optional[int] = None) -> pb.Pin:
        """Keeps what is cached of a prompt."""
        return await self._call(self.rpc.PinPrefix, pb.PinPrefixRequest(
            token_ids=pb.TokenIds(ids=token_ids), cache_salt=cache_salt, ttl_ms=ttl_ms))

    async def unpin(self, pin_id: int) -> None:
        await self._call(self.rpc.UnpinPrefix, pb.UnpinPrefixRequest(pin_id=pin_id))

"""What can go wrong, by gRPC status."""
from __future__ import annotations

from typing import Dict, Optional, Type

import grpc


class QuireError(Exception):
    """A call failed. `message` names the field, its value and a remedy where there is one."""

    def __init__(self, code: grpc.StatusCode, message: str,
                 retry_after_s: Optional[float] = None) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        #: Seconds that the server asks to wait before another try, if it says so.
        self.retry_after_s = retry_after_s

    @property
    def retryable(self) -> bool:
        """The same call may succeed later, or at another server."""
        return isinstance(self, (UnavailableError, ResourceExhaustedError))


class InvalidArgumentError(QuireError):
    """A field is out of range, or the prompt is too long."""


class NotFoundError(QuireError):
    """The model is not the served one, or there is no such pin."""


class UnauthenticatedError(QuireError):
    """The API key is missing or unknown."""


class PermissionDeniedError(QuireError):
    """The API key does not allow it."""


class ResourceExhaustedError(QuireError):
    """The queue is full, a rate is exceeded, or a message is too large."""


class UnavailableError(QuireError):
    """No server there, or it is starting or draining."""


class DeadlineExceededError(QuireError):
    """`timeout`, or a timeout of Params, has passed."""


class CancelledError(QuireError):
    """By Stream.cancel, or by abort."""


class FailedPreconditionError(QuireError):
    """An option of the server that this needs is not set."""


class UnimplementedError(QuireError):
    """The server does not have this call, or not with this model."""


class InternalError(QuireError):
    """The server's fault."""


class IncompleteAnswerError(QuireError):
    """The stream ended without an error and without an end of each output."""


_BY_CODE: Dict[grpc.StatusCode, Type[QuireError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
    grpc.StatusCode.INTERNAL: InternalError,
}


def from_rpc_error(error: grpc.RpcError) -> QuireError:
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    message = (error.details() if hasattr(error, "details") else None) or str(error)
    retry_after: Optional[float] = None
    trailers = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in trailers or ():
        if key == "grpc-retry-pushback-ms":
            try:
                retry_after = max(0.0, int(value) / 1e3)
            except ValueError:
                pass
    return _BY_CODE.get(code, QuireError)(code, message, retry_after)

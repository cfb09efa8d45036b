"""Exceptions. Decide by `code` and `reason`; `message` is for people and may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from pageferry.error.v1 import error_pb2

_DETAILS_KEY = "grpc-status-details-bin"
_REASON_PREFIX = "ERROR_REASON_"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class PageferryError(Exception):
    """Something was refused or failed.

    `code` is the canonical gRPC code; `reason` the name of an `ErrorReason` without its prefix,
    such as "SHAPE_MISMATCH" ("UNSPECIFIED" where none was given, "UNKNOWN_<n>" for one that is
    newer than this library); `metadata` holds the variable parts of the message.
    """

    default_code = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "UNSPECIFIED",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Keeps the four parts; `code` is the class's own unless given."""
        self.code = code or self.default_code
        self.reason = reason
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})
        super().__init__(message)

    def __str__(self) -> str:
        """Gives "CODE (REASON): message {metadata}"."""
        reason = "" if self.reason == "UNSPECIFIED" else f" ({self.reason})"
        metadata = f" {self.metadata}" if self.metadata else ""
        return f"{self.code.name}{reason}: {self.message}{metadata}"


class Cancelled(PageferryError):
    """The call was cancelled."""

    default_code = grpc.StatusCode.CANCELLED


class InvalidArgument(PageferryError, ValueError):
    """The request is wrong by itself; also raised by the checks of this library."""

    default_code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceeded(PageferryError, TimeoutError):
    """A call's deadline passed, or a wait of this library timed out."""

    default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFound(PageferryError):
    """There is no such thing."""

    default_code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(PageferryError):
    """There is one already."""

    default_code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDenied(PageferryError):
    """The identity may not do this."""

    default_code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(PageferryError):
    """No acceptable identity was presented."""

    default_code = grpc.StatusCode.UNAUTHENTICATED


class ResourceExhausted(PageferryError):
    """A limit was reached, or memory does not suffice."""

    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(PageferryError):
    """The state of things forbids it; mend that first."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class Aborted(PageferryError):
    """It was ended by a decision or a race."""

    default_code = grpc.StatusCode.ABORTED


class OutOfRange(PageferryError):
    """It lies outside of what is kept."""

    default_code = grpc.StatusCode.OUT_OF_RANGE


class Unimplemented(PageferryError):
    """This release cannot do it."""

    default_code = grpc.StatusCode.UNIMPLEMENTED


class Internal(PageferryError):
    """A broken promise inside the service or this library; report it."""

    default_code = grpc.StatusCode.INTERNAL


class Unavailable(PageferryError):
    """Not reachable or not ready now; may be tried again."""

    default_code = grpc.StatusCode.UNAVAILABLE


class DataLoss(PageferryError):
    """Bytes are not what they were; do not use them."""

    default_code = grpc.StatusCode.DATA_LOSS


class SessionLost(Unavailable):
    """The session with the agent has ended; `__cause__` tells why, where that is known."""


class RoomFailed(PageferryError):
    """A room ended without success. Its pages stay in use until it is drained."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "UNSPECIFIED",
        metadata: Mapping[str, str] | None = None,
        room_id: int = -1,
        attempt: int = 0,
    ) -> None:
        """Keeps the parts of the error and the room that it belongs to."""
        super().__init__(message, code=code, reason=reason, metadata=metadata)
        self.room_id = room_id
        self.attempt = attempt

    def __str__(self) -> str:
        """Names the room in front of the rest."""
        return f"room {self.room_id} attempt {self.attempt}: {super().__str__()}"


class RoomLost(RoomFailed, SessionLost):
    """A room failed because the session with the agent was lost."""


_BY_CODE: dict[grpc.StatusCode, type[PageferryError]] = {
    cls.default_code: cls
    for cls in (
        Cancelled,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        Unauthenticated,
        ResourceExhausted,
        FailedPrecondition,
        Aborted,
        OutOfRange,
        Unimplemented,
        Internal,
        Unavailable,
        DataLoss,
    )
}


def reason_name(number: int) -> str:
    """The name of an `ErrorReason` without its prefix; "UNKNOWN_<n>" for one not known here."""
    try:
        return error_pb2.ErrorReason.Name(number).removeprefix(_REASON_PREFIX)
    except ValueError:
        return f"UNKNOWN_{number}"


def make_error(
    code: grpc.StatusCode,
    message: str,
    *,
    reason: str = "UNSPECIFIED",
    metadata: Mapping[str, str] | None = None,
) -> PageferryError:
    """An exception of the class that belongs to `code`."""
    cls = _BY_CODE.get(code, PageferryError)
    return cls(message, code=code, reason=reason, metadata=metadata)


def from_detail(detail: error_pb2.ErrorDetail) -> PageferryError:
    """The exception for an `ErrorDetail` that came inside a frame."""
    return make_error(
        _CODES.get(detail.code, grpc.StatusCode.UNKNOWN),
        detail.message,
        reason=reason_name(detail.reason),
        metadata=detail.metadata,
    )


def room_failed(detail: error_pb2.ErrorDetail, room_id: int, attempt: int) -> RoomFailed:
    """The exception for a room's `ErrorDetail`."""
    return RoomFailed(
        detail.message,
        code=_CODES.get(detail.code, grpc.StatusCode.UNKNOWN),
        reason=reason_name(detail.reason),
        metadata=detail.metadata,
        room_id=room_id,
        attempt=attempt,
    )


def from_rpc_error(error: grpc.RpcError | Any) -> PageferryError:
    """The exception for a failed call, with the `ErrorDetail` of its trailers where there is one.

    Details that do not parse, or that contradict the status, are dropped: the code decides then.
    """
    call: Any = error
    code: grpc.StatusCode = call.code() if hasattr(call, "code") else grpc.StatusCode.UNKNOWN
    message = (call.details() if hasattr(call, "details") else str(error)) or ""
    trailers = call.trailing_metadata() if hasattr(call, "trailing_metadata") else ()
    for key, value in trailers or ():
        if key != _DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            detail = error_pb2.ErrorDetail.FromString(value)
        except Exception:
            break
        if detail.reason and detail.code in (0, code.value[0]):
            name = reason_name(detail.reason)
            return make_error(code, message, reason=name, metadata=detail.metadata)
    return make_error(code, message)

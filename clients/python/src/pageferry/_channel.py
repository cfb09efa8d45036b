"""Channels and calls, with the settings that both clients share."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import grpc

from pageferry.errors import Unavailable, from_rpc_error
from pageferry.tls import Tls

_OPTIONS = (
    # Both ends agree on these: the services accept pings down to 5 s apart.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # An agent that starts again is found quickly.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    # Closing this channel closes its connections, whoever else speaks to the same target.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy set for the web is not meant for the host's own services.
    ("grpc.enable_http_proxy", 0),
)


def make(target: str, tls: Tls | None = None) -> grpc.Channel:
    """A channel; in clear text without `tls`, and to unix sockets."""
    if tls is not None and not target.startswith("unix:"):
        return grpc.secure_channel(target, tls.credentials(), options=_OPTIONS)
    return grpc.insecure_channel(target, options=_OPTIONS)


# Tries of a call that may be repeated, and the waits between them in seconds.
_PAUSES = (0.1, 0.3)


def call(
    rpc: Any, request: Any, *, timeout: float, wait_for_ready: bool = False, repeat: bool = False
) -> Any:
    """One unary call, which takes at most `timeout` s in all. Raises PageferryError.

    With `repeat`, for calls that change nothing the second time, it is tried three times where no
    answer came because the service could not be reached. What a service has answered is not asked
    again: whether that makes sense is the caller's to know.
    """
    deadline = time.monotonic() + timeout
    pauses = iter(_PAUSES if repeat else ())
    while True:
        left = max(0.001, deadline - time.monotonic())
        try:
            return rpc(request, timeout=left, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            pause = next(pauses, None)
            unreached = isinstance(failure, Unavailable) and failure.reason == "UNSPECIFIED"
            if pause is None or not unreached or time.monotonic() + pause >= deadline:
                raise failure from error
        # Spread, so that many clients of a service that starts again do not come at once.
        threading.Event().wait(pause * random.uniform(0.5, 1.5))

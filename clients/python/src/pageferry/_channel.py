"""Channels and calls, with the settings that both clients share."""

from __future__ import annotations

from typing import Any

import grpc

from pageferry.errors import from_rpc_error
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


def call(rpc: Any, request: Any, *, timeout: float, wait_for_ready: bool = False) -> Any:
    """One unary call. Raises PageferryError."""
    try:
        return rpc(request, timeout=timeout, wait_for_ready=wait_for_ready)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error

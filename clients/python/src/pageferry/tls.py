"""Which certificates a client shows and believes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import grpc

from pageferry.errors import InvalidArgument


@dataclass(frozen=True)
class Tls:
    """Files in PEM, as the services take them by --tls-ca, --tls-cert and --tls-key.

    `cert` and `key` are for services that want to see a certificate, which is their default. The
    files are read when a client connects; a client that lives longer than its certificate has to be
    made anew. The service's name or address must be in its certificate.
    """

    ca: str | os.PathLike[str]
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises InvalidArgument naming the one that is missing or unreadable."""
        if (self.cert is None) != (self.key is None):
            raise InvalidArgument("tls: cert and key go together")
        return grpc.ssl_channel_credentials(
            root_certificates=_read("ca", self.ca),
            private_key=None if self.key is None else _read("key", self.key),
            certificate_chain=None if self.cert is None else _read("cert", self.cert),
        )


def _read(name: str, path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"tls.{name}: {error}") from error

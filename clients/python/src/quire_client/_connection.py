"""Channels: where the server is, and how it is spoken to."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import List, Optional, Sequence, Tuple, Union

import grpc
import grpc.aio

Metadata = Tuple[Tuple[str, str], ...]
_File = Union[str, "pathlib.Path", bytes, None]

#: Answers may be long; the server has limits of its own.
_OPTIONS: List[Tuple[str, Union[int, str]]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


@dataclasses.dataclass(frozen=True)
class Tls:
    """Each of these is a path, or the PEM bytes themselves."""

    #: Whose certificates are trusted; None: those that gRPC comes with.
    ca: _File = None
    #: Of this client, for servers that want to know who it is.
    certificate: _File = None
    key: _File = None
    #: The name in the server's certificate, if it is not that of the address.
    server_name: Optional[str] = None


def _read(file: _File) -> Optional[bytes]:
    if file is None or isinstance(file, bytes):
        return file
    return pathlib.Path(file).read_bytes()


def _credentials(tls: Union[bool, Tls, None]) -> Optional[grpc.ChannelCredentials]:
    if not tls:
        return None
    t = tls if isinstance(tls, Tls) else Tls()
    if (t.certificate is None) != (t.key is None):
        raise ValueError("certificate and key go together; one of them is missing")
    return grpc.ssl_channel_credentials(_read(t.ca), _read(t.key), _read(t.certificate))


def _options(tls: Union[bool, Tls, None],
             more: Sequence[Tuple[str, Union[int, str]]]) -> List[Tuple[str, Union[int, str]]]:
    options = list(_OPTIONS)
    if isinstance(tls, Tls) and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options + list(more)


def channel(address: str, tls: Union[bool, Tls, None],
            options: Sequence[Tuple[str, Union[int, str]]]) -> grpc.Channel:
    credentials = _credentials(tls)
    if credentials is None:
        return grpc.insecure_channel(address, options=_options(tls, options))
    return grpc.secure_channel(address, credentials, options=_options(tls, options))


def aio_channel(address: str, tls: Union[bool, Tls, None],
                options: Sequence[Tuple[str, Union[int, str]]]) -> grpc.aio.Channel:
    credentials = _credentials(tls)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=_options(tls, options))
    return grpc.aio.secure_channel(address, credentials, options=_options(tls, options))


def metadata(api_key: Optional[str]) -> Metadata:
    if not api_key:
        return ()
    if not all(" " <= c <= "~" for c in api_key):  # gRPC's own error would show the key
        raise ValueError("api_key has a character that is not printable ASCII, such as a line's end")
    return (("authorization", f"Bearer {api_key}"),)

"""Detection of an unreachable model hub, for example on cluster nodes or on a train."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

_missing = set[str]()
"""Names of hubs that this process could not reach."""


def go_offline_if_unreachable() -> str | None:
    """Make huggingface_hub use only its cache (`HF_HUB_OFFLINE`) in this process if the hub cannot be found.

    Return the hub's name in that case. Return None if the hub is found, if a proxy is set, or if the user has set
    `HF_HUB_OFFLINE`. Without this, huggingface_hub would try six times, for half a minute, for every file of a model,
    even for files in the cache.
    """
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT).hostname or ""
    if getproxies():
        return None
    if constants.HF_HUB_OFFLINE:
        return host if host in _missing else None
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        _missing.add(host)
        constants.HF_HUB_OFFLINE = True
        return host
    return None

"""The model hub where it cannot be reached: on nodes of clusters, and on trains."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

_missing = set[str]()
"""Names of hubs that this process has looked for in vain."""


def go_offline_if_unreachable() -> str | None:
    """Have huggingface_hub look into its cache alone (`HF_HUB_OFFLINE`) in this process, where this machine cannot find
    the hub; the hub's name then, None where it is found, or a proxy would ask, or the user wants no network.

    It would ask six times, for half a minute, for each file of a model, also of one that is in the cache.
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

"""The model hub where it cannot be reached: on nodes of clusters, and on trains."""

from __future__ import annotations

import socket
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies


@cache
def unreachable() -> str | None:
    """The hub's name where this machine cannot find it; None where it can, or where a proxy asks.

    huggingface_hub then looks into its cache alone (`HF_HUB_OFFLINE`) in this process. It would ask six times, for half
    a minute, for each file of a model, also of one that is in the cache.
    """
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT).hostname or ""
    if constants.HF_HUB_OFFLINE or getproxies():
        return None
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        constants.HF_HUB_OFFLINE = True
        return host
    return None

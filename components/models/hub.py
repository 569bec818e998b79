"""The model hub where it cannot be reached: on nodes of clusters, and on trains."""

from __future__ import annotations

import socket
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies


@cache
def go_offline_if_unreachable() -> str | None:
    """Have huggingface_hub look into its cache alone (`HF_HUB_OFFLINE`) in this process, where this machine cannot find
    the hub; the hub's name then, None where it is found or a proxy would ask.

    It would ask six times, for half a minute, for each file of a model, also of one that is in the cache.
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

"""Accessibility checks of a page by axe-core, which comes from npm: `npm pack axe-core`, unpack it, and name the file
`package/axe.min.js` in $AXE_CORE."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.chromium import Browser


def violations(page: Browser) -> list[str]:
    """Describe what axe-core finds wrong with a page. Skip the test if there is no axe-core."""
    file = os.environ.get("AXE_CORE")
    if file is None:
        pytest.skip("$AXE_CORE names no axe.min.js")
    page.run(f"{Path(file).read_text()}; null")
    faults = page.run(
        "axe.run().then(({violations}) => violations.flatMap(({id, help, nodes}) =>"
        " nodes.map(({target}) => `${id}: ${help}: ${target}`)))"
    )
    return list(faults)

"""Tests that need products which not every processor has."""

from __future__ import annotations

import pytest

from sparring.components.compute.linear_products import has_products

NEEDS_BF16 = pytest.mark.skipif(not has_products("bf16"), reason="this processor has no products in bf16")
NEEDS_VNNI = pytest.mark.skipif(not has_products("int8"), reason="this processor has no VNNI")

"""Recognition of the languages of a collection's texts, with py3langid's model. It needs no network."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

LEAST = 150
"""Minimum number of bytes of distinct words for recognition. For 846 samples in 47 languages, each of 15 to 50 phrases
with 8 to 60 characters, recognition was always right. For shorter samples it was wrong once in 50."""
SHARE, AT_LEAST = 0.1, 3
"""Share of the texts, and number of texts, from which a language counts in addition to the main one."""
CLEAR = 0.7
"""Minimum total share of the languages that count. Below it, the texts count as text without language."""
TEXTS, CHARACTERS = 400, 400
"""Number of texts in the sample, and number of characters of each."""
VARIANTS = {"nn": "no", "nb": "no", "uzs": "uz", "grc": "el", "hbo": "he", "ext": "es", "an": "es"}
VARIANTS |= {"arz": "ar", "ary": "ar", "wuu": "zh", "yue": "zh"}
"""Languages that are analysed like a related one."""
NONE = "zxx"
"""Code of texts without language, such as numbers and source code."""
_NAMES = """
af Afrikaans, am Amharic, ar Arabic, az Azerbaijani, be Belarusian, bg Bulgarian, bn Bengali, bs Bosnian, ca Catalan,
ckb Sorani, cs Czech, cy Welsh, da Danish, de German, el Greek, en English, eo Esperanto, es Spanish, et Estonian, eu
Basque, fa Persian, fi Finnish, fr French, ga Irish, gl Galician, gu Gujarati, ha Hausa, he Hebrew, hi Hindi, hr
Croatian, hu Hungarian, hy Armenian, id Indonesian, ig Igbo, is Icelandic, it Italian, ja Japanese, jv Javanese, ka
Georgian, kk Kazakh, km Khmer, kn Kannada, ko Korean, ku Kurdish, ky Kyrgyz, la Latin, lb Luxembourgish, lo Lao, lt
Lithuanian, lv Latvian, mg Malagasy, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi, ms Malay, mt Maltese, my
Burmese, ne Nepali, nl Dutch, no Norwegian, oc Occitan, or Odia, pa Punjabi, pl Polish, ps Pashto, pt Portuguese, ro
Romanian, ru Russian, rw Kinyarwanda, sa Sanskrit, si Sinhala, sk Slovak, sl Slovenian, so Somali, sq Albanian, sr
Serbian, sv Swedish, sw Swahili, ta Tamil, te Telugu, tg Tajik, th Thai, tk Turkmen, tl Tagalog, tr Turkish, tt Tatar,
ug Uyghur, uk Ukrainian, ur Urdu, uz Uzbek, vi Vietnamese, xh Xhosa, yo Yoruba, zh Chinese, zu Zulu
"""
NAMES = {entry.split()[0]: entry.strip().partition(" ")[2] for entry in _NAMES.replace("\n", " ").split(",")}
"""English names of languages."""
_NO_LETTERS = re.compile(r"[\W\d_]+")


class Sample:
    """A random sample of a stream of texts. The same stream gives the same sample."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._seen, self._random = 0, random.Random(0)

    def add(self, text: str) -> None:
        """Consider a text."""
        self._seen += 1
        place = len(self.texts) if self._seen <= TEXTS else self._random.randrange(self._seen)
        if place < TEXTS:
            self.texts[place : place + 1] = [text[:CHARACTERS]]


def languages_of(texts: Sequence[str]) -> dict[str, float]:
    """Return the share of each language by its ISO 639 code, the largest first.

    The result is empty if there is too little text, or no language. A single short text is often mistaken for a related
    language. So the shares are those of a mixture, fitted to all texts together by expectation maximisation.
    """
    words = [set(_NO_LETTERS.split(text)) - {""} for text in texts]
    if sum(len(word.encode("utf-8", "replace")) for word in set().union(*words)) < LEAST:
        return {}
    ranks = [dict(_identifier().rank(text)) for text, in_text in zip(texts, words, strict=True) if in_text]
    codes = sorted(ranks[0])
    likelihood = np.array([[rank[code] for code in codes] for rank in ranks]) + 1e-6
    shares = np.full(len(codes), 1 / len(codes))
    for _ in range(30):
        belongs = likelihood * shares
        shares = (belongs / belongs.sum(axis=1, keepdims=True)).mean(axis=0)
    by_code = dict[str, float]()
    for code, share in zip(codes, shares.tolist(), strict=True):
        by_code[VARIANTS.get(code, code)] = by_code.get(VARIANTS.get(code, code), 0.0) + share
    main = max(by_code, key=by_code.__getitem__)
    enough = max(SHARE, AT_LEAST / len(texts))
    counted = {code: share for code, share in by_code.items() if code == main or share >= enough}
    if sum(counted.values()) < CLEAR or main == NONE:
        return {}
    return {code: counted[code] for code in sorted(counted, key=lambda code: -counted[code]) if code != NONE}


def name_of(code: str) -> str:
    """Return the English name of a language. If it is not in `NAMES`, return the code."""
    return NAMES.get(code, f"language {code!r}")


def spoken(shares: Mapping[str, float]) -> str:
    """Describe the languages of texts in words.

    >>> spoken({"de": 0.99}), spoken({"en": 0.6, "de": 0.4})
    ('German', 'English (60 %) and German (40 %)')
    """
    if len(shares) == 1:
        return name_of(next(iter(shares)))
    parts = [f"{name_of(code)} ({share:.0%})".replace("%", " %") for code, share in shares.items()]
    return " and ".join([", ".join(parts[:-1]), parts[-1]])


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

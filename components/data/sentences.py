"""Cutting a text into sentences."""

import regex

_WIDE, _QUOTES = r"[。\uff01\uff1f\uff0e।॥؟\u06d4]", r"[”」』\uff09]"
_END = regex.compile(rf"(?<=[.!?][\"')\]]?)\s+(?=\S)|(?<={_WIDE}{_QUOTES}?)(?!{_QUOTES})\s*(?=\S)")
"""Where words are not separated, no white space is behind a sentence either."""


def sentences(text: str) -> list[str]:
    """A text cut after full stops, question and exclamation marks, Chinese, Japanese, Arabic and Hindi ones too, which
    may stand before a quote or bracket.

    An abbreviation's full stop cuts too.

    >>> sentences('It rains. "Really?" Yes!'), sentences("下雨了。「是。」他说。")
    (['It rains.', '"Really?"', 'Yes!'], ['下雨了。', '「是。」', '他说。'])
    """
    return [sentence for sentence in _END.split(text.strip()) if sentence]

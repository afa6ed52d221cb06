"""Words for TextArena's word games, in the place of the corpora that NLTK would download."""

from __future__ import annotations

import importlib.resources
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

WORD_FILE = "common_words.txt"


@cache
def common_words() -> tuple[str, ...]:
    """Common English words of four to nine letters, most of them of five, in alphabetical order."""
    text = (
        importlib.resources.files("verifiers.envs.integrations")
        .joinpath(WORD_FILE)
        .read_text(encoding="utf-8")
    )
    return tuple(text.split())


def _words(fileids: str | None = None) -> list[str]:
    return list(common_words())


def _as_nouns(tokens: list[str], *_: Any, **__: Any) -> list[tuple[str, str]]:
    # The games keep words tagged "NN"; the list holds only words that are fit to be guessed.
    return [(token, "NN") for token in tokens]


def _not_downloaded(*_: Any, **__: Any) -> bool:
    return True


@contextmanager
def offline_nltk() -> Iterator[None]:
    """While games are imported and made, `nltk` gives them `common_words` and downloads nothing; then it is as before.

    Whoever imported TextArena earlier holds the same corpus object, so it is the object that is changed, not the name.
    """
    try:
        import nltk
        import nltk.corpus
    except ImportError:
        yield  # textarena depends on it, so what follows says that textarena is missing
        return
    corpus, download, pos_tag = vars(nltk.corpus.words), nltk.download, nltk.pos_tag
    before = corpus.get("words")
    corpus["words"], nltk.download, nltk.pos_tag = _words, _not_downloaded, _as_nouns
    for name, module in list(sys.modules.items()):
        if name.startswith("textarena.envs.") and "pos_tag" in vars(module):
            vars(module)["pos_tag"] = _as_nouns
    try:
        yield
    finally:
        nltk.download, nltk.pos_tag = download, pos_tag
        if before is None:
            del corpus["words"]
        else:
            corpus["words"] = before

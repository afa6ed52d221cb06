"""Parsers: extract the answer from a completion and check its format. Read `parser` first, then `xml_parser`."""

from verifiers.parsers.answers import extract_boxed_answer, extract_hash_answer, strip_non_numeric
from verifiers.parsers.maybe_think_parser import MaybeThinkParser
from verifiers.parsers.parser import Parser
from verifiers.parsers.think_parser import ThinkParser
from verifiers.parsers.xml_parser import XMLParser

__all__ = [
    "MaybeThinkParser",
    "Parser",
    "ThinkParser",
    "XMLParser",
    "extract_boxed_answer",
    "extract_hash_answer",
    "strip_non_numeric",
]

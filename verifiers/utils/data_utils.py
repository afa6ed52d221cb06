"""v0 import path: answers in text, example data sets, formatting a dataset."""

from verifiers.example_datasets import get_preprocess_fn as get_preprocess_fn
from verifiers.example_datasets import load_example_dataset as load_example_dataset
from verifiers.parsers.answers import BOXED_SYSTEM_PROMPT as BOXED_SYSTEM_PROMPT
from verifiers.parsers.answers import THINK_BOXED_SYSTEM_PROMPT as THINK_BOXED_SYSTEM_PROMPT
from verifiers.parsers.answers import extract_boxed_answer as extract_boxed_answer
from verifiers.parsers.answers import extract_hash_answer as extract_hash_answer
from verifiers.parsers.answers import strip_non_numeric as strip_non_numeric
from verifiers.v0.utilities import format_dataset as format_dataset

"""v0 import paths of rubrics that were experimental in v0. No module of this library imports them."""

"""Finding environments: lists, full text, tags, stars."""

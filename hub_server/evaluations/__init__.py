"""Results of evaluations, tied to environment versions."""

"""Rubrics: reward functions, their weights, and how they are called."""

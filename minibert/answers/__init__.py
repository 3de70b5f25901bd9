"""Answers of a model: predictions, generated text, and one row of attention as a calculation."""

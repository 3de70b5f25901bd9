"""What a model says: predictions, text, and one row of attention as a calculation."""

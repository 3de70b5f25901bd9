"""From files, the Hub or a live model to a model, and back to files."""

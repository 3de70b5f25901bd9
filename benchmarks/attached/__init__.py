"""Every model type of the installed transformers, built small, attached to and checked."""

"""Checks whether an implementation of attention is right, and names the likely mistake if not."""

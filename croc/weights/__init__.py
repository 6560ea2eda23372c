"""Weights files: read without running code in them, recognized by their keys and shapes."""

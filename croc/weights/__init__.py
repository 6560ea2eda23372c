"""Weights from elsewhere: files read without running them, recognised by their keys and shapes."""

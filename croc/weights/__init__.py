"""Weights from elsewhere: files read without running them, recognized by their keys and shapes."""

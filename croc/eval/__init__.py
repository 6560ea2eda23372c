"""Evaluation of frozen dense features: a backbone in, named numbers out."""

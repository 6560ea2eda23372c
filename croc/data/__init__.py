"""Training images: sources, decoding and batches."""

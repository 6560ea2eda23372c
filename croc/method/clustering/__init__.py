"""Online clustering of the joined tokens by optimal transport."""

"""How fast a recipe's training step is, and where its time goes."""

"""`croc sweep`: an ablation by one command, every run trained and scored once, and its plot."""

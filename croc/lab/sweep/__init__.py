"""`croc sweep`: an ablation by one command; every run is trained and scored once, then plotted."""

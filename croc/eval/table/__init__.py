"""`croc evaluate table`: several weights on several data sets, as the paper's tables have them."""

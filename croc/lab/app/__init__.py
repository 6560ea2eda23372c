"""The explorer: a page that shows the clusters of two crops while one moves them."""

"""`croc app`: a page that shows the clusters of two crops while the user moves them."""

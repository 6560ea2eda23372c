"""What our pages share: their frame, their look, and charts without any library."""

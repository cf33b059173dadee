"""Short problems of arithmetic and counting."""

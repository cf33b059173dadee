"""Short problems of tiny programs: what they print, or what they are."""

"""What a node is, and other forms of the same thing."""

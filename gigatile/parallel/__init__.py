"""Launch ranks, let them communicate, and end them together."""

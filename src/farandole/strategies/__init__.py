"""What becomes of a gradient."""

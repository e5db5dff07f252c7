"""TensorBoard for runs."""

"""What all frameworks share: the public collectives, written once."""

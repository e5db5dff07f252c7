"""The supervisor: one process per user, host and home that starts runs and watches them."""

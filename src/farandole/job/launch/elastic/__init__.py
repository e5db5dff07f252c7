"""The driver's side of an elastic job."""

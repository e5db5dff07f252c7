"""References to data of a datastore."""

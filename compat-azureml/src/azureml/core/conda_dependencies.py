"""The packages of an environment, as a conda file lists them."""

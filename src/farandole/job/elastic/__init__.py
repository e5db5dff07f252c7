"""Elastic jobs: discovery of hosts, membership, and the rules for their changes."""

"""The server of the page: its routes, its data and its access control."""

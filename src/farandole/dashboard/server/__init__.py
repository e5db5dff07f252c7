"""The server of the page: its routes, its data, and the protection of both."""

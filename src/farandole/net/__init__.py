"""Sockets: the job's store, handshakes, liveness and network interfaces."""

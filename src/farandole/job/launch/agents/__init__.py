"""Agents: one program per host or task that starts ranks there for a remote driver.

``agent`` runs on the host; ``boot`` runs before it and installs the driver's packages (``bundle``)
where they are missing. ``command`` covers mpirun and srun, which start ``boot`` on each slot.
``registry`` is the driver's end, and ``allocation`` the launchers' interface for any cluster.
"""

"""Agents: one program per host or task that starts ranks there for a driver elsewhere.

``agent`` runs on the host, ``boot`` before it, with the driver's packages where they are missing
(``bundle``); ``command`` is mpirun or srun, which start ``__main__`` on their places. ``registry``
is the driver's end, and ``allocation`` what launchers make of it for any cluster.
"""

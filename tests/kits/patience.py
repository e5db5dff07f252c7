"""How long jobs of tests may take to start: the default of 30 s is too short where much else runs
on few cores.
"""

PATIENT = {"FARANDOLE_START_TIMEOUT": "150"}

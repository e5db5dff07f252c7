"""The folder of a run: its format, its states and its journals.

All data of a run are files below one folder, so a run can be copied, archived and opened elsewhere.
This package defines these files. It starts no processes and keeps no index.
"""

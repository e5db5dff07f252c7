"""Groups of ranks whose calls come in one order on all of them, as torch.distributed has them.

No agreement is needed on what to run next: a group is a transport of its own, on which calls run
one after the other (``calls``), each after a look whether all ranks want the same (``checked``).
Messages from one rank to another have their own way past them (``messages``).
"""

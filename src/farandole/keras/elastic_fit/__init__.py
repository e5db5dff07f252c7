"""``model.fit`` in an elastic job, for Keras 3 and Keras 2: it continues after losses and joins
without a state in the program.

- ``loop``: the remaining epochs, and the callbacks over several memberships;
- ``progress``: the state that is committed, restored and sent to new ranks;
- ``snapshots``: the values of callbacks;
- ``data``: the part of the data that a rank reads from any position.
"""

"""A LightningModule (Lightning 2), trained by a ``Trainer`` on this rank's rows:
``trainer.train``.
"""

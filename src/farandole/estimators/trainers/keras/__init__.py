"""A Keras model (Keras 3 on any backend, or tf_keras), trained by ``fit`` on this rank's rows:
``trainer.train``.
"""

"""The view of a run in a notebook."""

from azureml._farandole import lazy

__getattr__, __all__ = lazy.names(__name__, {"RunDetails": "azureml.widgets.run_details"})

"""A part of the SDK that Farandole does not support."""

from azureml._farandole.refused import refuse

refuse(__name__)

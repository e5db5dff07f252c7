"""A part of the SDK that is not carried over."""

from azureml._farandole.refused import refuse

refuse(__name__)

"""The names of Azure ML's SDK v1, implemented by Farandole."""

from azureml._farandole.alone import check_alone

check_alone()

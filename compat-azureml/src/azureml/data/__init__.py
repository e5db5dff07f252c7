"""Datasets and paths of data."""

from azureml._farandole import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "DataPath": "azureml.data.datapath",
        "DataReference": "azureml.data.data_reference",
        "DataType": "azureml.data.dataset_factory",
        "DatasetConsumptionConfig": "azureml.data.dataset_consumption_config",
        "FileDataset": "azureml.data.file_dataset",
        "FileDatasetFactory": "azureml.data.dataset_factory",
        "OutputFileDatasetConfig": "azureml.data.output_dataset_config",
        "TabularDataset": "azureml.data.tabular_dataset",
        "TabularDatasetFactory": "azureml.data.dataset_factory",
    },
)

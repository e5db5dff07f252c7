"""The Spark ML side of estimators: Params, Estimator, Model, and saving and loading."""

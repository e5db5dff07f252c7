"""What estimators are to Spark ML: Params, Estimator, Model, and how they are written and read."""

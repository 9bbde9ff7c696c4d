"""Foundation of all families of models: estimators."""

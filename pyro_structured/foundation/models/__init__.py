"""Foundation of the estimators of all families."""

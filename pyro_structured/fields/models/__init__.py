"""Label fields with high-order patterns: estimators."""

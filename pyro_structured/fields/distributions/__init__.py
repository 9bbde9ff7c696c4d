"""Label fields with high-order patterns: Pyro distributions."""
